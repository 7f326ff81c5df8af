"""Events that were set aside: which ones are meant, and how they are shown."""

from __future__ import annotations

import contextlib
import heapq
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import click

from millstream.cli.shared.options import home_option, set_option
from millstream.errors import MillstreamError
from millstream.values.clock import to_ms

if TYPE_CHECKING:
    from millstream.log.dead_letters.topic import SetAside

F = TypeVar("F", bound=Callable[..., Any])

_SHOWN_OF_EVENT = 200
_MOST_EVENTS, _MOST_BYTES = 500, 1 << 20


def place_options(function: F) -> F:
    """Where the log is, and whose stream is meant."""
    app = click.option("--app", default="", help="The pipeline, if several have such a stream.")
    return home_option(set_option(app(function)))


def choice_options(function: F) -> F:
    """Which events are meant."""
    since = click.option(
        "--since", default="", metavar="TIME", help="Only from then on: '1 hour' ago, or a time."
    )
    reason = click.option("--reason", default="", help="Only those whose reason has this text.")
    return since(reason(function))


def check_choice(ids: tuple[str, ...], everything: bool, since: str, reason: str) -> None:
    """UsageError unless exactly one way of choosing is used."""
    if not (ids or everything or since or reason):
        raise click.UsageError("say which: --all, --since, --reason, or ids that `list` gives")
    if ids and (everything or since or reason):
        raise click.UsageError("give ids, or a choice by --all, --since and --reason, not both")


def since_when(text: str, option: str = "--since") -> int:
    """The moment that `1 hour` (ago) or `2026-01-31T12:00:00Z` means, in milliseconds."""

    from millstream.syntax.duration import parse_duration

    try:
        return to_ms(text)
    except ValueError:
        pass
    try:
        return round((time.time() - parse_duration(text).total_seconds()) * 1000)
    except ValueError:
        raise MillstreamError(
            f"{option} {text!r} is neither a duration nor a time",
            remedy="write '2 hours', or '2026-01-31T12:00:00Z'",
        ) from None


def parse_name(name: str, word: str) -> tuple[str, int, int]:
    """The stream, partition and offset of an event that was set aside; `word` says as what."""
    stream, *numbers = name.split("/")
    if len(numbers) != 2 or not all(each.isascii() and each.isdigit() for each in numbers):
        raise MillstreamError(
            f"{name!r} names no {word} event",
            remedy=f"write STREAM/PARTITION/OFFSET, as `millstream {word} list` does",
        )
    return stream, int(numbers[0]), int(numbers[1])


A = TypeVar("A", bound="SetAside")


def print_newest(
    events: Iterable[A], limit: int, print_one: Callable[[A], None], what: str, counted: bool
) -> None:
    """The newest of them, the newest last; then how many there are, if that is wanted."""
    count = 0

    def counting() -> Iterator[A]:
        nonlocal count
        for one in events:
            count += 1
            yield one

    newest = sorted(heapq.nlargest(limit, counting()))
    for one in newest:
        print_one(one)
    if counted:
        click.echo(f"{len(newest):,} of {count:,} {what}", err=True)


class _Kept(Protocol):
    @property
    def value(self) -> bytes: ...


E = TypeVar("E", bound=_Kept)


def batches(events: Sequence[E]) -> Iterator[list[E]]:
    """The events in their order, so many at a time as may be under way at once."""
    batch: list[E] = []
    size = 0
    for one in events:
        if batch and (len(batch) == _MOST_EVENTS or size + len(one.value) > _MOST_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(one)
        size += len(one.value)
    if batch:
        yield batch


def print_line(id: str, at: int, reason: str, value: bytes, as_json: bool, **more: Any) -> None:  # noqa: A002
    """An event in a list: one line of JSON with `more`, or two lines for people."""
    import json

    from millstream.cli.shared.text import harmless, moment

    text = value.decode("utf-8", "replace")
    if as_json:
        content = {"id": id, "at": at, "reason": reason, "event": text, **more}
        click.echo(json.dumps(content, ensure_ascii=False))
        return
    click.echo(
        f"{click.style(id, bold=True)}  {moment(at)}  {click.style(harmless(reason), fg='yellow')}"
    )
    rest = "…" if len(text) > _SHOWN_OF_EVENT else ""
    click.echo(f"  {click.style(harmless(text[:_SHOWN_OF_EVENT]) + rest, dim=True)}")


def print_whole(
    id: str,  # noqa: A002
    at: int,
    reason: str,
    facts: Mapping[str, str],
    value: bytes,
) -> None:
    """All of an event: why it is here, what is known of it, its bytes."""
    from millstream.cli.shared.text import harmless, harmless_lines, moment

    click.echo(f"{id}  {moment(at)}")
    click.echo(click.style("reason: ", bold=True) + harmless(reason))
    for name, text in facts.items():
        click.echo(f"  {harmless(name)}: {harmless(text)}")
    click.echo(harmless_lines(value))


def print_raw(value: bytes) -> None:
    """The event's bytes as they came, and nothing else."""
    sys.stdout.buffer.write(value)
    sys.stdout.buffer.flush()


@contextlib.contextmanager
def progress_bar(doing: str, total: int) -> Iterator[Callable[[int], None]]:
    """What to call with the number of events that are done."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    console = Console(stderr=True)
    columns = (TextColumn(doing), BarColumn(), MofNCompleteColumn())
    # Where stderr is a file, a bar would only leave a trail.
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task("", total=total)
        yield lambda count: bar.advance(task, count)
