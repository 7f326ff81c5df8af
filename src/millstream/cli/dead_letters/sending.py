"""Sending dead letters again: batches, progress, and the ones that failed."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeVar

import click

from millstream.cli.shared.text import printable
from millstream.values.dead_letter import DeadLetter

_BATCH_EVENTS, _BATCH_BYTES = 500, 1 << 20
_FAILURES_SHOWN = 20

L = TypeVar("L", bound=DeadLetter)


def batches(letters: Sequence[L]) -> Iterator[list[L]]:
    """The dead letters in their order, in batches that may be in flight at once."""
    batch: list[L] = []
    size = 0
    for letter in letters:
        if batch and (len(batch) == _BATCH_EVENTS or size + len(letter.value) > _BATCH_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(letter)
        size += len(letter.value)
    if batch:
        yield batch


def print_failures(failures: Mapping[str, str]) -> None:
    """The first failures, by id, with their reasons, on stderr."""
    for name, why in list(failures.items())[:_FAILURES_SHOWN]:
        click.echo(f"{name}: {printable(why)}", err=True)
    if (more := len(failures) - _FAILURES_SHOWN) > 0:
        click.echo(f"… and {more:,} more", err=True)


@contextlib.contextmanager
def progress_bar(label: str, total: int) -> Iterator[Callable[[int], None]]:
    """A bar on stderr; the function that it yields advances it by a number of events."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    console = Console(stderr=True)
    columns = (TextColumn(label), BarColumn(), MofNCompleteColumn())
    # In a file, a bar would leave a line for each step.
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task("", total=total)
        yield lambda count: bar.advance(task, count)
