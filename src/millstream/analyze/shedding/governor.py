"""What share of its input a view takes: less while it can't keep up, all of it when it can again.

A view sheds when events wait for it longer than it allows, and it is not about to catch up by
itself. The share is such that it would be back within that time, by how much it was seen to manage
and how much comes; a part of that is left as a margin. When it has been back for as long, it takes
as much as it manages, and all of it once that is as much as comes. A view that only just starts, or
replays the log, is given the time that takes: it sheds only if it falls further behind.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Protocol

from millstream.analyze.lag import Lag
from millstream.analyze.plan import ViewPlan
from millstream.analyze.shedding.ranges import WHOLE

_LOOK = 6.0  # seconds, at least, that rates are taken from
_SPAN = 30.0  # and at most, if the view has got on in them
_MARGIN = 0.8
_LEAST = 10  # thousandths: a row of fewer events says little
_WORTHWHILE = 0.9, 1.3  # by less than that, no share is changed: a query is started anew for it
_PROBE = 1800.0  # seconds after which all is tried again: what kept the view busy may be gone


class Governor:
    """Decides for one view; `allowed` is how many seconds it may be behind."""

    def __init__(self, allowed: float) -> None:
        self._allowed = allowed
        self._seen: deque[Lag] = deque()
        self._pace: float | None = None  # events a second that it manages
        self._within: float | None = None  # since when nothing waits for too long
        self._was_within = False
        self._turned = 0.0

    def judge(self, lag: Lag, share: int, since: int) -> int | None:
        """The share to turn to, in thousandths; None: none.

        `since` are the offsets, added up, from which on it takes the share that it takes.
        """
        if lag.read < since:  # it is still at what came before that
            self._seen.clear()
            return None
        if self._seen and self._seen[-1].at == lag.at:
            return None
        self._remember(lag)
        first, seconds = self._seen[0], lag.at - self._seen[0].at
        if seconds < _LOOK:
            return None
        speed, arrival = (lag.read - first.read) / seconds, (lag.end - first.end) / seconds
        if first.overdue and lag.overdue and speed:
            self._pace = speed * share / WHOLE
        wanted = self._less(lag, share, speed, arrival) or self._more(lag, share, arrival)
        if wanted is not None:
            self._seen.clear()
            self._within, self._turned = None, lag.at
        return wanted

    def _remember(self, lag: Lag) -> None:
        self._seen.append(lag)
        while len(self._seen) > 2 and lag.at - self._seen[1].at >= _SPAN:
            if self._seen[1].read == lag.read:
                break  # its batches take longer than that
            self._seen.popleft()
        if lag.overdue:
            self._within = None
        elif self._within is None:
            self._within, self._was_within = lag.at, True

    def _less(self, lag: Lag, share: int, speed: float, arrival: float) -> int | None:
        gain = speed - arrival
        patience = self._allowed if self._was_within else float("inf")
        if not lag.overdue or self._pace is None or (gain > 0 and lag.behind / gain <= patience):
            return None
        wanted = self._pace * _MARGIN / (arrival + lag.behind / self._allowed)
        least = max(_LEAST, min(WHOLE, int(wanted * WHOLE)))
        return least if least < share * _WORTHWHILE[0] else None

    def _more(self, lag: Lag, share: int, arrival: float) -> int | None:
        if share == WHOLE or self._within is None or lag.at - self._within < self._allowed:
            return None
        if self._pace is None or not arrival or lag.at - self._turned > _PROBE:
            return WHOLE
        most = min(WHOLE, int(self._pace * _MARGIN / arrival * WHOLE))
        return most if most == WHOLE or most > share * _WORTHWHILE[1] else None


class Turnable(Protocol):
    """Queries whose shares can be changed."""

    def share_of(self, view: str) -> tuple[int, int] | None: ...

    def turn(self, view: str, share: int) -> None: ...


class Measured(Protocol):
    """How far views are behind."""

    def of(self, view: str) -> Lag | None: ...


class Shedding:
    """Governs all views that may shed. Call `tick` every second or so."""

    def __init__(self, queries: Turnable, lags: Measured) -> None:
        self._queries, self._lags = queries, lags
        self._governors: dict[str, Governor] = {}

    def tick(self, plans: Iterable[ViewPlan]) -> None:
        for plan in plans:
            if plan.sheds_after_ms is None:
                continue
            taken, lag = self._queries.share_of(plan.name), self._lags.of(plan.name)
            if taken is None or lag is None:
                continue
            governor = self._governors.setdefault(plan.topic, Governor(plan.sheds_after_ms / 1000))
            if (wanted := governor.judge(lag, *taken)) is not None:
                self._queries.turn(plan.name, wanted)
