"""Rates: how many changes a client gets, and which views refuse to leave some out."""

from __future__ import annotations

import pytest

from millstream.errors import QueryError
from millstream.serve.settings import ServeSettings
from millstream.serve.subscriptions import pace as pace_module
from millstream.serve.subscriptions.pace import KeyLimit, Pace, TokenBucket
from millstream.serve.views.served_view import ServedView
from millstream.store.views.ring import ViewChange
from millstream.values.view_description import ViewColumn, ViewDescription


class Clock:
    """A clock that the test advances."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def change(key: str, offset: int) -> ViewChange:
    return ViewChange(key, {"n": offset}, None, 0, offset, (offset + 1,), 0)


def test_a_bucket_gives_its_rate_and_makes_up_for_what_was_borrowed() -> None:
    clock = Clock()
    bucket = TokenBucket(10, 1, clock)
    assert bucket.wait() == 0
    bucket.take()
    assert bucket.wait() == pytest.approx(0.1)
    clock.now += 0.1
    assert bucket.wait() == 0
    bucket.take(11)
    assert bucket.wait() == pytest.approx(1.1)
    clock.now += 100
    bucket.take()
    assert bucket.wait() == pytest.approx(0.1), "unused time is not saved up"


def test_a_fast_key_waits_and_its_newest_change_is_due_then() -> None:
    clock = Clock()
    limit = KeyLimit(2, clock)
    assert limit.admit("a")
    assert not limit.admit("a")
    assert limit.admit("b")
    assert not limit.hold("a", change("a", 1), (1,))
    assert limit.hold("a", change("a", 3), (3,)), "it replaces the older one"
    assert limit.safe_offsets == (1,)
    assert limit.take() is None
    assert limit.wait() == pytest.approx(0.5)
    clock.now += 0.5
    assert limit.take() == change("a", 3)
    assert not limit.holds("a")
    assert limit.wait() is None
    assert not limit.admit("a"), "it was sent just now"


def test_held_changes_are_due_at_once_when_the_limit_changes() -> None:
    clock = Clock()
    old, new = KeyLimit(0.01, clock), KeyLimit(0.01, clock)
    old.admit("a")
    old.hold("a", change("a", 1), (1,))
    new.take_over(old)
    assert new.take() == change("a", 1)


def test_the_keys_that_are_remembered_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pace_module, "MAX_KEYS", 3)
    limit = KeyLimit(1, Clock())
    for key in "abcd":
        assert limit.admit(key)
    assert len(limit._sent) == 3
    for offset, key in enumerate("bcd"):
        limit.hold(key, change(key, offset), (offset,))
    assert limit.is_full


@pytest.mark.parametrize("accumulation", ["discard", "retract"])
@pytest.mark.parametrize(
    "pace", [Pace("conflate"), Pace("sample", sample=1), Pace(max_rate_per_key=1)]
)
def test_changes_that_must_be_added_up_are_never_left_out(accumulation: str, pace: Pace) -> None:
    served = ServedView("v", "view", "t", ServeSettings(), key=("k",))
    pace.check(served)
    served.description = ViewDescription(
        name="v",
        inputs=["s"],
        key=["k"],
        columns=[ViewColumn("k", "string")],
        mode="real_time",
        reason="a test",
        guarantee="exactly once",
        lineage="revision",
        generation="1",
        accumulation=accumulation,  # type: ignore[arg-type]
    )
    with pytest.raises(QueryError, match="must be added up; use when_slow: buffer"):
        pace.check(served)
    Pace("disconnect", max_rate=3).check(served)


def test_a_changed_pace_keeps_what_the_update_does_not_name() -> None:
    pace = Pace("sample", sample=5, max_rate=3)
    assert pace.changed({"max_rate": None}) == Pace("sample", sample=5)
    assert pace.changed({"when_slow": "catch_up"}) == Pace("buffer", max_rate=3)
    assert pace.changed({"where": "n > 1"}) == pace
