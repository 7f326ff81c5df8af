"""Reads the state of a view's query from its checkpoint, without delaying the query."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructField, StructType

from millstream.analyze.spark.catalyst import quoted
from millstream.errors import MillstreamError, ViewFailed

_OPERATORS = {
    "stateStoreSave": "groups",
    "StatefulStreamlineAggregate": "groups",
    "sessionWindowStateStoreSaveExec": "sessions",
    "dedupe": "rows seen",
    "dedupeWithinWatermark": "rows seen",
    "symmetricHashJoin": "join",
}
_SIDES = ("left", "right")


class StateEntry(msgspec.Struct, frozen=True):
    """One key and its value."""

    key: dict[str, Any]
    value: dict[str, Any]


class OperatorState(msgspec.Struct, frozen=True):
    """The state of one stateful operator of a query."""

    name: str  # what the state holds, such as groups
    keys: int  # that match the request
    entries: list[StateEntry]  # the first of them


class ViewState(msgspec.Struct, frozen=True):
    """The state of a view's query when it committed a batch."""

    view: str
    batch: int
    committed_at: int  # milliseconds since the epoch
    operators: list[OperatorState]


def find_checkpoint(checkpoints: Path, view: str) -> Path:
    """The checkpoint of the view that committed last; MillstreamError if it has no state."""
    folders = (
        [each for each in checkpoints.iterdir() if each.is_dir()] if checkpoints.exists() else []
    )
    views = sorted({folder.name.partition(".")[0] for folder in folders})
    if view not in views:
        known = f"there are {', '.join(views)}" if views else "no view has run in this home"
        raise MillstreamError(f"no view {view} has run here", remedy=known)
    found = [
        (newest.stat().st_mtime_ns, newest.parent.parent)
        for folder in folders
        if folder.name.partition(".")[0] == view
        for generation in folder.iterdir()
        if (newest := _newest(generation / "commits")) is not None
    ]
    if not found:
        raise ViewFailed(
            f"view {view} has not committed a batch yet",
            remedy="a real-time query does so every analyze.checkpoint_interval; try again then",
        )
    checkpoint = max(found)[1]
    if not (checkpoint / "state").is_dir():
        raise MillstreamError(
            f"view {view} keeps no state: each of its rows is made from one event",
            remedy="look at its rows with `millstream query`",
        )
    return checkpoint


def read_state(
    spark: SparkSession, checkpoint: Path, view: str, key: Sequence[str] = (), limit: int = 20
) -> ViewState:
    """The state at the newest commit; a key is included if its columns have all values of `key`.

    ViewFailed if the state cannot be read.
    """
    newest = _newest(checkpoint / "commits")
    assert newest is not None
    try:
        metadata = spark.read.format("state-metadata").load(str(checkpoint)).collect()
        parts = {(row.operatorId, row.operatorName) for row in metadata}
        operators = [
            operator
            for number, name in sorted(parts)
            for operator in _read(spark, checkpoint, int(newest.name), number, name, key, limit)
        ]
    except Exception as error:
        raise ViewFailed(
            f"cannot read the state of view {view} in {checkpoint}: {str(error).splitlines()[0]}",
            remedy=f"if it is damaged, `millstream rebuild {view}` computes the view again",
        ) from error
    committed_at = newest.stat().st_mtime_ns // 1_000_000
    return ViewState(view, int(newest.name), committed_at, operators)


def _read(
    spark: SparkSession,
    checkpoint: Path,
    batch: int,
    number: int,
    name: str,
    key: Sequence[str],
    limit: int,
) -> list[OperatorState]:
    called = _OPERATORS.get(name, name)
    reader = spark.read.format("statestore").option("batchId", batch).option("operatorId", number)
    if name == "symmetricHashJoin":
        sides = [(side, reader.option("joinSide", side).load(str(checkpoint))) for side in _SIDES]
        return [_operator(f"{called}, {side}", frame, key, limit) for side, frame in sides]
    return [_operator(called, reader.load(str(checkpoint)), key, limit)]


def _operator(name: str, state: DataFrame, key: Sequence[str], limit: int) -> OperatorState:
    parts = [_as_text(field) for field in _fields(state, "key")]
    for wanted in key:
        state = state.filter(F.array_contains(F.array(*parts), wanted))
    found = state.select(*(_as_json(state, part).alias(part) for part in ("key", "value")))
    rows = found.limit(limit).collect()
    entries = [
        StateEntry(json.loads(row.key or "{}"), json.loads(row.value or "{}")) for row in rows
    ]
    return OperatorState(name, len(rows) if len(rows) < limit else state.count(), entries)


def _as_json(state: DataFrame, part: str) -> Column:
    """The key or the value as JSON; a name that Spark used twice gets a number."""
    seen: dict[str, int] = {}
    fields = []
    for field in _fields(state, part):
        seen[field.name] = count = seen.get(field.name, 0) + 1
        name = field.name if count == 1 else f"{field.name}_{count}"
        fields.append(StructField(name, field.dataType, True))
    return F.to_json(F.col(part).cast(StructType(fields)), {"ignoreNullFields": "false"})


def _as_text(field: StructField) -> Column:
    column = F.col(f"key.{quoted(field.name)}")
    return F.to_json(column) if isinstance(field.dataType, StructType) else column.cast("string")


def _fields(state: DataFrame, part: str) -> list[StructField]:
    struct = state.schema[part].dataType
    assert isinstance(struct, StructType)
    return struct.fields


def _newest(commits: Path) -> Path | None:
    """The newest batch in that folder."""
    batches = [each for each in commits.glob("*") if each.name.isdigit()]
    return max(batches, key=lambda each: int(each.name), default=None)
