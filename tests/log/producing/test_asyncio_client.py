"""The client in the loop reaches a Kafka that wants certificates, told in librdkafka's names."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from aiokafka import AIOKafkaProducer
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    load_pem_private_key,
    pkcs12,
)
from cryptography.x509 import load_pem_x509_certificate
from tests.web.certificate_authority import Authority

from millstream.errors import SettingsError
from millstream.log.broker import Broker
from millstream.log.connection import await_broker
from millstream.log.producing.asyncio_client import asyncio_config
from millstream.log.settings import LogSettings


class Secured:
    """A Kafka that shows a certificate, and asks for one."""

    def __init__(self, folder: Path, address: str, authority: Authority) -> None:
        self.authority = authority
        self.own = tuple(map(Path, authority.issue("ann", password=b"secret")))
        self.folder = folder
        self._address = address

    def log(self, **security: str) -> LogSettings:
        named = {name.replace("_", "."): value for name, value in security.items()}
        named = {"security.protocol": "SSL", "ssl.ca.location": str(self.authority.file), **named}
        return LogSettings(bootstrap=self._address, security=named)


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    folder = tmp_path_factory.mktemp("secured")
    authority = Authority(folder, "authority")
    certificate, key = map(Path, authority.issue("kafka"))
    store = folder / "store.pem"
    store.write_text(key.read_text() + certificate.read_text())
    with socket.create_server(("127.0.0.1", 0)) as probe:
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    secured = "listener.name.secured.ssl"
    properties = {
        "listeners": f"SECURED://{address}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SECURED:SSL",
        f"{secured}.keystore.type": "PEM",
        f"{secured}.keystore.location": str(store),
        f"{secured}.truststore.type": "PEM",
        f"{secured}.truststore.location": str(authority.file),
        f"{secured}.client.auth": "required",
    }
    with Broker(folder / "kafka", memory="256m", properties=properties):
        yield Secured(folder, address, authority)


def _by_files(secured: Secured) -> dict[str, str]:
    certificate, key = secured.own
    return {"ssl_certificate_location": str(certificate), "ssl_key_location": str(key)}


def _by_text(secured: Secured) -> dict[str, str]:
    certificate, key = secured.own
    return {
        "ssl_ca_pem": secured.authority.file.read_text(),
        "ssl_certificate_pem": certificate.read_text(),
        "ssl_key_pem": key.read_text(),
    }


def _by_keystore(secured: Secured) -> dict[str, str]:
    certificate, key = (path.read_bytes() for path in secured.own)
    store = secured.folder / "own.p12"
    store.write_bytes(
        pkcs12.serialize_key_and_certificates(
            b"ann",
            load_pem_private_key(key, b"secret"),  # type: ignore[arg-type]
            load_pem_x509_certificate(certificate),
            None,
            BestAvailableEncryption(b"other"),
        )
    )
    return {"ssl_keystore_location": str(store), "ssl_keystore_password": "other"}


@pytest.mark.parametrize("given", [_by_files, _by_text, _by_keystore])
@pytest.mark.kafka
async def test_both_sides_show_certificates_however_ours_is_given(
    secured: Secured, given: Callable[[Secured], dict[str, str]]
) -> None:
    log = secured.log(ssl_key_password="secret", **given(secured))
    await asyncio.to_thread(await_broker, log, 30)  # the same settings serve librdkafka
    async with AIOKafkaProducer(**asyncio_config(log)) as producer:
        assert await producer.client.fetch_all_metadata()


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    security = {"security.protocol": "SSL", "ssl.certificate.location": str(tmp_path / "no.pem")}
    with pytest.raises(SettingsError, match=r"no\.pem"):
        asyncio_config(LogSettings(bootstrap="kafka:9092", security=security))


def test_a_way_to_log_in_that_the_collector_lacks_is_an_error_that_names_the_others() -> None:
    security = {"security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER"}
    with pytest.raises(SettingsError, match=r"'OAUTHBEARER'.*SCRAM-SHA-512"):
        asyncio_config(LogSettings(bootstrap="kafka:9092", security=security))


def test_an_open_kafka_is_asked_for_nothing() -> None:
    config = asyncio_config(LogSettings(bootstrap="kafka:9092"))
    assert config["security_protocol"] == "PLAINTEXT"
    assert "ssl_context" not in config
