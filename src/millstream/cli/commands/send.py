"""`send`: sends the events of a file to a collector."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import click

from millstream.cli.shared.options import access_of, access_options, home_option, url_of, url_option
from millstream.cli.shared.outcome import FAILED
from millstream.errors import MillstreamError

if TYPE_CHECKING:
    from millstream.cli.shared.events import FileEvents
    from millstream.client import Sent
    from millstream.client.credentials import Credentials

REJECTIONS_SHOWN = 10
UNORDERED_BATCHES = 4  # in flight at once
BATCH = 1000  # events; in order, each batch takes one round trip


@click.command()
@click.argument("stream")
@click.argument("file", metavar="FILE")
@home_option
@url_option
@access_options
@click.option(
    "--unordered",
    is_flag=True,
    help="Faster: several batches at once, which may overtake each other.",
)
def send(
    stream: str,
    file: str,
    home: Path,
    url: str,
    key_file: Path | None,
    ca: str,
    unordered: bool,
) -> int:
    """Send the events of a FILE, or of stdin if it is `-`.

    The file has one JSON event per line (NDJSON), or is one JSON array. Events that do not fit the
    stream's schema are rejected and listed with their line, and the exit code is 1; the others are
    accepted. Events that are dated too far in the future are accepted, but are in no view.

    The events arrive in the order of the file. With --unordered they are sent faster, but an event
    may arrive after hundreds of later ones: perhaps too late for windows and joins.

    \b
    millstream send rsvps events.ndjson
    millstream send rsvps archive.ndjson --unordered
    zcat archive.gz | millstream send rsvps -
    MILLSTREAM_KEY=msk_… millstream send rsvps events.ndjson --url https://collect.example
    """
    import asyncio

    from millstream.cli.shared.events import FileEvents

    address, access = url_of("collect", url, home), access_of(key_file, ca)
    started = time.monotonic()
    with opened(file) as source, progress_bar(source) as (read, sent):
        events = FileEvents(source, file, read)
        concurrency = UNORDERED_BATCHES if unordered else 1
        answer = asyncio.run(send_events(address, access, stream, events, sent, concurrency))
    report(answer, events, time.monotonic() - started)
    return FAILED if answer.rejected else 0


async def send_events(
    url: str,
    access: Credentials,
    stream: str,
    events: FileEvents,
    progress: Callable[[int, int], None],
    concurrency: int,
) -> Sent:
    from millstream.client import Sender

    async with Sender(
        url, key=access.key, ca=access.ca, batch=BATCH, concurrency=concurrency
    ) as sender:
        return await sender.send(stream, events, progress=progress)


@contextlib.contextmanager
def opened(file: str) -> Iterator[BinaryIO]:
    if file == "-":
        yield sys.stdin.buffer
        return
    try:
        source = Path(file).open("rb")  # noqa: SIM115
    except OSError as error:
        raise MillstreamError(
            f"cannot read {file}: {error.strerror}", remedy="give another file, or - for stdin"
        ) from None
    with source:
        yield source


@contextlib.contextmanager
def progress_bar(
    source: BinaryIO,
) -> Iterator[tuple[Callable[[int], None], Callable[[int, int], None]]]:
    """Yields functions to call with bytes read, and with counts of accepted and rejected."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeElapsedColumn

    size = os.fstat(source.fileno()).st_size or None
    columns = (BarColumn(), DownloadColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    # In a file, a bar would leave a line for each step.
    console = Console(stderr=True)
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task("0 events", total=size)

        def sent(accepted: int, rejected: int) -> None:
            refused = f", {rejected:,} rejected" if rejected else ""
            bar.update(task, description=f"{accepted:,} events{refused}")

        yield lambda count: bar.advance(task, count), sent


def report(answer: Sent, events: FileEvents, seconds: float) -> None:
    for rejection in answer.rejected[:REJECTIONS_SHOWN]:
        click.echo(f"{events.place(rejection.index)}: {rejection.error}", err=True)
    if (more := len(answer.rejected) - REJECTIONS_SHOWN) > 0:
        click.echo(f"… and {more:,} more", err=True)
    if answer.future:
        click.echo(
            f"{len(answer.future):,} events, the first at {events.place(answer.future[0])}, are "
            "dated too far in the future: they are in the log and in the late topic, but in no "
            "view; correct the sender's clock and send them again",
            err=True,
        )
    total = answer.accepted + len(answer.rejected)
    speed = f"{total / seconds:,.0f} events/s" if seconds > 0.1 else "at once"
    click.echo(f"{answer.accepted:,} accepted, {len(answer.rejected):,} rejected ({speed})")
