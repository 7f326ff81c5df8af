"""`rejected`: events that did not fit their stream's schema."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from millstream.cli.dead_letters.selection import (
    all_option,
    check_selection,
    filter_options,
    log_options,
    matching,
)
from millstream.cli.dead_letters.topic_commands import add_list_and_show
from millstream.cli.shared.options import access_of, access_options, log_of, url_of, url_option
from millstream.cli.shared.outcome import FAILED

if TYPE_CHECKING:
    from millstream.log.dead_letters.rejected import Rejected
    from millstream.log.dead_letters.topic import Kind


@click.group()
def rejected() -> None:
    """List, show and replay events that did not fit their stream's schema.

    \b
    millstream rejected list orders --since "1 hour"
    millstream rejected show orders/0/17
    millstream rejected replay orders --all
    """


def rejected_kind() -> Kind[Rejected]:
    from millstream.log.dead_letters.rejected import REJECTED

    return REJECTED


add_list_and_show(
    rejected,
    rejected_kind,
    list_help="""List a stream's rejected events, the newest last.

    \b
    millstream rejected list orders
    millstream rejected list orders --reason price --limit 100 --json
    """,
    show_help="""Show a rejected event: the reason, its headers and its bytes.

    \b
    millstream rejected show orders/0/17
    millstream rejected show orders/0/17 --raw > event.json
    """,
)


@rejected.command()
@click.argument("stream")
@click.argument("ids", nargs=-1, metavar="[ID]...")
@log_options
@url_option
@access_options
@filter_options
@all_option
@click.option("--dry-run", is_flag=True, help="Send nothing; only say what would be accepted.")
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
    """Send rejected events to the collector again, after the schema was corrected.

    Each event is checked against the schema of the running collector. Events that fit are sent,
    with their original time and id in headers. Events that do not fit are listed and stay rejected,
    and the exit code is 1. Events that were replayed before are skipped, so a second replay creates
    no duplicates.

    \b
    millstream rejected replay orders --all
    millstream rejected replay orders --since "1 hour" --reason price
    millstream rejected replay orders orders/0/17 orders/0/18
    """
    from millstream.cli.dead_letters.replay import replay_events

    check_selection(ids, everything, since, reason)
    log = log_of(home, assignments)
    address, access = url_of("collect", url, home), access_of(key_file, ca)
    letters = rejected_kind().open(log, stream, app)
    events = [letters.get(each) for each in ids] or sorted(matching(letters, since, reason))
    failed = replay_events(letters, events, address, access, dry_run=dry_run)
    return FAILED if failed else 0
