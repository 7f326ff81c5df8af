"""`list` and `show`: looking at events that were set aside in a topic, whatever the reason."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from millstream.cli.dead_letters.selection import (
    choice_options,
    parse_name,
    place_options,
    print_line,
    print_newest,
    print_raw,
    print_whole,
    since_when,
)
from millstream.cli.shared.options import json_option, log_of

if TYPE_CHECKING:
    from millstream.log.dead_letters.topic import E, Shelf
    from millstream.log.settings import LogSettings


def add_looks(
    group: click.Group, shelf_of: Callable[[], Shelf[Any]], *, listing: str, showing: str
) -> None:
    """Give a group both commands, with these words as their help.

    `shelf_of` tells where the events are; it is called when a command runs, not for its help.
    """

    @group.command("list", help=listing)
    @click.argument("stream")
    @place_options
    @choice_options
    @click.option(
        "--limit", type=click.IntRange(1), default=20, show_default=True, help="The newest."
    )
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
        shelf, log = shelf_of(), log_of(home, assignments)
        lines = as_json or not sys.stdout.isatty()

        def print_one(one: Any) -> None:
            more = {**one.details, "headers": one.headers}
            print_line(one.id, one.at, one.reason, one.value, lines, **more)

        events = chosen(shelf, log, app, stream, since, reason)
        what = f"{shelf.word} events of {stream}"
        print_newest(events, limit, print_one, what, counted=not as_json)

    @group.command("show", help=showing)
    @click.argument("name", metavar="STREAM/PARTITION/OFFSET")
    @place_options
    @click.option("--raw", is_flag=True, help="Only the event's bytes, as they came.")
    def show(name: str, home: Path, assignments: tuple[str, ...], app: str, raw: bool) -> None:
        shelf = shelf_of()
        stream, partition, offset = parse_name(name, shelf.word)
        log = log_of(home, assignments)
        one = shelf.read_one(log, shelf.app_with(log, stream, app), stream, partition, offset)
        if raw:
            print_raw(one.value)
        else:
            print_whole(one.id, one.at, one.reason, one.facts, one.value)


def chosen(
    shelf: Shelf[E], log: LogSettings, app: str, stream: str, since: str, reason: str
) -> Iterator[E]:
    """The stream's events on the shelf that the options mean."""
    start = since_when(since) if since else 0
    for one in shelf.read(log, shelf.app_with(log, stream, app), stream, start):
        if one.at >= start and reason.lower() in one.reason.lower():
            yield one
