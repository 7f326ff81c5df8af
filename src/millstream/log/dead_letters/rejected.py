"""Rejected events: they did not fit their stream's schema."""

from __future__ import annotations

from typing import Any

from millstream.log.dead_letters.topic import Kind, TopicLetter
from millstream.log.topic_names import rejected_topic
from millstream.values.event import FIELD, REASON


class Rejected(TopicLetter):
    """An event as it was received, and why it was not accepted."""

    __slots__ = ()

    @property
    def reason(self) -> str:
        return self.headers.get(REASON, "")

    @property
    def details(self) -> dict[str, Any]:
        return {"field": self.headers.get(FIELD, ""), "headers": self.headers}

    @property
    def facts(self) -> dict[str, str]:
        return {name: text for name, text in self.headers.items() if name not in (REASON, FIELD)}


REJECTED = Kind("rejected", Rejected, rejected_topic, ("replay",))
