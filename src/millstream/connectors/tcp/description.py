"""Descriptions of TCP sources: a server to connect to, or a port for clients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from millstream.connectors.source_description import SourceDescription, url_problem
from millstream.connectors.source_options import (
    duration_problem,
    networks_problem,
    number,
    number_problem,
    words,
)


@dataclass(frozen=True, slots=True)
class TcpLinesSource(SourceDescription):
    """Each line that a TCP server sends is one event.

    A server that sends nothing for `silence` counts as dead. Without `silence`, only a server whose
    machine is gone counts as dead.
    """

    kind: ClassVar[str] = "tcp_lines"
    reader: ClassVar[str] = "TcpLinesReader"
    schemes: ClassVar[tuple[str, ...]] = ("tcp", "tls")
    example: ClassVar[str] = "TcpLinesSource('tcp://host:9000')"
    sql_example: ClassVar[str] = "'tcp://host:9000'"

    url: str
    silence: str = ""

    def problem(self) -> str | None:
        return url_problem(
            self.url, self.schemes, "a TCP server with its port", only_port=True
        ) or duration_problem("silence", self.silence)


@dataclass(frozen=True, slots=True)
class TcpListener(SourceDescription):
    """Each line that a TCP client sends to this port is one event.

    A client that sends nothing for `idle` is disconnected. `allow` names the networks from which
    clients may connect, as in `10.0.0.0/8`; empty: any. There is no other authentication.
    """

    kind: ClassVar[str] = "tcp_listener"
    reader: ClassVar[str] = "TcpListenerReader"
    example: ClassVar[str] = "TcpListener('tcp://127.0.0.1:9000')"
    sql_example: ClassVar[str] = "(kind = 'tcp_listener', url = 'tcp://127.0.0.1:9000')"

    url: str
    max_connections: int = 100
    idle: str = "5 minutes"
    allow: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "max_connections", number(self.max_connections))
        object.__setattr__(self, "allow", words(self.allow))

    def problem(self) -> str | None:
        return (
            url_problem(self.url, ("tcp",), "a TCP port to listen on", only_port=True)
            or number_problem("max_connections", self.max_connections)
            or duration_problem("idle", self.idle)
            or networks_problem("allow", self.allow)
        )
