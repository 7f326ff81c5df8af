from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from millstream.client.backoff import Backoff


@given(st.integers(1, 10_000), st.floats(0, 1))
def test_the_wait_is_between_half_and_all_of_its_limit(failures: int, chance: float) -> None:
    wait = Backoff(first=0.1, longest=10, jitter=lambda: chance).after(failures)
    assert 0.05 <= wait <= 10


def test_the_wait_doubles_until_the_limit() -> None:
    backoff = Backoff(first=1, longest=5, jitter=lambda: 1.0)
    assert [backoff.after(n) for n in range(1, 6)] == [1, 2, 4, 5, 5]
