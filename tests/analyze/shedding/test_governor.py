"""When a view sheds and how much, with simulated queues."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable

import pytest

from millstream.analyze.monitor.lag import ViewLag
from millstream.analyze.shedding.governor import Governor

STEP = 0.25  # seconds
MEASURED = 2.0  # seconds from one measurement to the next
RESTART = 8.0  # seconds that a query does not run when its share changes
OVERHEAD = 0.5  # seconds that a batch takes besides its events
AT_ONCE = 20_000


class Queue:
    """A view that can process `pace` events a second, while `arrival(time)` arrive.

    With `in_batches` it advances only when a batch has ended. A batch that runs when the share
    changes is repeated with the former share.
    """

    def __init__(
        self,
        pace: float,
        arrival: Callable[[float], float],
        *,
        allowed: float = 30.0,
        behind: int = 0,
        in_batches: bool = False,
        restart: float = RESTART,
        fails: tuple[float, float] = (0.0, 0.0),
    ) -> None:
        self._pace, self._arrival, self._allowed = pace, arrival, allowed
        self._governor = Governor(allowed)
        self._read, self._end, self._share, self._since = 0.0, float(behind), 1000, 0.0
        self._times, self._ends = [-1000.0], [float(behind)]  # how much had come by when
        self._in_batches, self._restart, self._fails = in_batches, restart, fails
        self._batch: tuple[float, float, float] | None = None  # up to where, how long, when it ends
        self._stands_until = 0.0
        self._measured = -MEASURED
        self.changes: list[tuple[float, int]] = []
        self.overdue_since: float | None = None
        self.most_overdue = 0.0

    def run(self, start: float, stop: float) -> int:
        """Run from start to stop; the share at the end."""
        for step in range(round((stop - start) / STEP)):
            self._step(start + step * STEP)
        return self._share

    def _step(self, now: float) -> None:
        self._end += self._arrival(now) * STEP
        self._times.append(now)
        self._ends.append(self._end)
        if now < self._stands_until or self._fails[0] <= now < self._fails[1]:
            self._governor.stopped(now)
            return
        if self._in_batches:
            self._work_in_batches(now)
        else:
            self._read = min(self._end, self._read + self._pace * 1000 / self._share * STEP)
        if now - self._measured >= MEASURED:
            self._measured = now
            self._measure(now)

    def _work_in_batches(self, now: float) -> None:
        if self._batch is None and self._end - self._read >= 1:
            stop = min(self._end, self._read + AT_ONCE)
            length = OVERHEAD + (stop - self._read) * self._share / 1000 / self._pace
            self._batch = stop, length, now + length
        elif self._batch is not None and now >= self._batch[2]:
            self._read, self._batch = self._batch[0], None

    def _measure(self, now: float) -> None:
        due = self._ends[bisect_right(self._times, now - self._allowed) - 1]
        overdue = max(0.0, due - self._read)
        self.most_overdue = max(self.most_overdue, overdue)
        if overdue and self.overdue_since is None:
            self.overdue_since = now
        behind = int(self._end - self._read)
        lag = ViewLag(behind, 0.0, "", None, int(self._read), int(self._end), int(overdue), now)
        wanted = self._governor.decide(lag, self._share, int(self._since))
        if wanted is not None:
            self.changes.append((now, wanted))
            self._share, self._since = wanted, self._read
            self._stands_until = now + self._restart
            if self._batch is not None:
                stop, length, _ = self._batch
                self._since, self._batch = stop, (stop, length, self._stands_until + length)


def steady(rate: float) -> Callable[[float], float]:
    return lambda now: rate


def test_a_view_that_keeps_up_reads_everything() -> None:
    queue = Queue(pace=1000, arrival=steady(900))
    assert queue.run(0, 3600) == 1000
    assert queue.changes == []


@pytest.mark.parametrize("rate", [1500, 4000, 20_000])
def test_an_overloaded_view_reads_as_much_as_it_can_process(rate: int) -> None:
    queue = Queue(pace=1000, arrival=steady(rate))
    share = queue.run(0, 900)
    assert 0.3 * 1000 / rate <= share / 1000 <= 1000 / rate
    queue.most_overdue = 0.0
    queue.run(900, 1100)
    assert queue.most_overdue == 0  # it stays within what it allows
    assert len(queue.changes) <= 15


def test_after_a_burst_a_view_reads_everything_again() -> None:
    queue = Queue(pace=1000, arrival=lambda now: 3000 if 100 <= now < 300 else 300)
    assert queue.run(0, 300) < 1000
    assert queue.run(300, 500) == 1000
    changes = len(queue.changes)
    assert changes <= 6
    queue.run(500, 3600)
    assert len(queue.changes) == changes


def test_a_short_burst_causes_no_shedding() -> None:
    queue = Queue(pace=1000, arrival=lambda now: 20_000 if 100 <= now < 104 else 100)
    assert queue.run(0, 600) == 1000
    assert [share for _, share in queue.changes if share < 1000] == []


def test_a_replay_sheds_only_if_it_falls_further_behind() -> None:
    replay = Queue(pace=1000, arrival=steady(800), behind=500_000)
    assert replay.run(0, 2000) == 1000
    assert replay.changes == []
    hopeless = Queue(pace=1000, arrival=steady(2000), behind=500_000)
    assert hopeless.run(0, 60) < 1000


@pytest.mark.parametrize("in_batches", [False, True])
@pytest.mark.parametrize("allowed", [5.0, 10.0, 30.0])
def test_the_less_a_view_may_be_behind_the_sooner_it_sheds(
    allowed: float, in_batches: bool
) -> None:
    queue = Queue(1000, steady(2500), allowed=allowed, in_batches=in_batches)
    assert queue.run(0, 150) < 1000
    assert queue.overdue_since is not None
    # One that is amid a batch, which it would have to do again, is let end it.
    patience = max(6.0, allowed) * (2.5 if in_batches else 1) + 2 * MEASURED
    assert queue.changes[0][0] - queue.overdue_since <= patience


@pytest.mark.parametrize("in_batches", [False, True])
@pytest.mark.parametrize("restart", [3.0, 8.0, 20.0])
def test_a_long_restart_is_not_taken_for_a_slow_view(restart: float, in_batches: bool) -> None:
    queue = Queue(1000, steady(3000), allowed=5.0, restart=restart, in_batches=in_batches)
    share = queue.run(0, 900)
    assert 0.3 * 1000 / 3000 <= share / 1000 <= 1000 / 3000
    assert len(queue.changes) <= 4
    changes = len(queue.changes)
    queue.run(900, 1800)
    assert len(queue.changes) == changes


def test_a_failed_query_that_restarts_is_not_taken_for_a_slow_view() -> None:
    queue = Queue(1000, steady(700), allowed=5.0, fails=(100.0, 120.0))
    assert queue.run(0, 600) == 1000
    assert queue.changes == []
    assert queue.overdue_since == 120


@pytest.mark.parametrize("in_batches", [False, True])
@pytest.mark.parametrize("allowed", [5.0, 30.0])
@pytest.mark.parametrize("length", [100, 1000])
def test_when_a_burst_ends_a_view_soon_reads_everything_in_one_step(
    length: int, allowed: float, in_batches: bool
) -> None:
    queue = Queue(
        *(1000, lambda now: 3000 if 100 <= now < 100 + length else 0),
        allowed=allowed,
        in_batches=in_batches,
    )
    assert queue.run(0, 100 + length) < 1000
    during = len(queue.changes)
    assert queue.run(100 + length, 1000 + length) == 1000
    assert len(queue.changes) == during + 1
    assert queue.changes[-1][0] - (100 + length) <= 2 * max(allowed, RESTART) + 15


def test_the_speed_of_slow_batches_is_measured_over_whole_batches() -> None:
    queue = Queue(100, steady(130), allowed=5.0, in_batches=True)
    share = queue.run(0, 600)
    assert 0.3 * 100 / 130 <= share / 1000 <= 100 / 130
    assert len(queue.changes) <= 6
