"""The events that failed validation."""

from __future__ import annotations

from millstream.log.dead_letters.topic import SetAside, Shelf
from millstream.log.topic_names import rejected_topic
from millstream.values.event import FIELD, REASON


class Rejected(SetAside):
    """An event as it came, and why it was not accepted."""

    __slots__ = ()

    @property
    def reason(self) -> str:
        return self.headers.get(REASON, "")

    @property
    def field(self) -> str:
        return self.headers.get(FIELD, "")

    @property
    def facts(self) -> dict[str, str]:
        return {name: text for name, text in self.headers.items() if name not in (REASON, FIELD)}

    @property
    def details(self) -> dict[str, str]:
        return {"field": self.field}


REJECTED = Shelf("rejected", Rejected, rejected_topic)
