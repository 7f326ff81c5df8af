"""When the number of collector processes changes, one reads each source, from its bookmark."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from millstream.collect.sources import AssignedSource, assign_sources

_NAMES = ["clicks", "notes", "notes_more", "ticks", "orders"]

# A start: with how many processes, and which of the sources then make progress.
_STARTS = st.lists(
    st.tuples(
        st.integers(1, 5),
        st.lists(st.sampled_from(_NAMES), max_size=8),
    ),
    max_size=12,
)


@given(_STARTS, st.integers(1, len(_NAMES)))
def test_the_newest_bookmark_is_always_used(
    starts: list[tuple[int, list[str]]], count: int
) -> None:
    names = _NAMES[:count]
    journals: dict[int, dict[str, bytes]] = {}
    read = dict.fromkeys(names, 0)
    for workers, progress in starts:
        assigned: dict[str, tuple[int, AssignedSource]] = {}
        for worker in range(workers):
            for each in assign_sources(names[worker::workers], worker, journals):
                assert each.stream not in assigned
                assigned[each.stream] = worker, each
        assert set(assigned) == set(names)
        for name, (worker, each) in assigned.items():
            journal = journals.setdefault(worker, {})
            begins = journal.get(each.bookmark_name, each.bookmark)
            assert begins == (str(read[name]).encode() if read[name] else None)
        for name in progress:
            if name in read:
                read[name] += 1
                worker, each = assigned[name]
                journals[worker][each.bookmark_name] = str(read[name]).encode()


def test_a_source_goes_on_in_the_journal_that_has_its_bookmark() -> None:
    journals = {0: {"clicks": b"1"}, 1: {"notes": b"7"}}
    assert assign_sources(["clicks"], 0, journals) == [AssignedSource("clicks", "clicks")]
    assert assign_sources(["notes"], 1, journals) == [AssignedSource("notes", "notes")]


def test_one_whose_process_no_longer_exists_moves_with_its_bookmark() -> None:
    journals = {0: {"clicks": b"1"}, 1: {"notes": b"7"}}
    moved = [AssignedSource("notes", "notes@1", b"7")]
    assert assign_sources(["notes"], 0, journals) == moved
    # Nothing was read since: the next start decides the same.
    assert assign_sources(["notes"], 0, journals) == moved
    # When it returns to the journal with an older bookmark, the newer one counts.
    journals[0]["notes@1"] = b"9"
    assert assign_sources(["notes"], 0, journals) == [AssignedSource("notes", "notes@1")]
    assert assign_sources(["notes"], 1, journals) == [AssignedSource("notes", "notes@2", b"9")]
