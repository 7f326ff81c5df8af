"""Translates security settings from librdkafka's names to those of Kafka's Java client.

Users write them once, in librdkafka's names; Spark's Kafka source and sink are Java.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from millstream.errors import SettingsError

_LOGIN_MODULES = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}
_SAME = ("security.protocol", "ssl.key.password", "ssl.cipher.suites")


def java_security(security: Mapping[str, str]) -> dict[str, str]:
    """The same settings for the Java client; SettingsError for one without a counterpart."""
    left = dict(security)
    java = {name: left.pop(name) for name in _SAME if name in left}
    java |= _login(left) | _trusted(left) | _own_certificate(left) | _checks(left)
    if left:
        name = next(iter(left))
        raise SettingsError(
            f"log.security {name!r} cannot be passed to Spark",
            remedy="use security.protocol, sasl.mechanism (PLAIN, SCRAM-SHA-256, SCRAM-SHA-512), "
            "sasl.username, sasl.password, ssl.ca.*, ssl.certificate.*, ssl.key.*, ssl.keystore.*",
        )
    return java


def _login(left: dict[str, str]) -> dict[str, str]:
    aliases = [left.pop(name, "") for name in ("sasl.mechanism", "sasl.mechanisms")]
    mechanism = next(filter(None, aliases), "")
    if not mechanism:
        return {}
    module = _LOGIN_MODULES.get(mechanism.upper())
    if module is None:
        raise SettingsError(
            f"log.security 'sasl.mechanism' is {mechanism!r}, which cannot be passed to Spark",
            remedy=f"use one of {', '.join(_LOGIN_MODULES)}",
        )
    try:
        user, password = (_quoted(left.pop(f"sasl.{name}")) for name in ("username", "password"))
    except KeyError as missing:
        raise SettingsError(
            f"log.security lacks {missing}, which sasl.mechanism {mechanism} needs"
        ) from None
    login = f"{module} required username={user} password={password};"
    return {"sasl.mechanism": mechanism.upper(), "sasl.jaas.config": login}


def _trusted(left: dict[str, str]) -> dict[str, str]:
    if path := left.pop("ssl.ca.location", ""):
        return {"ssl.truststore.type": "PEM", "ssl.truststore.location": path}
    if pem := left.pop("ssl.ca.pem", ""):
        return {"ssl.truststore.type": "PEM", "ssl.truststore.certificates": pem}
    return {}


def _own_certificate(left: dict[str, str]) -> dict[str, str]:
    if path := left.pop("ssl.keystore.location", ""):
        password = left.pop("ssl.keystore.password", "")
        return {
            "ssl.keystore.type": "PKCS12",
            "ssl.keystore.location": path,
            "ssl.keystore.password": password,
            "ssl.key.password": password,
        }
    pair = {kind: _pem(left, f"ssl.{kind}") for kind in ("certificate", "key")}
    if not any(pair.values()):
        return {}
    if not all(pair.values()):
        raise SettingsError(
            "log.security has one of ssl.certificate.* and ssl.key.* without the other"
        )
    return {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.certificate.chain": pair["certificate"],
        "ssl.keystore.key": pair["key"],
    }


def _pem(left: dict[str, str], name: str) -> str:
    path, text = left.pop(f"{name}.location", ""), left.pop(f"{name}.pem", "")
    try:
        return Path(path).read_text() if path else text
    except OSError as error:
        raise SettingsError(
            f"cannot read {path}, which log.security {name + '.location'!r} names: {error.strerror}"
        ) from error


def _checks(left: dict[str, str]) -> dict[str, str]:
    java: dict[str, str] = {}
    if (algorithm := left.pop("ssl.endpoint.identification.algorithm", None)) is not None:
        java["ssl.endpoint.identification.algorithm"] = "" if algorithm == "none" else algorithm
    if left.get("enable.ssl.certificate.verification", "true").lower() == "true":
        left.pop("enable.ssl.certificate.verification", None)  # Java always verifies
    return java


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
