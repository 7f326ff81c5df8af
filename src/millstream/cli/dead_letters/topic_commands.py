"""`list` and `show` for dead letters in a topic: rejected and late events."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from millstream.cli.dead_letters.output import print_letter, print_line
from millstream.cli.dead_letters.selection import (
    filter_options,
    limit_option,
    log_options,
    matching,
)
from millstream.cli.shared.options import json_option, log_of

if TYPE_CHECKING:
    from millstream.log.dead_letters.topic import Kind


def add_list_and_show(
    group: click.Group,
    kind_of: Callable[[], Kind[Any]],
    *,
    list_help: str,
    show_help: str,
    subject: str = "stream",
) -> None:
    """Add both commands to a group; `subject` is what each topic belongs to.

    `kind_of` is called only when a command runs: its import would slow down `--help`.
    """

    @group.command("list", help=list_help)
    @click.argument("stream", metavar=subject.upper())
    @log_options
    @filter_options
    @limit_option("newest")
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
        kind = kind_of()
        letters = kind.open(log_of(home, assignments), stream, app)
        count, newest = 0, list[Any]()
        for count, letter in enumerate(matching(letters, since, reason), 1):
            if count <= limit:
                heapq.heappush(newest, letter)
            else:
                heapq.heappushpop(newest, letter)
        for letter in sorted(newest):
            print_line(letter, as_json)
        if not as_json:
            what = f"{kind.name} {kind.items} of {stream}"
            click.echo(f"{len(newest):,} of {count:,} {what}", err=True)

    @group.command("show", help=show_help)
    @click.argument("name", metavar=f"{subject.upper()}/PARTITION/OFFSET")
    @log_options
    @click.option("--raw", is_flag=True, help="Print only the event's bytes, as received.")
    def show(name: str, home: Path, assignments: tuple[str, ...], app: str, raw: bool) -> None:
        from millstream.log.dead_letters.topic import parse_id

        kind = kind_of()
        stream, _, _ = parse_id(name, kind.name)
        letter = kind.open(log_of(home, assignments), stream, app).get(name)
        print_letter(letter, raw=raw)
