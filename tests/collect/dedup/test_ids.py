"""Remembered ids, compared with a plain dict and a clock."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from millstream.collect.dedup.ids import Original, RememberedIds, dedup_id, idempotency_id

WINDOWS = {"clicks": 1_000, "notes": 50}
digests = st.integers(0, 9).map(lambda number: number.to_bytes(16, "big"))
streams = st.sampled_from([*WINDOWS, "unknown"])


@dataclass
class Clock:
    now: int = 1_800_000_000_000

    def __call__(self) -> int:
        return self.now


@dataclass
class Model:
    """The model: an id is known from its first use until its window ends."""

    clock: Clock
    held: dict[tuple[str, bytes], Original] = field(default_factory=dict)

    def get(self, stream: str, digest: bytes) -> Original | None:
        first = self.held.get((stream, digest))
        if first is None or first.received_at + WINDOWS[stream] <= self.clock.now:
            return None
        return first

    def add(self, stream: str, digest: bytes, first: Original) -> None:
        is_new = self.get(stream, digest) is None
        if stream in WINDOWS and is_new and first.received_at + WINDOWS[stream] > self.clock.now:
            self.held[stream, digest] = first


class IdsAgainstADict(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.clock = Clock()
        self.model = Model(self.clock)
        self.sequence = 0

    @initialize(most=st.just(100_000) | st.integers(1, 15))
    def begin(self, most: int) -> None:
        self.most = most
        self.ids = RememberedIds(WINDOWS, most, self.clock)

    @rule(
        stream=streams,
        digest=digests,
        collector=st.sampled_from(["a", "b"]),
        age=st.just(0) | st.integers(0, 1_200),
        index=st.integers(0, 2**28 - 1),
        count=st.integers(1, 2**28 - 1),
    )
    def claim(
        self, stream: str, digest: bytes, collector: str, age: int, index: int, count: int
    ) -> None:
        self.sequence += 1
        first = Original(collector, self.sequence, index, self.clock.now - age, count)
        before = self.ids.get(stream, digest)
        other = self.ids.add(stream, digest, first)
        assert other == before
        if before is None:  # forgotten early: it is accepted again, and the new one counts
            self.model.held.pop((stream, digest), None)
        self.model.add(stream, digest, first)

    @rule(stream=streams, digest=digests)
    def take_back(self, stream: str, digest: bytes) -> None:
        first = self.ids.get(stream, digest)
        if first is not None:
            self.ids.remove(stream, digest, first)
            assert self.model.held.pop((stream, digest)) == first

    @rule(milliseconds=st.integers(0, 400))
    def wait(self, milliseconds: int) -> None:
        self.clock.now += milliseconds

    @invariant()
    def agrees(self) -> None:
        if not hasattr(self, "ids"):
            return
        assert len(self.ids) <= self.most
        known = {
            (stream, number): (self.ids.get(stream, digest), self.model.get(stream, digest))
            for stream in WINDOWS
            for number in range(10)
            for digest in [number.to_bytes(16, "big")]
        }
        if self.ids.forgotten == 0:
            assert all(ours == law for ours, law in known.values())
        else:  # nothing is known that was not so, though not all that was
            assert all(ours in (None, law) for ours, law in known.values())


TestIds = IdsAgainstADict.TestCase
TestIds.settings = settings(max_examples=30, stateful_step_count=30)


def test_the_newest_ids_are_kept_when_there_are_more_than_fit() -> None:
    clock = Clock()
    ids = RememberedIds({"clicks": 3_600_000}, 1_200, clock)
    for number in range(10_000):
        first = Original("a", number, 0, clock.now)
        ids.add("clicks", number.to_bytes(16, "big"), first)
        assert len(ids) <= 1_200
    assert ids.forgotten == 10_000 - len(ids)
    newest = range(10_000 - 1_100, 10_000)  # all but one twelfth, which goes at once
    assert all(ids.get("clicks", number.to_bytes(16, "big")) for number in newest)


def test_an_ended_window_uses_no_memory() -> None:
    clock = Clock()
    ids = RememberedIds({"clicks": 60_000}, 1_000_000, clock)
    for number in range(5_000):
        ids.add("clicks", number.to_bytes(16, "big"), Original("a", number, 0, clock.now))
        clock.now += 10
    assert len(ids) == 5_000
    clock.now += 60_000
    ids.add("clicks", b"x" * 16, Original("a", 9_999, 0, clock.now))
    assert len(ids) == 1
    assert ids.forgotten == 0


def test_a_recovered_entry_is_no_duplicate_of_itself() -> None:
    clock = Clock()
    ids, first = RememberedIds(WINDOWS, 10, clock), Original("a", 7, 2, clock.now)
    assert ids.add("clicks", b"x" * 16, first) is None
    assert ids.add("clicks", b"x" * 16, first) is None
    assert first.is_same_event(Original("a", 7, 2, 0, count=5))
    for other in (Original("b", 7, 2, clock.now), Original("a", 8, 2, clock.now)):
        assert ids.add("clicks", b"x" * 16, other) == first


names = st.text(max_size=5)


@given(st.tuples(names, names), st.tuples(names, names))
def test_only_equal_source_and_id_give_the_same_digest(
    one: tuple[str, str], two: tuple[str, str]
) -> None:
    assert (dedup_id(*one) == dedup_id(*two)) == (one == two)
    assert (idempotency_id(*one) == idempotency_id(*two)) == (one == two)
    assert dedup_id(*one) != idempotency_id(*two)
