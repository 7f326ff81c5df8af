"""What is entered into a view's ledger."""

from __future__ import annotations

from decimal import Decimal

from tests.analyze.triggers.in_memory import FORGET_MS, InMemoryView

from millstream.analyze.triggers.ledger import Edition, Ledger, LedgerSpec


def kinds(bench: InMemoryView) -> list[tuple[str, int]]:
    return [(entry.kind, int(entry.amounts["n"])) for entry in bench.entries]


def final(**options: str) -> InMemoryView:
    """A view with one final row."""
    bench = InMemoryView(**options)  # type: ignore[arg-type]
    bench.row("a", 5, 0.1)
    bench.keep()
    assert bench.entries == []
    bench.state()
    bench.keep()
    return bench


def test_a_row_is_entered_once_it_is_final() -> None:
    bench = final()
    (entry,) = bench.entries
    assert (entry.kind, entry.key, entry.reason) == ("assertion", ["a"], [])
    assert entry.amounts == {"n": 5, "total": Decimal("0.1")}
    assert entry.at == "1970-01-01T00:00:00.000Z"


def test_a_correction_takes_back_what_was_entered_and_names_the_late_events() -> None:
    bench = final()
    bench.row("a", 6, 0.3, _late=["x"])
    bench.row("a", 7, 0.4, _late=["x", "y"])
    bench.keep()
    assert kinds(bench) == [
        ("assertion", 5),
        ("retraction", 5),
        ("assertion", 6),
        ("retraction", 6),
        ("assertion", 7),
    ]
    assert [entry.reason for entry in bench.entries] == [[], ["x"], ["x"], ["y"], ["y"]]
    assert bench.balance() == {"a": {"n": 7, "total": Decimal("0.4")}}


def test_entries_of_the_same_have_the_same_id_and_others_have_others() -> None:
    one, other = final(), final(accumulation="retract")
    for bench in (one, other):
        bench.row("a", 6)
        bench.keep()
    assert [entry.id for entry in one.entries] == [entry.id for entry in other.entries]
    assert len({entry.id for entry in one.entries}) == 3


def test_whatever_is_shown_the_whole_row_is_entered() -> None:
    bench = final(accumulation="discard")
    bench.row("a", 6)
    bench.keep()
    assert kinds(bench) == [("assertion", 5), ("retraction", 5), ("assertion", 6)]


def test_a_replay_of_the_same_query_enters_nothing_twice() -> None:
    bench = final()
    bench.anew("g")
    for revision in range(1, 6):
        bench.row("a", revision)
        bench.state()
    bench.keep()
    assert kinds(bench) == [("assertion", 5)]
    bench.row("a", 6)
    bench.keep()
    assert bench.balance()["a"]["n"] == 6


def test_rows_that_ended_are_not_entered_again_by_a_replay() -> None:
    bench = final()
    bench.record("a", None)
    bench.keep()
    bench.anew("g")
    bench.row("a", 5)
    bench.state()
    bench.keep()
    assert kinds(bench) == [("assertion", 5)]


def test_a_changed_query_corrects_what_it_gives_otherwise_and_back() -> None:
    bench = final()
    for generation, revision in (("other", 3), ("g", 5)):
        bench.anew(generation)
        bench.row("a", revision, 0.1)
        bench.state()
        bench.keep()
    assert kinds(bench) == [
        *(("assertion", 5), ("retraction", 5)),
        *(("assertion", 3), ("retraction", 3)),
        ("assertion", 5),
    ]
    assert len({entry.id for entry in bench.entries}) == 5


def test_a_changed_query_that_gives_the_same_enters_nothing() -> None:
    bench = final()
    bench.anew("other")
    bench.row("a", 5, 0.1)
    bench.state()
    bench.keep()
    assert kinds(bench) == [("assertion", 5)]


def rebuilt(**rows: int) -> InMemoryView:
    """A view whose rows `a` and `b` of 5 events each were entered, and which was computed anew."""
    bench = final()
    bench.row("b", 5)
    bench.state("b")
    bench.keep()
    bench.rebuild()
    for key, revision in rows.items():
        bench.row(key, revision, 0.1 if key == "a" else 0.0)
        bench.state(key)
    bench.keep()
    assert kinds(bench) == [("assertion", 5), ("assertion", 5)], "not served yet"
    bench.take_over()
    return bench


def test_a_rebuilt_view_that_is_the_same_enters_nothing() -> None:
    bench = rebuilt(a=5, b=5)
    assert len(bench.entries) == 2
    bench.crash()
    bench.row("a", 6, 0.3, _late=["x"])
    bench.keep()
    assert kinds(bench)[2:] == [("retraction", 5), ("assertion", 6)]
    assert bench.entries[-1].reason == ["x"]


def test_a_rebuilt_view_corrects_the_ledger_and_says_why() -> None:
    bench = rebuilt(a=3, b=5, c=1)
    assert kinds(bench)[2:] == [("retraction", 5), ("assertion", 3), ("assertion", 1)]
    reasons = [entry.reason for entry in bench.entries[2:]]
    assert reasons == [["rebuild:view"], ["rebuild:view"], []]
    assert {key: amounts["n"] for key, amounts in bench.balance().items()} == {
        **{"a": 3, "b": 5, "c": 1}
    }


def test_what_a_rebuilt_view_has_no_more_is_retracted_and_may_come_back() -> None:
    bench = rebuilt(a=5)
    assert kinds(bench)[2:] == [("retraction", 5)]
    assert bench.balance()["b"]["n"] == 0
    bench.crash()
    bench.keep()
    bench.row("b", 5)
    bench.state("b")
    bench.keep()
    assert kinds(bench)[3:] == [("assertion", 5)]
    assert len({entry.id for entry in bench.entries}) == 4


def test_a_rebuild_that_lacks_events_takes_nothing_back() -> None:
    def row(revision: int) -> bytes:
        return b'{"n":%d,"_revision":%d,"_state":"final"}' % (revision, revision)

    early = b'[{"start":"1970-01-01T00:01:00.000000Z","end":"1970-01-01T00:02:00.000000Z"}]'
    late = early.replace(b"00:01:00", b"00:03:00").replace(b"00:02:00", b"00:04:00")
    gone = early.replace(b"00:00", b"00:30")
    old, new = (Ledger(LedgerSpec("v", name, ("n",)), FORGET_MS) for name in ("g", "g.1"))
    for key in (early, late, gone):
        old.enter(key, row(9), now=0)
    for key, state in old.take():
        new.recall(key, state or b"")
    new.edition = Edition("v.1", whole_from=120_000)
    assert new.enter(early, row(2), now=0) == []
    assert [entry.kind for entry in new.enter(late, row(8), now=0)] == ["retraction", "assertion"]
    assert new.settle(now=0) == [], "whose events may be gone"
    assert [new.leaves(key) for key in (early, late, gone)] == [True, False, True]


def test_entries_of_another_query_stay_unless_the_view_was_computed_anew_while_they_stood() -> None:
    row, ended, stands = b'{"n":9,"_revision":9,"_state":"final"}', b'["ended"]', b'["stands"]'
    old, new = (Ledger(LedgerSpec("v", name, ("n",)), FORGET_MS) for name in ("g", "h"))
    for key in (ended, stands):
        old.enter(key, row, now=0)
    old.end(ended, now=1)
    for key, state in old.take():
        new.recall(key, state or b"")
    assert (new.knows(stands), new.knows(b'["other"]')) == (True, False)
    assert [new.leaves(key) for key in (ended, stands)] == [True, True]
    new.edition = Edition("v.1")
    assert [new.leaves(key) for key in (ended, stands)] == [True, False]
    assert [key for _, key, _ in new.settle(now=2)] == [stands]


def test_what_is_no_number_is_no_amount() -> None:
    bench = InMemoryView()
    bench.record("a", b'{"n":null,"total":"NaN","_revision":1,"_state":"final"}')
    bench.keep()
    assert bench.balance() == {"a": {"n": 0, "total": 0}}
