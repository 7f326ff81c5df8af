"""What came of comparing a view with its own query in batch: plain values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from millstream.analyze.history.history import LogRange
from millstream.analyze.verify.comparison import Comparison

Row = Mapping[str, Any]
Where = Literal["query", "shown", "ledger"]  # the query's own rows, or what was made of them
Kind = Literal[
    "other values",
    "missing",
    "not in the log",
    "behind",
    "ahead of the log",
    "other sum",
    "not owed",
]
# Why a key was not compared in what is shown, or entered:
Left = Literal[
    "not due",  # its trigger has not told it yet; its row is not final
    "moving",  # the query's row moved on
    "gone",  # its row has expired
    "behind",  # the query's row has not come to the recomputed one, which is a difference itself
    "older",  # the log has not all of its events any more
    "kept",  # entered from events, or by a query, that the view of now has not
    "trimmed",  # retention took some of what was shown: the rest does not add up
]


@dataclass(frozen=True, slots=True)
class Difference:
    """One row, or sum, that is not as it must be."""

    kind: Kind
    key: str
    live: Row | None
    recomputed: Row | None
    columns: tuple[str, ...] = ()  # that differ
    where: Where = "query"


@dataclass(slots=True)
class Part:
    """What came of what is shown, or of the ledger."""

    where: Where
    same: int = 0
    left: Counter[Left] = field(default_factory=Counter)


@dataclass(slots=True)
class VerifyResult:
    """What came of a comparison."""

    view: str
    past: LogRange
    comparison: Comparison
    same: int = 0
    differences: list[Difference] = field(default_factory=list)
    expired: int = 0  # rows that the view kept for a time only
    awaited: int = 0  # rows that come only when they are final, and need not be there yet
    older: int = 0  # rows with events in that the log no longer has
    moving: int = 0  # groups that changed faster than they could be compared
    rounds: int = 1
    parts: list[Part] = field(default_factory=list)  # of a view with panes or a ledger

    @property
    def moved(self) -> int:
        """Rows that another round may find standing still."""
        return max([self.moving, *(part.left["moving"] for part in self.parts)])


def content(verdict: VerifyResult) -> dict[str, Any]:
    """The verdict as JSON has it."""
    return {
        "view": verdict.view,
        "agrees": not verdict.differences,
        "same": verdict.same,
        "different": len(verdict.differences),
        "expired": verdict.expired,
        "not_due": verdict.awaited,
        "older_than_the_log": verdict.older,
        "still_moving": verdict.moving,
        "rounds": verdict.rounds,
        "records": verdict.past.records,
        "up_to": {
            topic: {str(partition): end for partition, (_, end) in span.items()}
            for topic, span in verdict.past.offsets.items()
        },
        "tolerances": dict(verdict.comparison.tolerances),
        **{
            part.where: {
                "same": part.same,
                "not_compared": {why.replace(" ", "_"): n for why, n in part.left.items()},
            }
            for part in verdict.parts
        },
        "differences": [
            {
                "where": each.where,
                "kind": each.kind,
                "key": each.key,
                "columns": list(each.columns),
                "live": each.live,
                "recomputed": each.recomputed,
            }
            for each in verdict.differences
        ],
    }
