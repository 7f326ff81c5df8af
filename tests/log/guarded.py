"""A real broker with a second door that asks for a password."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

from millstream.log.broker import Broker
from millstream.log.settings import LogSettings

_PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"


@contextlib.contextmanager
def guarded_broker(home: Path) -> Iterator[Callable[[str], LogSettings]]:
    """How to log in as ann with a given password; `right` is the right one."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    properties = {
        "listeners": f"GUARDED://{address}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,"
        "GUARDED:SASL_PLAINTEXT",
        "listener.name.guarded.sasl.enabled.mechanisms": "PLAIN",
        "listener.name.guarded.plain.sasl.jaas.config": f'{_PLAIN} required user_ann="right";',
    }

    def as_ann(password: str) -> LogSettings:
        login = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN"}
        login |= {"sasl.username": "ann", "sasl.password": password}
        return LogSettings(bootstrap=address, security=login)

    with Broker(home, properties=properties):
        yield as_ann
