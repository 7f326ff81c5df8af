"""What share of its input a view takes: less while it can't keep up, all of it when it can again.

A view sheds when events have waited for it longer than it allows for about as long again, and it is
not about to catch up by itself. The share is such that it would be back within that time, by how
much it was seen to manage and how much comes; a part of that is left as a margin. When it has been
back for as long, it takes as much as it manages, and all of it once that is as much as comes.

A view that only just starts, or replays the log, is given the time that takes: it sheds only if it
falls further behind. So is one whose query was started anew, because it had failed or was to take
another share: how long it stood still is seen, and that much came meanwhile is no lack of pace.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Protocol

from millstream.analyze.monitor.lag import Lag
from millstream.analyze.plan import ViewPlan
from millstream.analyze.recovery.shed_ranges import FULL_SHARE

_LOOK = 6.0  # seconds, at least, that a rate is taken from
_SPAN = 30.0  # and at most, if the view has got on in them
_MARGIN = 0.8
_LEAST = 10  # thousandths: a row of fewer events says little
_WORTHWHILE = 0.9, 1.3  # by less than that, no share is changed: a query is started anew for it
_PROBE = 1800.0  # seconds after which all is tried again: what kept the view busy may be gone


class Governor:
    """Decides for one view; `allowed` is how many seconds it may be behind."""

    def __init__(self, allowed: float) -> None:
        self._allowed = allowed
        self._seen: deque[Lag] = deque()  # the last ones
        # When it was seen to have got on, as long as it is overdue, and once before that: from one
        # to another it was busy. In micro-batches that is when a batch has ended.
        self._steps: deque[Lag] = deque()
        self._pace: float | None = None  # events a second that it manages
        self._overdue: float | None = None  # since when events wait for too long
        self._within: float | None = None  # since when none does
        self._was_within = False
        self._turned: float | None = None  # when its share was last changed, or it was first seen
        self._stood: float | None = None  # since when it stands still, to be started anew
        self._restart = 0.0  # seconds that it last stood still
        self._is_back = True  # since then, there was a moment when nothing waited for too long
        self._most = 0  # what it could have been turned to at the last look

    def judge(self, lag: Lag, share: int, since: int) -> int | None:
        """The share to turn to, in thousandths; None: none.

        `since` are the offsets, added up, from which on it takes the share that it takes.
        """
        if lag.read < since:  # it is still at what came before that
            self._forget()
            return None
        if lag.at == (self._seen[-1].at if self._seen else self._stood):
            return None
        has_got_on = self._remember(lag)
        first, seconds = self._seen[0], lag.at - self._seen[0].at
        if seconds < _LOOK:
            return None
        arrival = (lag.end - first.end) / seconds
        # What a query does at the moment it does again after a turn: so turn when that is least.
        wanted = self._less(lag, share, arrival) if has_got_on else None
        if wanted is None:
            wanted = self._more(lag, share, arrival)
        if wanted is not None:
            self._turned = lag.at
            self.stand(lag.at)
        return wanted

    def stand(self, now: float) -> None:
        """Its query does not run."""
        if self._stood is None:
            self._stood, self._is_back = now, False
            self._forget()

    def _forget(self) -> None:
        self._seen.clear()
        self._steps.clear()
        self._overdue = self._within = None
        self._most = 0

    @property
    def _term(self) -> float:
        """How many seconds something must be so: as long as is allowed, or as a restart takes."""
        return max(_LOOK, self._allowed, min(_SPAN, self._restart))

    def _remember(self, lag: Lag) -> bool:
        """Whether the view has got on."""
        if self._turned is None:
            self._turned = lag.at
        if self._stood is not None:
            self._restart, self._stood = lag.at - self._stood, None
        has_got_on = bool(self._seen) and lag.read > self._seen[-1].read
        self._seen.append(lag)
        while len(self._seen) > 2 and lag.at - self._seen[1].at >= min(_SPAN, self._term):
            self._seen.popleft()
        self._note_step(lag, has_got_on)
        if lag.overdue:
            self._overdue, self._within = lag.at if self._overdue is None else self._overdue, None
        else:
            self._overdue, self._within = None, lag.at if self._within is None else self._within
            self._was_within = self._is_back = True
        return has_got_on

    def _note_step(self, lag: Lag, has_got_on: bool) -> None:
        # Where nothing is left, it waits, and nobody knows for how long it was busy.
        if not lag.overdue and (has_got_on or not lag.behind):
            self._steps.clear()
        if has_got_on and lag.behind:
            self._steps.append(lag)
        while len(self._steps) > 2 and lag.at - self._steps[1].at >= _SPAN:
            self._steps.popleft()

    def _less(self, lag: Lag, share: int, arrival: float) -> int | None:
        if self._overdue is None:
            return None
        first, seconds = self._steps[0], lag.at - self._steps[0].at
        if seconds < _LOOK:
            return None
        speed = (lag.read - first.read) / seconds
        self._pace, gain = speed * share / FULL_SHARE, speed - arrival
        if lag.at - self._overdue < min(_SPAN, self._term):
            return None
        if gain > 0 and lag.behind / gain <= self._patience:
            return None
        # By when it could be back, and what there is to be done until then.
        within = self._allowed + self._restart
        wanted = self._pace * _MARGIN / (arrival + (lag.behind + arrival * self._restart) / within)
        least = max(_LEAST, min(FULL_SHARE, int(wanted * FULL_SHARE)))
        return least if least < share * _WORTHWHILE[0] else None

    @property
    def _patience(self) -> float:
        """Seconds that it may take to be back."""
        if not self._was_within:
            return float("inf")
        if self._is_back:
            return self._allowed
        # With no more to spare than the margin, what came in a restart takes so long to work off.
        return self._allowed + self._restart / (1 - _MARGIN)

    def _more(self, lag: Lag, share: int, arrival: float) -> int | None:
        if share == FULL_SHARE or self._within is None or lag.at - self._within < self._term:
            return None
        assert self._turned is not None
        if self._pace is None or not arrival or lag.at - self._turned > _PROBE:
            return FULL_SHARE
        most = min(FULL_SHARE, int(self._pace * _MARGIN / arrival * FULL_SHARE))
        still_grows, self._most = most > self._most, most  # as when a rush has ended: wait for it
        if most == FULL_SHARE or (most > share * _WORTHWHILE[1] and not still_grows):
            return most
        return None


class Turnable(Protocol):
    """Queries whose shares can be changed."""

    def share_of(self, view: str) -> tuple[int, int] | None: ...

    def change_share(self, view: str, share: int) -> None: ...


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
            governor = self._governors.get(plan.topic)
            if lag is None or (taken is None and governor is None):
                continue
            if governor is None:
                governor = self._governors[plan.topic] = Governor(plan.sheds_after_ms / 1000)
            if taken is None:
                governor.stand(lag.at)
            elif (wanted := governor.judge(lag, *taken)) is not None:
                self._queries.change_share(plan.name, wanted)
