"""What went wrong with a view's input, noted beside its checkpoint: it ends when that does."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from millstream.analyze.damage import Damaged
from millstream.audit import Broken, Lost


class Notes(msgspec.Struct, frozen=True):
    """What a query is started without, and what it never saw."""

    broken: tuple[Broken, ...] = ()
    lost: tuple[Lost, ...] = ()
    begun: bool = False  # the query has committed a batch


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


def broken_of(checkpoints: Path, view: str, generation: str) -> tuple[Broken, ...]:
    """What a view's query is running without, from wherever its checkpoint lies."""
    files = [
        *checkpoints.glob(f"{view}/{generation}.notes.json"),
        *checkpoints.glob(f"{view}.*/{generation}.notes.json"),
    ]
    notes = (read_notes(file.with_name(generation)) for file in files)
    return tuple(event for each in notes for event in each.broken)
