"""Description of a Kafka topic source."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import ClassVar

from millstream.connectors.source_description import SourceDescription
from millstream.connectors.source_options import named_pair, pairs

_SERVER = re.compile(r"(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9._-]+):[0-9]{1,5}")
_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")
_SECURITY = ("security.", "sasl.", "ssl.", "enable.ssl.")
_STARTS = ("beginning", "end")


@dataclass(frozen=True, slots=True)
class KafkaTopicSource(SourceDescription):
    """Each record of a topic is one event; after a restart, every partition is resumed.

    `security` uses librdkafka's names (`security.protocol`, `sasl.*`, `ssl.*`). `start` is where
    the first read begins: at the `beginning` of the topic, or at its `end`.
    """

    kind: ClassVar[str] = "kafka"
    reader: ClassVar[str] = "KafkaTopicReader"
    example: ClassVar[str] = "KafkaTopicSource('host:9092', 'topic')"
    sql_example: ClassVar[str] = "(kind = 'kafka', bootstrap = 'host:9092', topic = 'topic')"

    bootstrap: str
    topic: str
    security: dict[str, str] = field(default_factory=dict, hash=False, repr=False)
    start: str = "beginning"

    def __post_init__(self) -> None:
        object.__setattr__(self, "security", pairs(self.security, "="))

    @property
    def address(self) -> str:
        return f"kafka://{self.bootstrap}/{self.topic}"

    def problem(self) -> str | None:
        servers = self.bootstrap.split(",") if isinstance(self.bootstrap, str) else [""]
        if not all(_SERVER.fullmatch(server.strip()) for server in servers):
            return f"has a source with bootstrap={self.bootstrap!r}, which is not host:port"
        if not isinstance(self.topic, str) or not _TOPIC.fullmatch(self.topic):
            return f"has a source with topic={self.topic!r}, which is not the name of a topic"
        if self.start not in _STARTS:
            return f"has a source with start={self.start!r}, which is neither of {_STARTS}"
        for name, value in self.security.items():
            if not name.startswith(_SECURITY):
                named = named_pair(name, value)
                return f"has a source with {named} in security, which is not a security setting"
        return None
