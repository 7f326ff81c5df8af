"""`rejected`: events that did not fit their stream's schema, to list, look at and replay."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from millstream.cli.kept import (
    check_choice,
    choice_options,
    parse_name,
    place_options,
    print_line,
    print_newest,
    print_raw,
    print_whole,
    since_when,
)
from millstream.cli.options import (
    access_of,
    access_options,
    json_option,
    log_of,
    url_of,
    url_option,
)
from millstream.cli.outcome import FAILED
from millstream.errors import MillstreamError

if TYPE_CHECKING:
    from millstream.log.rejected import Rejected
    from millstream.log.settings import LogSettings


@click.group()
def rejected() -> None:
    """List, show and replay events that did not fit their stream.

    \b
    millstream rejected list orders --since "1 hour"
    millstream rejected show orders/0/17
    millstream rejected replay orders --all
    """


@rejected.command("list")
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
    """List a stream's rejected events, the newest last.

    \b
    millstream rejected list orders
    millstream rejected list orders --reason price --limit 100 --json
    """
    log = log_of(home, assignments)
    lines = as_json or not sys.stdout.isatty()
    print_newest(
        chosen(log, app, stream, since, reason),
        limit,
        lambda one: show_line(one, lines),
        f"rejected events of {stream}",
        counted=not as_json,
    )


@rejected.command()
@click.argument("name", metavar="STREAM/PARTITION/OFFSET")
@place_options
@click.option("--raw", is_flag=True, help="Only the event's bytes, as they came.")
def show(name: str, home: Path, assignments: tuple[str, ...], app: str, raw: bool) -> None:
    """Show a rejected event: why, its headers, its bytes.

    \b
    millstream rejected show orders/0/17
    millstream rejected show orders/0/17 --raw > event.json
    """
    from millstream.log.rejected import app_with, read_one

    log = log_of(home, assignments)
    stream, partition, offset = parse_name(name, "rejected")
    one = read_one(log, app_with(log, stream, app), stream, partition, offset)
    if raw:
        print_raw(one.value)
        return
    others = {name: text for name, text in one.headers.items() if name not in ("reason", "field")}
    print_whole(one.id, one.at, one.reason, others, one.value)


@rejected.command()
@click.argument("stream")
@click.argument("ids", nargs=-1, metavar="[ID]...")
@place_options
@url_option
@access_options
@choice_options
@click.option("--all", "everything", is_flag=True, help="All that are held.")
@click.option("--dry-run", is_flag=True, help="Only tell which would be accepted.")
def replay(
    stream: str,
    ids: tuple[str, ...],
    home: Path,
    assignments: tuple[str, ...],
    app: str,
    url: str,
    since: str,
    reason: str,
    everything: bool,
    dry_run: bool,
    key_file: Path | None,
    ca: str,
) -> int:
    """Hand rejected events in again, after the schema was put right.

    Each is checked with the schema that the running collector has. Those that fit are sent to it,
    with their time and id in headers; those that don't are named and stay where they are, and the
    exit code is 1. What was replayed before is left out, so a second replay makes no doubles.

    \b
    millstream rejected replay orders --all
    millstream rejected replay orders --since "1 hour" --reason price
    millstream rejected replay orders orders/0/17 orders/0/18
    """
    from millstream.cli.replay import replay_events
    from millstream.log.rejected import app_with, read_one

    check_choice(ids, everything, since, reason)
    log = log_of(home, assignments)
    address, access = url_of("collect", url, home), access_of(key_file, ca)
    app = app_with(log, stream, app)
    places = [parse_name(name, "rejected") for name in ids]
    for (other, *_), name in zip(places, ids, strict=True):
        if other != stream:
            raise MillstreamError(f"{name} is no event of stream {stream!r}")
    events = (
        [read_one(log, app, *place) for place in places]
        if ids
        else sorted(chosen(log, app, stream, since, reason))
    )
    failed = replay_events(log, app, stream, events, address, access, dry_run=dry_run)
    return FAILED if failed else 0


def chosen(log: LogSettings, app: str, stream: str, since: str, reason: str) -> Iterator[Rejected]:
    """The stream's rejected events that the options mean."""
    from millstream.log.rejected import app_with, read_rejected

    start = since_when(since) if since else 0
    for one in read_rejected(log, app_with(log, stream, app), stream, start):
        if one.at >= start and reason.lower() in one.reason.lower():
            yield one


def show_line(one: Rejected, as_json: bool) -> None:
    print_line(one.id, one.at, one.reason, one.value, as_json, field=one.field, headers=one.headers)
