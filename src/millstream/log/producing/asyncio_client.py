"""Configuration of aiokafka, a client that runs in the event loop.

It supports the same security settings (`LogSettings.security`) as Spark, under other names.
"""

from __future__ import annotations

import logging
import ssl
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    pkcs12,
)

from millstream.errors import SettingsError
from millstream.log.connection import RepeatFilter
from millstream.log.settings import LogSettings

_MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
_LOGGERS = ("aiokafka", "aiokafka.cluster", "aiokafka.conn", "aiokafka.producer.sender")


def asyncio_config(log: LogSettings, **extra: Any) -> dict[str, Any]:
    """Configuration of an aiokafka client; SettingsError for security that it does not support."""
    security = log.security
    config: dict[str, Any] = {
        "bootstrap_servers": log.bootstrap,
        "client_id": "millstream",
        "security_protocol": security.get("security.protocol", "PLAINTEXT").upper(),
        **extra,
    }
    if config["security_protocol"].startswith("SASL_"):
        config["sasl_mechanism"] = _mechanism(security)
        config["sasl_plain_username"] = security.get("sasl.username")
        config["sasl_plain_password"] = security.get("sasl.password")
    if config["security_protocol"].endswith("SSL"):
        config["ssl_context"] = ssl_context(security)
    return config


def _mechanism(security: Mapping[str, str]) -> str:
    given = security.get("sasl.mechanism") or security.get("sasl.mechanisms") or "PLAIN"
    if given.upper() not in _MECHANISMS:
        raise SettingsError(
            f"log.security 'sasl.mechanism' is {given!r}, with which the collector cannot log in",
            remedy=f"use one of {', '.join(_MECHANISMS)}, as for Spark",
        )
    return given.upper()


def limit_repeats() -> None:
    """Log each kind of the client's messages once in a while: it repeats them at every attempt."""
    for name in _LOGGERS:
        logger = logging.getLogger(name)
        if not any(isinstance(each, RepeatFilter) for each in logger.filters):
            logger.addFilter(RepeatFilter())


def ssl_context(security: Mapping[str, str]) -> ssl.SSLContext:
    """The TLS that librdkafka's settings describe."""
    try:
        context = ssl.create_default_context(
            cafile=security.get("ssl.ca.location"), cadata=security.get("ssl.ca.pem")
        )
        if security.get("ssl.endpoint.identification.algorithm") == "none":
            context.check_hostname = False
        if security.get("enable.ssl.certificate.verification", "true").lower() == "false":
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        if ciphers := security.get("ssl.cipher.suites"):
            context.set_ciphers(ciphers)
        _load_own(context, security)
    except (OSError, ValueError) as error:  # SSLError is an OSError
        raise SettingsError(
            f"cannot use the certificates and keys that log.security names: {error}",
            remedy="check that ssl.ca.*, ssl.certificate.*, ssl.key.* and ssl.keystore.* are right",
        ) from error
    return context


def _load_own(context: ssl.SSLContext, security: Mapping[str, str]) -> None:
    """Our own certificate and its key; Python reads them from files only."""
    password = security.get("ssl.key.password", "")
    if path := security.get("ssl.keystore.location"):
        password = security.get("ssl.keystore.password", "")
        certificate, key = _from_keystore(Path(path), password)
    else:
        certificate, key = (_pem(security, f"ssl.{kind}") for kind in ("certificate", "key"))
    if not certificate:
        return
    with tempfile.TemporaryDirectory(prefix="millstream-") as folder:
        chain, own = Path(folder) / "certificate.pem", Path(folder) / "key.pem"
        chain.write_bytes(certificate)
        own.touch(0o600)
        own.write_bytes(key)
        context.load_cert_chain(chain, own if key else None, password or "")


def _from_keystore(path: Path, password: str) -> tuple[bytes, bytes]:
    key, certificate, more = pkcs12.load_key_and_certificates(
        path.read_bytes(), password.encode() or None
    )
    if key is None or certificate is None:
        raise ValueError(f"{path} has no key with a certificate")
    encryption = BestAvailableEncryption(password.encode()) if password else NoEncryption()
    return (
        b"".join(each.public_bytes(Encoding.PEM) for each in (certificate, *more)),
        key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption),
    )


def _pem(security: Mapping[str, str], name: str) -> bytes:
    if path := security.get(f"{name}.location"):
        return Path(path).read_bytes()
    return security.get(f"{name}.pem", "").encode()
