from __future__ import annotations

import logging
from pathlib import Path

import pytest
from pydantic import ValidationError
from tests.log.guarded import guarded_broker

from millstream import App
from millstream.errors import LogError, SettingsError
from millstream.log.connection import (
    RepeatFilter,
    admin,
    await_broker,
    client_config,
    spark_options,
)
from millstream.log.consumer import bounds
from millstream.log.settings import LogSettings
from millstream.pipeline.pipeline_topics import ensure_topics

PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"


def for_spark(**security: str) -> dict[str, str]:
    named = {name.replace("_", "."): value for name, value in security.items()}
    options = spark_options(LogSettings(bootstrap="kafka:9092", security=named))
    assert options.pop("kafka.bootstrap.servers") == "kafka:9092"
    return options


def test_python_clients_get_the_security_settings_as_they_are() -> None:
    log = LogSettings(bootstrap="kafka:9092", security={"security.protocol": "SSL"})
    config = client_config(log, linger_ms=5)
    assert config["bootstrap.servers"] == "kafka:9092"
    assert config["security.protocol"] == "SSL"
    assert config["linger.ms"] == 5


def test_without_a_bootstrap_there_is_nothing_to_connect_to() -> None:
    with pytest.raises(LogError, match=r"log.bootstrap is empty"):
        client_config(LogSettings())


@pytest.mark.parametrize(
    "security", [{"sasl.passwort": "hunter2"}, {"security.protocol": "none of these"}]
)
def test_a_security_setting_that_no_client_knows_is_named(security: dict[str, str]) -> None:
    log = LogSettings(bootstrap="kafka:9092", security=security)
    with pytest.raises(SettingsError, match=next(iter(security))) as caught:
        admin(log)
    assert "hunter2" not in str(caught.value)
    assert "correct log.security" in str(caught.value)


def test_spark_gets_nothing_but_the_servers_from_an_open_cluster() -> None:
    assert for_spark() == {}


@pytest.mark.parametrize(
    ("mechanism", "module"), [("PLAIN", PLAIN), ("SCRAM-SHA-256", SCRAM), ("SCRAM-SHA-512", SCRAM)]
)
@pytest.mark.parametrize("name", ["sasl_mechanism", "sasl_mechanisms"])
def test_a_user_and_password_become_a_java_login(mechanism: str, module: str, name: str) -> None:
    login = {name: mechanism, "sasl_username": "ann", "sasl_password": 'a"b\\c'}
    assert for_spark(security_protocol="SASL_SSL", **login) == {
        "kafka.security.protocol": "SASL_SSL",
        "kafka.sasl.mechanism": mechanism,
        "kafka.sasl.jaas.config": f'{module} required username="ann" password="a\\"b\\\\c";',
    }


def test_certificates_become_java_stores(tmp_path: Path) -> None:
    (tmp_path / "cert").write_text("CERT")
    (tmp_path / "key").write_text("KEY")
    assert for_spark(
        ssl_ca_location="/ca.pem",
        ssl_certificate_location=str(tmp_path / "cert"),
        ssl_key_location=str(tmp_path / "key"),
        ssl_key_password="secret",
        ssl_endpoint_identification_algorithm="none",
        enable_ssl_certificate_verification="true",
    ) == {
        "kafka.ssl.truststore.type": "PEM",
        "kafka.ssl.truststore.location": "/ca.pem",
        "kafka.ssl.keystore.type": "PEM",
        "kafka.ssl.keystore.certificate.chain": "CERT",
        "kafka.ssl.keystore.key": "KEY",
        "kafka.ssl.key.password": "secret",
        "kafka.ssl.endpoint.identification.algorithm": "",
    }
    assert for_spark(ssl_keystore_location="/me.p12", ssl_keystore_password="secret") == {
        "kafka.ssl.keystore.type": "PKCS12",
        "kafka.ssl.keystore.location": "/me.p12",
        "kafka.ssl.keystore.password": "secret",
        "kafka.ssl.key.password": "secret",
    }


@pytest.mark.parametrize(
    ("security", "named"),
    [
        ({"enable_ssl_certificate_verification": "false"}, "enable.ssl.certificate.verification"),
        ({"sasl_kerberos_keytab": "/tab"}, "sasl.kerberos.keytab"),
        ({"sasl_mechanism": "GSSAPI"}, "GSSAPI"),
        ({"sasl_mechanism": "PLAIN", "sasl_username": "ann"}, "sasl.password"),
        ({"ssl_key_pem": "KEY"}, "ssl.certificate"),
        ({"ssl_key_location": "/missing/key"}, "/missing/key"),
    ],
)
def test_what_spark_cannot_be_told_is_an_error_that_names_it(
    security: dict[str, str], named: str
) -> None:
    with pytest.raises(SettingsError, match=named):
        for_spark(**security)


def test_only_security_settings_are_taken_as_such() -> None:
    with pytest.raises(ValidationError, match=r"'acks' is not a security setting"):
        LogSettings(security={"acks": "0"})


@pytest.mark.kafka
def test_a_cluster_that_asks_for_a_password_lets_in_who_has_it_and_nobody_else(
    tmp_path: Path,
) -> None:
    with guarded_broker(tmp_path) as as_ann:
        await_broker(as_ann("right"), 20)
        app = App("guarded")
        app.stream("events", schema="id LONG")
        ensure_topics(app, as_ann("right"))
        assert bounds(as_ann("right"), "guarded.stream.events") == {0: (0, 0)}
        with pytest.raises(LogError, match="did not answer"):
            await_broker(as_ann("wrong"), 2)
        with pytest.raises(LogError, match="did not answer"):
            await_broker(LogSettings(bootstrap=as_ann("right").bootstrap), 2)


def test_what_a_client_says_again_and_again_is_logged_once_in_a_while() -> None:
    now = [0.0]
    calm = RepeatFilter(lambda: now[0])

    def passes(text: str) -> bool:
        return calm.filter(logging.LogRecord("millstream.kafka", 40, "", 0, text, None, None))

    assert passes("FAIL [thrd:1] refused")
    assert not passes("FAIL [thrd:2] refused")
    assert passes("ERROR all brokers are down")
    now[0] = 10.0
    assert passes("FAIL [thrd:1] refused")
