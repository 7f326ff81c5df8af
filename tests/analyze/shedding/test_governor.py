"""When a view sheds and how much, over queues that are worked off by arithmetic."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from millstream.analyze.lag import Lag
from millstream.analyze.shedding.governor import Governor

ALLOWED = 30.0
STEP = 2.0  # seconds from one measurement to the next
RESTART = 8.0  # seconds that a query stands still when its share is changed


class Queue:
    """A view that manages `pace` events a second, of which `arrival(time)` come."""

    def __init__(self, pace: float, arrival: Callable[[float], float], behind: int = 0) -> None:
        self._pace, self._arrival = pace, arrival
        self._governor = Governor(ALLOWED)
        self._read, self._end, self._share, self._since = 0.0, float(behind), 1000, 0
        self._ends = [(-1000.0, float(behind))]  # how much had come by when
        self._stands_until = 0.0
        self.turns: list[tuple[float, int]] = []
        self.most_overdue = 0.0

    def run(self, start: float, stop: float) -> int:
        """The share that it takes in the end."""
        now = start
        while now < stop:
            self._step(now)
            now += STEP
        return self._share

    def _step(self, now: float) -> None:
        self._end += self._arrival(now) * STEP
        self._ends.append((now, self._end))
        if now < self._stands_until:  # nobody is asked about a query that does not run
            return
        self._read = min(self._end, self._read + self._pace * 1000 / self._share * STEP)
        due = max(end for at, end in self._ends if at <= now - ALLOWED or at < 0)
        overdue = max(0.0, due - self._read)
        self.most_overdue = max(self.most_overdue, overdue)
        behind = int(self._end - self._read)
        lag = Lag(behind, 0.0, "", None, int(self._read), int(self._end), int(overdue), now)
        wanted = self._governor.judge(lag, self._share, self._since)
        if wanted is not None:
            self.turns.append((now, wanted))
            self._share, self._since = wanted, int(self._read) if wanted < 1000 else 0
            self._stands_until = now + RESTART


def steady(rate: float) -> Callable[[float], float]:
    return lambda now: rate


def test_a_view_that_keeps_up_takes_all() -> None:
    queue = Queue(pace=1000, arrival=steady(900))
    assert queue.run(0, 3600) == 1000
    assert queue.turns == []


@pytest.mark.parametrize("rate", [1500, 4000, 20_000])
def test_a_view_that_gets_more_than_it_manages_takes_what_it_manages(rate: int) -> None:
    queue = Queue(pace=1000, arrival=steady(rate))
    share = queue.run(0, 900)
    assert 0.3 * 1000 / rate <= share / 1000 <= 1000 / rate
    queue.most_overdue = 0.0
    queue.run(900, 1100)
    assert queue.most_overdue == 0  # it stays within what it allows
    assert len(queue.turns) <= 15


def test_after_a_rush_it_takes_all_again_and_stays_so() -> None:
    queue = Queue(pace=1000, arrival=lambda now: 3000 if 100 <= now < 300 else 300)
    assert queue.run(0, 300) < 1000
    assert queue.run(300, 500) == 1000
    turns = len(queue.turns)
    assert turns <= 6
    queue.run(500, 3600)
    assert len(queue.turns) == turns


def test_a_short_rush_that_it_works_off_by_itself_costs_nothing() -> None:
    queue = Queue(pace=1000, arrival=lambda now: 20_000 if 100 <= now < 104 else 100)
    assert queue.run(0, 600) == 1000
    assert [share for _, share in queue.turns if share < 1000] == []


def test_a_replay_is_given_its_time_unless_it_falls_further_behind() -> None:
    replay = Queue(pace=1000, arrival=steady(800), behind=500_000)
    assert replay.run(0, 2000) == 1000
    assert replay.turns == []
    hopeless = Queue(pace=1000, arrival=steady(2000), behind=500_000)
    assert hopeless.run(0, 60) < 1000
