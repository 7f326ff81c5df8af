"""Late events, and events that are dated in the future, have no time or break a query."""

from __future__ import annotations

import json
from typing import Any

from millstream.log.dead_letters.topic import DeadLetterTopic, Kind, TopicLetter
from millstream.log.settings import LogSettings
from millstream.log.topic_names import late_topic
from millstream.values.event import LATE_BY, LATE_ERROR, LATE_REASON, LATE_VIEWS


class Late(TopicLetter):
    """An event as it was received, how late it was, and which windows it missed."""

    __slots__ = ()

    @property
    def kind(self) -> str:
        """`late`, `future` or `broken`."""
        return self.headers.get(LATE_REASON, "")

    @property
    def by_ms(self) -> int:
        text = self.headers.get(LATE_BY, "0")
        return int(text) if text.lstrip("-").isdigit() else 0

    @property
    def views(self) -> dict[str, list[list[str]]]:
        """Per view, the start and end of each window that lacks the event."""
        try:
            found: Any = json.loads(self.headers.get(LATE_VIEWS, "{}"))
        except ValueError:
            return {}
        return found if isinstance(found, dict) else {}

    @property
    def reason(self) -> str:
        where = ", ".join(
            f"{view} {_span(windows)}" if windows else view for view, windows in self.views.items()
        )
        match self.kind:
            case "late":
                return f"late by {_seconds(self.by_ms)} for {where}"
            case "future":
                return f"dated {_seconds(self.by_ms)} in the future; not in {where or 'any view'}"
            case "broken" if error := self.headers.get(LATE_ERROR):
                return f"the query of {where} fails on it: {error}"
            case "broken":
                return f"without a time; not in {where or 'any view'}"
        return self.kind

    @property
    def details(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "late_by_ms": self.by_ms,
            "views": self.views,
            "headers": self.headers,
        }


LATE = Kind("late", Late, late_topic)


def find_late(
    log: LogSettings, app: str, stream: str, identity: tuple[str, int, int], since: int
) -> list[Late]:
    """The late records of one event, which was received at `since`. Blocks.

    There is one if it was late, and one for each view whose query fails on it.
    """
    letters = DeadLetterTopic(LATE, log, app, stream).list(since)
    return [letter for letter in letters if letter.identity == identity]


def _span(windows: list[list[str]]) -> str:
    first, last = windows[0][0], windows[-1][-1]
    return f"[{first}, {last})" if len(windows) == 1 else f"({len(windows)} windows to {last})"


def _seconds(milliseconds: int) -> str:
    return f"{milliseconds / 1000:,.3f} s"
