"""Description of an MQTT source."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar
from urllib.parse import unquote, urlsplit

from millstream.connectors.source_description import SourceDescription, url_problem
from millstream.connectors.source_options import (
    duration_problem,
    number,
    number_problem,
    seconds,
    words,
)

_MOST_IN_FLIGHT = 65_535
_SHARED = "$share/"
_LONGEST_FILTER = 65_535  # bytes


@dataclass(frozen=True, slots=True)
class MqttSource(SourceDescription):
    """Each message is one event (or an array, or lines); it is acknowledged when it is on disk.

    `topic` is one topic filter or several (`sensors/+/temperature`, `$share/group/sensors/#`); by
    default it is the path of the URL. While the collector is disconnected, the broker stores
    messages for `session_expiry`, under `client_id` (by default made from the stream's name). It
    sends at most `receive_maximum` messages that are not yet on disk.
    """

    kind: ClassVar[str] = "mqtt"
    reader: ClassVar[str] = "MqttReader"
    schemes: ClassVar[tuple[str, ...]] = ("mqtt", "mqtts")
    example: ClassVar[str] = "MqttSource('mqtt://host', 'sensors/#')"
    sql_example: ClassVar[str] = "'mqtt://host/sensors/#'"

    url: str = field(repr=False)
    topic: str | Sequence[str] = ""
    username: str = field(default="", repr=False)
    password: str = field(default="", repr=False)
    client_id: str = ""
    session_expiry: str = "1 day"
    receive_maximum: int | str = 100
    ca_file: str = ""  # trusted for mqtts:// instead of the system's authorities
    cert_file: str = ""  # client certificate, for a broker that requires one
    key_file: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "topic", words(self.topic) or words(_after_host(self.url)))
        object.__setattr__(self, "receive_maximum", number(self.receive_maximum))

    @property
    def address(self) -> str:
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}/{','.join(self.topic)}"

    @property
    def host(self) -> str:
        """The broker's name or address."""
        return urlsplit(self.url).hostname or ""

    @property
    def port(self) -> int:
        """The broker's port."""
        return urlsplit(self.url).port or (8883 if self.tls else 1883)

    @property
    def tls(self) -> bool:
        """Whether the connection is encrypted."""
        return urlsplit(self.url).scheme == "mqtts"

    @property
    def credentials(self) -> tuple[str, str]:
        """User and password, from the options or the URL; empty if there are none."""
        parts = urlsplit(self.url)
        return (
            self.username or unquote(parts.username or ""),
            self.password or unquote(parts.password or ""),
        )

    @property
    def session_seconds(self) -> int:
        """How long the broker keeps our session, in MQTT's 32 bits (the largest: for ever)."""
        return min(max(1, round(seconds(self.session_expiry) or 0)), 2**32 - 1)

    @property
    def shared(self) -> bool:
        """Whether the broker distributes the messages among the collectors of a group."""
        return any(topic.startswith(_SHARED) for topic in self.topic)

    def problem(self) -> str | None:
        if url := url_problem(self.url, self.schemes, "an MQTT broker"):
            return url
        if not self.topic:
            return "has an MQTT source without a topic"
        for topic in self.topic:
            if wrong := _filter_problem(topic):
                return f"has an MQTT source with topic={topic!r}, {wrong}"
        if bool(self.cert_file) != bool(self.key_file):
            return "has an MQTT source with only one of cert_file and key_file"
        if not self.tls and (self.ca_file or self.cert_file):
            return "has an MQTT source with certificates, but a URL without TLS (mqtts://)"
        if isinstance(self.receive_maximum, int) and self.receive_maximum > _MOST_IN_FLIGHT:
            return f"has a source with receive_maximum={self.receive_maximum}, beyond MQTT's 65535"
        return number_problem("receive_maximum", self.receive_maximum) or duration_problem(
            "session_expiry", self.session_expiry or "none"
        )


def without_group(topic: str) -> str:
    """A topic filter as messages must match it: `$share/group/a/#` is `a/#`."""
    return topic.split("/", 2)[2] if topic.startswith(_SHARED) else topic


def _after_host(url: object) -> str:
    # Not urlsplit's path: it would split at a topic's # and ?.
    if not isinstance(url, str) or "://" not in url:
        return ""
    return url.partition("://")[2].partition("/")[2]


def _filter_problem(topic: str) -> str | None:
    group, levels = "", topic.split("/")
    if topic.startswith(_SHARED):
        group, levels = topic.split("/")[1], topic.split("/")[2:]
        if not group or set("+#") & set(group) or levels in ([], [""]):
            return "which is not a shared subscription as '$share/group/sensors/#' is"
    if "\0" in topic or len(topic.encode(errors="replace")) > _LONGEST_FILTER:
        return "which MQTT does not allow"
    for index, level in enumerate(levels):
        if ("#" in level and (level != "#" or index != len(levels) - 1)) or (
            "+" in level and level != "+"
        ):
            return "whose wildcards are not whole levels (# only as the last)"
    return None
