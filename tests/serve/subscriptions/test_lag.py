"""When a client is told its lag, and what is said."""

from __future__ import annotations

import json

from millstream.serve.subscriptions.lag import LagWatch, Waiting, warning_of


def report(watch: LagWatch, changes: int) -> dict[str, object]:
    fields = watch.report(Waiting(changes, 1.5), "buffer", 100, 1000)
    found: dict[str, object] = json.loads(b"{%b}" % fields)
    return found


def test_a_slow_client_is_told_at_once_then_every_two_seconds_and_on_recovery() -> None:
    now = 10.0
    watch = LagWatch(lambda: now)
    assert not watch.is_due
    watch.mark(lambda: Waiting(3, 0.1))
    assert watch.is_due
    assert report(watch, 5) == {"behind": 5, "seconds": 1.5, "growing": True}
    assert not watch.is_due
    watch.mark(lambda: Waiting(9, 0.1))
    assert not watch.is_due
    now += 2
    assert watch.is_due
    assert report(watch, 4)["growing"] is False
    assert watch.has_recovered, "if nothing waits"
    report(watch, 0)
    assert not watch.has_recovered


def test_a_warning_says_what_will_happen() -> None:
    assert warning_of("buffer", 10, 100, 1000) == ""
    assert "you get a gap" in warning_of("buffer", 60, 100, 1000)
    assert "gap and a snapshot" in warning_of("conflate", 60, 100, 1000)
    assert "4008" in warning_of("disconnect", 1, 100, 1000)
    assert warning_of("disconnect", 0, 100, 1000) == ""
