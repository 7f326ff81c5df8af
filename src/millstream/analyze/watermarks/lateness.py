"""Rules by which a view decides which events of a stream are too late for it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from millstream.analyze.plan import ViewPlan
from millstream.analyze.windows.window_spec import Window, WindowSpec


class LatenessRule(NamedTuple):
    """How a view decides which events of one stream are late."""

    view: str
    spec: WindowSpec | None  # by windows of their event time; None: by that time alone
    lateness_ms: int

    def closed_windows(self, time: int, watermark: int) -> list[Window] | None:
        """The windows that were closed when an event came; None: the event is not late.

        `watermark` is the one that the log has for the event. Without windows the event is late
        for every row: then the list is empty.
        """
        closed = watermark - self.lateness_ms
        if self.spec is None:
            return [] if closed >= time else None
        return [each for each in self.spec.assign(time) if closed >= each[1]] or None


def lateness_rules(views: Iterable[ViewPlan], stream: str) -> list[LatenessRule]:
    """The rules of the views that leave out late events of a stream."""
    rules = []
    for view in views:
        if stream in view.late_by_event_time:
            rules.append(LatenessRule(view.name, None, view.late_by_event_time[stream]))
            continue
        for spec in view.late_by_window:
            if stream in spec.lateness_by_stream:
                rules.append(LatenessRule(view.name, spec, spec.lateness_by_stream[stream]))
    return rules
