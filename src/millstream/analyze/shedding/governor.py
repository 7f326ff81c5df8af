"""Decides which share of its input a view reads: less while it can't keep up, then all of it again.

A view sheds if events have waited for longer than it allows, for about as long again, and it will
not catch up by itself. The new share is such that it would catch up within that time, by its
measured speed and the arrival rate, with a margin. When it has been within its limit for as long,
the share grows to what it can process, and to all once that is as much as arrives.

A view that just started, or replays the log, gets the time that this takes: it sheds only if it
falls further behind. The same goes for a query that was restarted, because it failed or because its
share changed: events that arrived while it stood still do not show a lack of speed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Protocol

from millstream.analyze.monitor.lag import ViewLag
from millstream.analyze.plan import ViewPlan
from millstream.analyze.recovery.shed_ranges import FULL_SHARE

_SHORTEST = 6.0  # seconds, at least, over which a rate is measured
_LONGEST = 30.0  # and at most, if the view advanced meanwhile
_MARGIN = 0.8
_SMALLEST = 10  # thousandths: a row of fewer events says little
_WORTHWHILE = 0.9, 1.3  # smaller changes of a share are not worth a restart of the query
_PROBE_SECONDS = 1800.0  # after which the full share is tried again: the cause may be gone


class Governor:
    """Decides for one view, which may be `allowed` seconds behind."""

    def __init__(self, allowed: float) -> None:
        self._allowed = allowed
        self._seen: deque[ViewLag] = deque()  # the last ones
        # The measurements in which it had advanced, while it is overdue, and one before: it was
        # busy between them. In micro-batches it advances when a batch has ended.
        self._steps: deque[ViewLag] = deque()
        self._speed: float | None = None  # events a second that it can process
        self._overdue: float | None = None  # since when events wait for too long
        self._within: float | None = None  # since when none does
        self._was_within = False
        self._changed: float | None = None  # when its share last changed, or it was first seen
        self._stopped: float | None = None  # since when its query does not run
        self._restart = 0.0  # seconds that its query last did not run
        self._is_back = True  # since then, there was a moment when no event waited for too long
        self._possible = 0  # the share that was possible at the last measurement

    def decide(self, lag: ViewLag, share: int, since: int) -> int | None:
        """The share to change to, in thousandths; None: no change.

        `since` is the sum of the offsets from which on the present share applies.
        """
        if lag.read < since:  # it still reads events of the former share
            self._forget()
            return None
        if lag.at == (self._seen[-1].at if self._seen else self._stopped):
            return None
        has_advanced = self._remember(lag)
        first, seconds = self._seen[0], lag.at - self._seen[0].at
        if seconds < _SHORTEST:
            return None
        arrival = (lag.end - first.end) / seconds
        # A change of the share repeats the current batch: so change it when that is smallest.
        wanted = self._smaller(lag, share, arrival) if has_advanced else None
        if wanted is None:
            wanted = self._larger(lag, share, arrival)
        if wanted is not None:
            self._changed = lag.at
            self.stopped(lag.at)
        return wanted

    def stopped(self, now: float) -> None:
        """The view's query does not run."""
        if self._stopped is None:
            self._stopped, self._is_back = now, False
            self._forget()

    def _forget(self) -> None:
        self._seen.clear()
        self._steps.clear()
        self._overdue = self._within = None
        self._possible = 0

    @property
    def _term(self) -> float:
        """Seconds that a condition must hold: the allowed time, or that of a restart."""
        return max(_SHORTEST, self._allowed, min(_LONGEST, self._restart))

    def _remember(self, lag: ViewLag) -> bool:
        """Add the measurement; return whether the view has advanced."""
        if self._changed is None:
            self._changed = lag.at
        if self._stopped is not None:
            self._restart, self._stopped = lag.at - self._stopped, None
        has_advanced = bool(self._seen) and lag.read > self._seen[-1].read
        self._seen.append(lag)
        while len(self._seen) > 2 and lag.at - self._seen[1].at >= min(_LONGEST, self._term):
            self._seen.popleft()
        self._note_step(lag, has_advanced)
        if lag.overdue:
            self._overdue, self._within = lag.at if self._overdue is None else self._overdue, None
        else:
            self._overdue, self._within = None, lag.at if self._within is None else self._within
            self._was_within = self._is_back = True
        return has_advanced

    def _note_step(self, lag: ViewLag, has_advanced: bool) -> None:
        # Without a backlog the view waits for events, and how long it was busy is unknown.
        if not lag.overdue and (has_advanced or not lag.behind):
            self._steps.clear()
        if has_advanced and lag.behind:
            self._steps.append(lag)
        while len(self._steps) > 2 and lag.at - self._steps[1].at >= _LONGEST:
            self._steps.popleft()

    def _smaller(self, lag: ViewLag, share: int, arrival: float) -> int | None:
        if self._overdue is None:
            return None
        first, seconds = self._steps[0], lag.at - self._steps[0].at
        if seconds < _SHORTEST:
            return None
        speed = (lag.read - first.read) / seconds
        self._speed, gain = speed * share / FULL_SHARE, speed - arrival
        if lag.at - self._overdue < min(_LONGEST, self._term):
            return None
        if gain > 0 and lag.behind / gain <= self._patience:
            return None
        # The time in which it should catch up, and the events to process until then.
        within = self._allowed + self._restart
        wanted = self._speed * _MARGIN / (arrival + (lag.behind + arrival * self._restart) / within)
        least = max(_SMALLEST, min(FULL_SHARE, int(wanted * FULL_SHARE)))
        return least if least < share * _WORTHWHILE[0] else None

    @property
    def _patience(self) -> float:
        """Seconds that it may take to catch up."""
        if not self._was_within:
            return float("inf")
        if self._is_back:
            return self._allowed
        # With only the margin to spare, the events of a restart take this long to process.
        return self._allowed + self._restart / (1 - _MARGIN)

    def _larger(self, lag: ViewLag, share: int, arrival: float) -> int | None:
        if share == FULL_SHARE or self._within is None or lag.at - self._within < self._term:
            return None
        assert self._changed is not None
        if self._speed is None or not arrival or lag.at - self._changed > _PROBE_SECONDS:
            return FULL_SHARE
        most = min(FULL_SHARE, int(self._speed * _MARGIN / arrival * FULL_SHARE))
        still_grows = most > self._possible  # as after a burst: wait until it is stable
        self._possible = most
        if most == FULL_SHARE or (most > share * _WORTHWHILE[1] and not still_grows):
            return most
        return None


class SharedQueries(Protocol):
    """Queries whose shares can be changed."""

    def share_of(self, view: str) -> tuple[int, int] | None: ...

    def change_share(self, view: str, share: int) -> None: ...


class LagSource(Protocol):
    """Knows how far views are behind."""

    def of(self, view: str) -> ViewLag | None: ...


class Shedding:
    """Changes the shares of all views that may shed. Call `tick` every second or so."""

    def __init__(self, queries: SharedQueries, lags: LagSource) -> None:
        self._queries, self._lags = queries, lags
        self._governors: dict[str, Governor] = {}

    def tick(self, plans: Iterable[ViewPlan]) -> None:
        for plan in plans:
            if plan.sheds_after_ms is None:
                continue
            taken, lag = self._queries.share_of(plan.name), self._lags.of(plan.name)
            governor = self._governors.get(plan.topic)
            if lag is None or (taken is None and governor is None):
                continue
            if governor is None:
                governor = self._governors[plan.topic] = Governor(plan.sheds_after_ms / 1000)
            if taken is None:
                governor.stopped(lag.at)
            elif (wanted := governor.decide(lag, *taken)) is not None:
                self._queries.change_share(plan.name, wanted)
