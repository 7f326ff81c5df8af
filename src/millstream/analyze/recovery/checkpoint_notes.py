"""CheckpointNotes in a file beside a checkpoint: events that the view leaves out or has lost."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
from pyspark.sql import DataFrame

from millstream.analyze.recovery.damage import CheckpointDamaged
from millstream.analyze.recovery.poison import without_events
from millstream.analyze.recovery.shed_ranges import ShedRange, sample
from millstream.values.report import BrokenEvent, LostEvents


class CheckpointNotes(msgspec.Struct, frozen=True):
    """What is not in a view's rows; valid as long as its checkpoint."""

    broken: tuple[BrokenEvent, ...] = ()
    lost: tuple[LostEvents, ...] = ()
    begun: bool = False  # the query has committed a batch
    shed: tuple[ShedRange, ...] = ()
    warning: str = ""  # why its rows may be wrong
    shed_before: int = 0  # events left out in ranges that retention has deleted since


def notes_file(checkpoint: Path) -> Path:
    return checkpoint.with_name(f"{checkpoint.name}.notes.json")


def read_notes(checkpoint: Path) -> CheckpointNotes:
    """The notes of a checkpoint, empty if it has none; CheckpointDamaged if unreadable."""
    file = notes_file(checkpoint)
    try:
        return msgspec.json.decode(file.read_bytes(), type=CheckpointNotes)
    except FileNotFoundError:
        return CheckpointNotes()
    except (OSError, msgspec.MsgspecError) as error:
        raise CheckpointDamaged(file, str(error)) from error


def write_notes(checkpoint: Path, notes: CheckpointNotes) -> None:
    """Replace the notes; they are on disk when it returns."""
    file = notes_file(checkpoint)
    fresh = file.with_suffix(".new")
    with fresh.open("wb") as out:
        out.write(msgspec.json.encode(notes))
        out.flush()
        os.fsync(out.fileno())
    fresh.replace(file)


def apply_notes(frame: DataFrame, notes: CheckpointNotes) -> DataFrame:
    """The query without the events that the notes exclude; its checkpoint still fits."""
    return without_events(sample(frame, notes.shed), notes.broken)
