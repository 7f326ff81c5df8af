"""What a view goes on without of its input, noted beside its checkpoint: it ends when that does."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
from pyspark.sql import DataFrame

from millstream.analyze.recovery.damage import Damaged
from millstream.analyze.recovery.poison import without
from millstream.analyze.recovery.shed_ranges import Range, sample
from millstream.values.report import BrokenEvent, LostEvents


class Notes(msgspec.Struct, frozen=True):
    """What a query is started without, and what it never saw."""

    broken: tuple[BrokenEvent, ...] = ()
    lost: tuple[LostEvents, ...] = ()
    begun: bool = False  # the query has committed a batch
    shed: tuple[Range, ...] = ()
    warning: str = ""  # why its rows may be wrong, for as long as this checkpoint is used
    shed_before: int = 0  # events left out of ranges that retention has taken since


def notes_file(checkpoint: Path) -> Path:
    return checkpoint.with_name(f"{checkpoint.name}.notes.json")


def read_notes(checkpoint: Path) -> Notes:
    """The notes beside a checkpoint, none if there are none; Damaged if they can't be read."""
    file = notes_file(checkpoint)
    try:
        return msgspec.json.decode(file.read_bytes(), type=Notes)
    except FileNotFoundError:
        return Notes()
    except (OSError, msgspec.MsgspecError) as error:
        raise Damaged(file, str(error)) from error


def write_notes(checkpoint: Path, notes: Notes) -> None:
    """Note it down for every later start; on disk when it returns."""
    file = notes_file(checkpoint)
    fresh = file.with_suffix(".new")
    with fresh.open("wb") as out:
        out.write(msgspec.json.encode(notes))
        out.flush()
        os.fsync(out.fileno())
    fresh.replace(file)


def as_noted(frame: DataFrame, notes: Notes) -> DataFrame:
    """The same query over what the notes leave of its topics; its checkpoint fits it as before."""
    return without(sample(frame, notes.shed), notes.broken)
