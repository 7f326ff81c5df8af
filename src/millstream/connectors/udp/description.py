"""Description of a UDP source."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from millstream.connectors.source_description import SourceDescription, url_problem
from millstream.connectors.source_options import networks_problem, words


@dataclass(frozen=True, slots=True)
class UdpSource(SourceDescription):
    """Each datagram is one event, or an array or lines of events. UDP does not resend lost ones.

    `allow` names the networks from which datagrams are accepted, as in `10.0.0.0/8`; empty: any.
    (A sender can forge its address.)
    """

    kind: ClassVar[str] = "udp"
    reader: ClassVar[str] = "UdpReader"
    schemes: ClassVar[tuple[str, ...]] = ("udp",)
    example: ClassVar[str] = "UdpSource('udp://127.0.0.1:9000')"
    sql_example: ClassVar[str] = "'udp://127.0.0.1:9000'"

    url: str
    allow: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "allow", words(self.allow))

    def problem(self) -> str | None:
        return url_problem(
            self.url, self.schemes, "a UDP port to listen on", only_port=True
        ) or networks_problem("allow", self.allow)
