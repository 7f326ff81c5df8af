"""The result of comparing a view with its own query in batch: plain values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from millstream.analyze.history.history import LogRange
from millstream.analyze.verify.comparison import Comparison

Row = Mapping[str, Any]
Where = Literal["query", "shown", "ledger"]  # the query's rows, the shown rows, or the ledger
DifferenceKind = Literal[
    "other values",
    "missing",
    "not in the log",
    "behind",
    "ahead of the log",
    "other sum",
    "not owed",
]
# Why a key of the shown rows, or of the ledger, was not compared:
NotCompared = Literal[
    "not due",  # its trigger has not shown it yet, or its row is not final
    "moving",  # the query's row changed meanwhile
    "gone",  # its row has expired
    "behind",  # the query's row is older than the recomputed one, which is a difference itself
    "older",  # the log no longer has all of its events
    "kept",  # entered from events, or by a query, that the view no longer has
    "trimmed",  # retention deleted some of the shown rows: the rest does not add up
]


@dataclass(frozen=True, slots=True)
class Difference:
    """One row, or sum, that is not as expected."""

    kind: DifferenceKind
    key: str
    live: Row | None
    recomputed: Row | None
    columns: tuple[str, ...] = ()  # that differ
    where: Where = "query"


@dataclass(slots=True)
class PartResult:
    """The result for the shown rows, or for the ledger."""

    where: Where
    same: int = 0
    not_compared: Counter[NotCompared] = field(default_factory=Counter)


@dataclass(slots=True)
class VerifyResult:
    """The result for a view."""

    view: str
    log_range: LogRange
    comparison: Comparison
    same: int = 0
    differences: list[Difference] = field(default_factory=list)
    expired: int = 0  # rows that the view no longer keeps
    not_due: int = 0  # rows that are written once, when they are final, and are not due yet
    older: int = 0  # rows with events that the log no longer has
    moving: int = 0  # rows that changed faster than they could be compared
    rounds: int = 1
    parts: list[PartResult] = field(default_factory=list)  # of the shown rows and the ledger

    @property
    def moved(self) -> int:
        """Rows that another round may be able to compare."""
        return max([self.moving, *(part.not_compared["moving"] for part in self.parts)])


def to_json(result: VerifyResult) -> dict[str, Any]:
    """The result as `millstream verify --json` prints it."""
    return {
        "view": result.view,
        "agrees": not result.differences,
        "same": result.same,
        "different": len(result.differences),
        "expired": result.expired,
        "not_due": result.not_due,
        "older_than_the_log": result.older,
        "still_moving": result.moving,
        "rounds": result.rounds,
        "records": result.log_range.records,
        "up_to": {
            topic: {str(partition): end for partition, (_, end) in offsets.items()}
            for topic, offsets in result.log_range.offsets.items()
        },
        "tolerances": dict(result.comparison.tolerances),
        **{
            part.where: {
                "same": part.same,
                "not_compared": {why.replace(" ", "_"): n for why, n in part.not_compared.items()},
            }
            for part in result.parts
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
            for each in result.differences
        ],
    }
