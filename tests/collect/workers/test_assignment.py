"""Sources among workers, whose number changes: one reads each, and goes on from where it was."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from millstream.collect.workers.assignment import Duty, assign

_NAMES = ["clicks", "notes", "notes_more", "ticks", "orders"]

# A start: with how many workers, and which of the sources then get on, how far.
_STARTS = st.lists(
    st.tuples(
        st.integers(1, 5),
        st.lists(st.sampled_from(_NAMES), max_size=8),
    ),
    max_size=12,
)


@given(_STARTS, st.integers(1, len(_NAMES)))
def test_no_bookmark_is_forgotten_and_no_older_one_used(
    starts: list[tuple[int, list[str]]], count: int
) -> None:
    names = _NAMES[:count]
    journals: dict[int, dict[str, bytes]] = {}
    read = dict.fromkeys(names, 0)
    for workers, progress in starts:
        duties = assign(names, workers, journals)
        assert set(duties) == set(names)
        for name, duty in duties.items():
            assert 0 <= duty.worker < workers
            journal = journals.setdefault(duty.worker, {})
            begins = journal.get(duty.name, duty.handed)
            assert begins == (str(read[name]).encode() if read[name] else None)
        load = [sum(duty.worker == n for duty in duties.values()) for n in range(workers)]
        assert max(load) - min(load) <= 1
        for name in progress:
            if name in read:
                read[name] += 1
                duty = duties[name]
                journals[duty.worker][duty.name] = str(read[name]).encode()


def test_a_source_stays_with_its_worker() -> None:
    journals = {0: {"clicks": b"1"}, 1: {"notes": b"7"}}
    assert assign(["notes", "clicks"], 2, journals) == {
        "clicks": Duty(0, "clicks"),
        "notes": Duty(1, "notes"),
    }


def test_one_whose_worker_is_no_more_moves_with_its_bookmark() -> None:
    journals = {0: {"clicks": b"1"}, 1: {"notes": b"7"}}
    duties = assign(["clicks", "notes"], 1, journals)
    assert duties["notes"] == Duty(0, "notes@1", b"7")
    # Nothing was read since: the next start comes to the same.
    assert assign(["clicks", "notes"], 1, journals) == duties
    # And when it comes back to where an older bookmark is, the newer one counts.
    journals[0]["notes@1"] = b"9"
    assert assign(["notes", "clicks", "ticks"], 2, journals)["notes"] == Duty(0, "notes@1")
    assert assign(["clicks", "notes"], 2, journals)["notes"] == Duty(1, "notes@2", b"9")
