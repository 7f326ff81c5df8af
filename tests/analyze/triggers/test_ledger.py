"""The entries of a view's ledger."""

from __future__ import annotations

from decimal import Decimal

from tests.analyze.triggers.in_memory import FORGET_MS, InMemoryView

from millstream.analyze.triggers.ledger import Edition, Ledger, LedgerSpec


def kinds(view: InMemoryView) -> list[tuple[str, int]]:
    return [(entry.kind, int(entry.amounts["n"])) for entry in view.entries]


def final(**options: str) -> InMemoryView:
    """A view with one final row."""
    view = InMemoryView(**options)  # type: ignore[arg-type]
    view.row("a", 5, 0.1)
    view.run()
    assert view.entries == []
    view.state()
    view.run()
    return view


def test_a_row_is_entered_once_it_is_final() -> None:
    view = final()
    (entry,) = view.entries
    assert (entry.kind, entry.key, entry.reason) == ("assertion", ["a"], [])
    assert entry.amounts == {"n": 5, "total": Decimal("0.1")}
    assert entry.at == "1970-01-01T00:00:00.000Z"


def test_a_correction_retracts_the_old_amounts_and_names_the_late_events() -> None:
    view = final()
    view.row("a", 6, 0.3, _late=["x"])
    view.row("a", 7, 0.4, _late=["x", "y"])
    view.run()
    assert kinds(view) == [
        ("assertion", 5),
        ("retraction", 5),
        ("assertion", 6),
        ("retraction", 6),
        ("assertion", 7),
    ]
    assert [entry.reason for entry in view.entries] == [[], ["x"], ["x"], ["y"], ["y"]]
    assert view.balance() == {"a": {"n": 7, "total": Decimal("0.4")}}


def test_the_same_entries_have_the_same_ids_and_different_entries_have_different_ids() -> None:
    one, other = final(), final(accumulation="retract")
    for view in (one, other):
        view.row("a", 6)
        view.run()
    assert [entry.id for entry in one.entries] == [entry.id for entry in other.entries]
    assert len({entry.id for entry in one.entries}) == 3


def test_the_whole_row_is_entered_when_only_differences_are_shown() -> None:
    view = final(accumulation="discard")
    view.row("a", 6)
    view.run()
    assert kinds(view) == [("assertion", 5), ("retraction", 5), ("assertion", 6)]


def test_a_replay_of_the_same_query_enters_nothing_twice() -> None:
    view = final()
    view.restart_query("g")
    for revision in range(1, 6):
        view.row("a", revision)
        view.state()
    view.run()
    assert kinds(view) == [("assertion", 5)]
    view.row("a", 6)
    view.run()
    assert view.balance()["a"]["n"] == 6


def test_deleted_rows_are_not_entered_again_by_a_replay() -> None:
    view = final()
    view.record("a", None)
    view.run()
    view.restart_query("g")
    view.row("a", 5)
    view.state()
    view.run()
    assert kinds(view) == [("assertion", 5)]


def test_a_changed_query_corrects_the_ledger_and_changing_it_back_does_so_again() -> None:
    view = final()
    for generation, revision in (("other", 3), ("g", 5)):
        view.restart_query(generation)
        view.row("a", revision, 0.1)
        view.state()
        view.run()
    assert kinds(view) == [
        *(("assertion", 5), ("retraction", 5)),
        *(("assertion", 3), ("retraction", 3)),
        ("assertion", 5),
    ]
    assert len({entry.id for entry in view.entries}) == 5


def test_a_changed_query_with_the_same_result_enters_nothing() -> None:
    view = final()
    view.restart_query("other")
    view.row("a", 5, 0.1)
    view.state()
    view.run()
    assert kinds(view) == [("assertion", 5)]


def rebuilt(**rows: int) -> InMemoryView:
    """A view whose rows `a` and `b` of 5 events each were entered, and which was rebuilt."""
    view = final()
    view.row("b", 5)
    view.state("b")
    view.run()
    view.rebuild()
    for key, revision in rows.items():
        view.row(key, revision, 0.1 if key == "a" else 0.0)
        view.state(key)
    view.run()
    assert kinds(view) == [("assertion", 5), ("assertion", 5)], "not served yet"
    view.take_over()
    return view


def test_a_rebuilt_view_with_the_same_rows_enters_nothing() -> None:
    view = rebuilt(a=5, b=5)
    assert len(view.entries) == 2
    view.crash()
    view.row("a", 6, 0.3, _late=["x"])
    view.run()
    assert kinds(view)[2:] == [("retraction", 5), ("assertion", 6)]
    assert view.entries[-1].reason == ["x"]


def test_a_rebuilt_view_corrects_the_ledger_and_says_why() -> None:
    view = rebuilt(a=3, b=5, c=1)
    assert kinds(view)[2:] == [("retraction", 5), ("assertion", 3), ("assertion", 1)]
    reasons = [entry.reason for entry in view.entries[2:]]
    assert reasons == [["rebuild:view"], ["rebuild:view"], []]
    assert {key: amounts["n"] for key, amounts in view.balance().items()} == {
        "a": 3,
        "b": 5,
        "c": 1,
    }


def test_rows_that_a_rebuilt_view_lacks_are_retracted_and_may_come_back() -> None:
    view = rebuilt(a=5)
    assert kinds(view)[2:] == [("retraction", 5)]
    assert view.balance()["b"]["n"] == 0
    view.crash()
    view.run()
    view.row("b", 5)
    view.state("b")
    view.run()
    assert kinds(view)[3:] == [("assertion", 5)]
    assert len({entry.id for entry in view.entries}) == 4


def test_a_rebuild_that_lacks_events_retracts_nothing() -> None:
    def row(revision: int) -> bytes:
        return b'{"n":%d,"_revision":%d,"_state":"final"}' % (revision, revision)

    early = b'[{"start":"1970-01-01T00:01:00.000000Z","end":"1970-01-01T00:02:00.000000Z"}]'
    late = early.replace(b"00:01:00", b"00:03:00").replace(b"00:02:00", b"00:04:00")
    gone = early.replace(b"00:00", b"00:30")
    old, new = (Ledger(LedgerSpec("v", name, ("n",)), FORGET_MS) for name in ("g", "g.1"))
    for key in (early, late, gone):
        old.apply(key, row(9), now=0)
    for key, state in old.changed_states():
        new.restore(key, state or b"")
    new.edition = Edition("v.1", whole_from=120_000)
    assert new.apply(early, row(2), now=0) == []
    assert [entry.kind for entry in new.apply(late, row(8), now=0)] == ["retraction", "assertion"]
    assert new.retract_missing(now=0) == [], "the log may lack their events"
    assert [new.keeps(key) for key in (early, late, gone)] == [True, False, True]


def test_entries_of_another_query_stay_unless_the_view_was_rebuilt_while_their_rows_existed() -> (
    None
):
    row, ended, stands = b'{"n":9,"_revision":9,"_state":"final"}', b'["ended"]', b'["stands"]'
    old, new = (Ledger(LedgerSpec("v", name, ("n",)), FORGET_MS) for name in ("g", "h"))
    for key in (ended, stands):
        old.apply(key, row, now=0)
    old.delete(ended, now=1)
    for key, state in old.changed_states():
        new.restore(key, state or b"")
    assert (new.has_entries(stands), new.has_entries(b'["other"]')) == (True, False)
    assert [new.keeps(key) for key in (ended, stands)] == [True, True]
    new.edition = Edition("v.1")
    assert [new.keeps(key) for key in (ended, stands)] == [True, False]
    assert [key for _, key, _ in new.retract_missing(now=2)] == [stands]


def test_null_and_nan_are_entered_as_zero() -> None:
    view = InMemoryView()
    view.record("a", b'{"n":null,"total":"NaN","_revision":1,"_state":"final"}')
    view.run()
    assert view.balance() == {"a": {"n": 0, "total": 0}}
