"""`rejected`: events that did not fit their stream's schema, to list, look at and replay."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from millstream.cli.dead_letters.selection import (
    check_choice,
    choice_options,
    parse_name,
    place_options,
)
from millstream.cli.dead_letters.set_aside import add_looks, chosen
from millstream.cli.shared.options import access_of, access_options, log_of, url_of, url_option
from millstream.cli.shared.outcome import FAILED
from millstream.errors import MillstreamError

if TYPE_CHECKING:
    from millstream.log.dead_letters.rejected import Rejected
    from millstream.log.dead_letters.topic import Shelf


@click.group()
def rejected() -> None:
    """List, show and replay events that did not fit their stream.

    \b
    millstream rejected list orders --since "1 hour"
    millstream rejected show orders/0/17
    millstream rejected replay orders --all
    """


def shelf_of() -> Shelf[Rejected]:
    from millstream.log.dead_letters.rejected import REJECTED

    return REJECTED


add_looks(
    rejected,
    shelf_of,
    listing="""List a stream's rejected events, the newest last.

    \b
    millstream rejected list orders
    millstream rejected list orders --reason price --limit 100 --json
    """,
    showing="""Show a rejected event: why, its headers, its bytes.

    \b
    millstream rejected show orders/0/17
    millstream rejected show orders/0/17 --raw > event.json
    """,
)


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
    from millstream.cli.dead_letters.replay import replay_events

    check_choice(ids, everything, since, reason)
    shelf, log = shelf_of(), log_of(home, assignments)
    address, access = url_of("collect", url, home), access_of(key_file, ca)
    app = shelf.app_with(log, stream, app)
    places = [parse_name(name, "rejected") for name in ids]
    for (other, *_), name in zip(places, ids, strict=True):
        if other != stream:
            raise MillstreamError(f"{name} is no event of stream {stream!r}")
    events = (
        [shelf.read_one(log, app, *place) for place in places]
        if ids
        else sorted(chosen(shelf, log, app, stream, since, reason))
    )
    failed = replay_events(log, app, stream, events, address, access, dry_run=dry_run)
    return FAILED if failed else 0
