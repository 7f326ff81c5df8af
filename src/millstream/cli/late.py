"""`late`: events that are in no window any more, to list and look at."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from millstream.cli.kept import (
    choice_options,
    parse_name,
    place_options,
    print_line,
    print_newest,
    print_raw,
    print_whole,
    since_when,
)
from millstream.cli.options import json_option, log_of

if TYPE_CHECKING:
    from millstream.log.late import Late
    from millstream.log.settings import LogSettings


@click.group()
def late() -> None:
    """List and show events that came too late, or from the future.

    An event that comes behind its window's end and the stream's lateness is not in that window's
    row. One that is dated too far in the future, or has no time that can be read, is in no view.
    All of them are here, once each, with the windows that they missed.

    \b
    millstream late list clicks --since "1 hour"
    millstream late show clicks/0/17
    """


@late.command("list")
@click.argument("stream")
@place_options
@choice_options
@click.option("--limit", type=click.IntRange(1), default=20, show_default=True, help="The newest.")
@json_option
def list_(
    stream: str,
    home: Path,
    assignments: tuple[str, ...],
    app: str,
    since: str,
    reason: str,
    limit: int,
    as_json: bool,
) -> None:
    """List a stream's late events, the newest last.

    \b
    millstream late list clicks
    millstream late list clicks --reason future --limit 100 --json
    """
    log = log_of(home, assignments)
    lines = as_json or not sys.stdout.isatty()
    print_newest(
        chosen(log, app, stream, since, reason),
        limit,
        lambda one: show_line(one, lines),
        f"late events of {stream}",
        counted=not as_json,
    )


@late.command()
@click.argument("name", metavar="STREAM/PARTITION/OFFSET")
@place_options
@click.option("--raw", is_flag=True, help="Only the event's bytes, as they came.")
def show(name: str, home: Path, assignments: tuple[str, ...], app: str, raw: bool) -> None:
    """Show a late event: how late, for which windows, its headers, its bytes.

    \b
    millstream late show clicks/0/17
    millstream late show clicks/0/17 --raw > event.json
    """
    from millstream.log.late import app_with, read_one

    log = log_of(home, assignments)
    stream, partition, offset = parse_name(name, "late")
    one = read_one(log, app_with(log, stream, app), stream, partition, offset)
    if raw:
        print_raw(one.value)
    else:
        print_whole(one.id, one.at, one.reason, one.headers, one.value)


def chosen(log: LogSettings, app: str, stream: str, since: str, reason: str) -> Iterator[Late]:
    """The stream's late events that the options mean."""
    from millstream.log.late import app_with, read_late

    start = since_when(since) if since else 0
    for one in read_late(log, app_with(log, stream, app), stream, start):
        if one.at >= start and reason.lower() in one.reason.lower():
            yield one


def show_line(one: Late, as_json: bool) -> None:
    print_line(
        *(one.id, one.at, one.reason, one.value, as_json),
        kind=one.kind,
        late_by_ms=one.by_ms,
        views=one.views,
        headers=one.headers,
    )
