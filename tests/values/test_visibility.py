"""A visibility: equal for callers who see the same."""

from __future__ import annotations

from millstream.values.visibility import SEES_ALL, SEES_NOTHING, Visibility


def test_only_what_is_seen_decides_the_fingerprint() -> None:
    seen = Visibility("a = 1", frozenset({"x", "y"}))
    assert seen.fingerprint == Visibility("a = 1", frozenset({"y", "x"})).fingerprint
    others = [SEES_NOTHING, Visibility("a = 2"), Visibility("a = 1"), Visibility(None, seen.hidden)]
    assert len({each.fingerprint for each in (seen, *others)}) == 5


def test_whoever_sees_everything_is_not_restricted() -> None:
    assert (SEES_ALL.is_restricted, SEES_ALL.fingerprint) == (False, "")
    assert SEES_NOTHING.is_restricted
    assert Visibility(hidden=frozenset({"x"})).is_restricted
