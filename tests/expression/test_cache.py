"""The cache of compiled texts."""

from __future__ import annotations

from millstream.expression.cache import TextCache


def test_compiled_filters_are_kept_by_their_size() -> None:
    cache: TextCache[object] = TextCache(1_000)
    first = cache.get("a", 300, object)
    assert cache.get("a", 300, object) is first
    for number in range(10):
        cache.get(number, 300, object)
        assert len(cache._held) <= 3
    assert cache.get("a", 300, object) is not first
    cache.get("too large", 2_000, object)
    assert not cache._held
