"""The events that no window takes: too late for it, dated in the future, or without a time."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from millstream.event import LATE_BY, LATE_ERROR, LATE_REASON, LATE_VIEWS
from millstream.log.held import find_app
from millstream.log.set_aside import SetAside, read_all, read_place
from millstream.log.settings import LogSettings
from millstream.log.topics import late_topic


class Late(SetAside):
    """An event as it came, how late it was, and which windows it missed."""

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
        """Per view, the start and end of each window that it is not in."""
        try:
            found: Any = json.loads(self.headers.get(LATE_VIEWS, "{}"))
        except ValueError:
            return {}
        return found if isinstance(found, dict) else {}

    @property
    def reason(self) -> str:
        """In words."""
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


def app_with(log: LogSettings, stream: str, app: str = "") -> str:
    """The name of the pipeline that has such a stream; MillstreamError if not exactly one has.

    If `app` was asked for, it is that one, or an error.
    """
    return find_app(log, "late", stream, "stream", app=app)


def read_late(log: LogSettings, app: str, stream: str, since: int = 0) -> Iterator[Late]:
    """All that are still held, from a moment (milliseconds since the epoch) on; blocks."""
    return read_all(log, late_topic(app, stream), stream, Late, since)


def find_late(
    log: LogSettings, app: str, stream: str, identity: tuple[str, int, int], since: int
) -> list[Late]:
    """Where the event of that identity is among them; it was received at `since`; blocks.

    Once if it was late, and once for each view whose query fails on it.
    """
    return [one for one in read_late(log, app, stream, since) if one.identity == identity]


def read_one(log: LogSettings, app: str, stream: str, partition: int, offset: int) -> Late:
    """The one at that place; MillstreamError if it is not held there."""
    place = (stream, partition, offset)
    return read_place(log, late_topic(app, stream), Late, place, "late")


def _span(windows: list[list[str]]) -> str:
    first, last = windows[0][0], windows[-1][-1]
    return f"[{first}, {last})" if len(windows) == 1 else f"({len(windows)} windows to {last})"


def _seconds(milliseconds: int) -> str:
    return f"{milliseconds / 1000:,.3f} s"
