"""`failed`: accepted events that Kafka refused, and damaged entries of the journal."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from millstream.cli.dead_letters.damaged import PREFIX, DamagedEntries
from millstream.cli.dead_letters.output import print_letter, print_line
from millstream.cli.dead_letters.selection import (
    all_option,
    check_selection,
    filter_options,
    limit_option,
    matching,
)
from millstream.cli.shared.options import home_option, json_option, log_of, open_home, set_option
from millstream.cli.shared.outcome import FAILED, print_error
from millstream.errors import MillstreamError

if TYPE_CHECKING:
    from millstream.collect.intake.failed import FailedEvent, FailedStore
    from millstream.values.dead_letter import DeadLetter, DeadLetters


@click.group()
def failed() -> None:
    """List, show, retry and drop accepted events that Kafka refused, or that the disk damaged.

    They are on the collector's disk: the commands work on its --home. Ids that begin with
    `damaged-` are damaged entries of the collector's journal. Their events were accepted and are
    lost: they cannot be sent again. `show` prints the bytes that are left, and `drop` acknowledges
    the loss.

    \b
    millstream failed list
    millstream failed show 01JD…-17.0
    millstream failed retry --all
    """


@failed.command("list")
@home_option
@filter_options
@limit_option("first")
@json_option
def list_(home: Path, since: str, reason: str, limit: int, as_json: bool) -> int:
    """List failed events, in the order in which they came in.

    \b
    millstream failed list --since "1 hour" --reason "too large"
    millstream failed list --limit 100 --json
    """
    store, place = store_of(home), open_home(home)
    damaged = list(matching(DamagedEntries(place), since, reason))
    count = 0
    for count, letter in enumerate(matching(store, since, reason), 1):
        if count <= limit:
            print_line(letter, as_json)
    unreadable = list(store.unreadable())
    for name in unreadable:
        print_error(f"{name}: its file is damaged; look at it, and `millstream failed drop {name}`")
    for entry in damaged[: max(0, limit - count)]:
        print_line(entry, as_json)
    if not as_json:
        click.echo(f"{min(count, limit):,} of {count:,} failed events in {store.folder}", err=True)
        if damaged:
            pieces = f"{len(damaged):,} damaged pieces of the journal in {place.journal}"
            click.echo(f"{pieces}: their events were accepted and are lost", err=True)
    return FAILED if unreadable else 0


@failed.command()
@click.argument("name", metavar="ID")
@home_option
@click.option("--raw", is_flag=True, help="Print only the event's bytes, as received.")
@json_option
def show(name: str, home: Path, raw: bool, as_json: bool) -> None:
    """Show a failed event: the reason, its topic, its headers and its bytes.

    For a damaged entry of the journal: what it held, as far as that is known, and the bytes that
    are left.

    \b
    millstream failed show 01JD…-17.0
    millstream failed show 01JD…-17.0 --raw > event.json
    millstream failed show damaged-0-00000001-812 --raw | strings
    """
    print_letter(letters_with(home, name).get(name), raw=raw, as_json=as_json)


@failed.command()
@click.argument("ids", nargs=-1, metavar="[ID]...")
@home_option
@set_option
@filter_options
@all_option
@json_option
def retry(
    ids: tuple[str, ...],
    home: Path,
    assignments: tuple[str, ...],
    since: str,
    reason: str,
    everything: bool,
    as_json: bool,
) -> int:
    """Send failed events to Kafka again, after the cause was corrected.

    Each event goes to its topic with its key, headers and time. It is deleted here when Kafka's
    in-sync replicas have it. Events that fail again are listed and stay, with the new reason, and
    the exit code is 1. Events that are in the log already are not sent, so a retry that was killed
    creates no duplicates.

    \b
    millstream failed retry --all
    millstream failed retry --reason "too large"
    millstream failed retry 01JD…-17.0 01JD…-18.0
    """
    from millstream.cli.dead_letters.retry import retry_events

    check_selection(ids, everything, since, reason)
    for name in ids:
        if "retry" not in letters_with(home, name).actions:
            raise MillstreamError(
                f"cannot send {name} again: its bytes are damaged",
                remedy=f"`millstream failed show {name} --raw` prints what is left: send again "
                "what is intact, and `millstream failed drop` the entry",
            )
    log, store = log_of(home, assignments), store_of(home)
    unreadable: list[str] = []
    events = list(selected(store, ids, since, reason, unreadable))
    with open_home(home).hold("failed-retry"):
        result = retry_events(log, store, events)
    result.left.update(dict.fromkeys(unreadable, "its file is damaged"))
    if as_json:
        content = {"sent": result.sent, "there": result.there, "left": result.left}
        click.echo(json.dumps(content, ensure_ascii=False))
    else:
        result.show()
    return FAILED if result.left else 0


@failed.command()
@click.argument("ids", nargs=-1, metavar="[ID]...")
@home_option
@filter_options
@all_option
@click.option("--yes", is_flag=True, help="Do not ask.")
def drop(
    ids: tuple[str, ...], home: Path, since: str, reason: str, everything: bool, yes: bool
) -> None:
    """Delete failed events for good. They were accepted: after this they are lost.

    Dropping a damaged entry of the journal acknowledges its loss: `status` no longer reports it,
    and `audit` still counts it.

    \b
    millstream failed drop 01JD…-17.0
    millstream failed drop damaged-0-00000001-812
    millstream failed drop --reason "no stream" --yes
    """
    check_selection(ids, everything, since, reason)
    store, entries = store_of(home), DamagedEntries(open_home(home))
    if ids:
        damaged = [entries.get(name) for name in ids if name.startswith(PREFIX)]
    else:
        damaged = list(matching(entries, since, reason))
    failed_ids = tuple(name for name in ids if not name.startswith(PREFIX))
    names: list[str] = []
    if failed_ids or not ids:
        unreadable: list[str] = []
        names = [one.id for one in selected(store, failed_ids, since, reason, unreadable)]
        # An unreadable file has no reason and no time: only its id or --all selects it.
        names += unreadable if ids or everything else []
    if (names or damaged) and not yes:
        if not sys.stdin.isatty():
            raise click.UsageError("this cannot be undone: confirm it with --yes")
        count = len(names) + len(damaged)
        click.confirm(f"delete {count:,} accepted or damaged entries for good?", abort=True)
    click.echo(f"{store.drop(names) + entries.drop(damaged):,} dropped")


def store_of(home: Path) -> FailedStore:
    from millstream.collect.intake.failed import FailedStore

    return FailedStore(open_home(home).failed)


def letters_with(home: Path, name: str) -> DeadLetters[DeadLetter]:
    """The store that the id belongs to."""
    return DamagedEntries(open_home(home)) if name.startswith(PREFIX) else store_of(home)


def selected(
    store: FailedStore, ids: tuple[str, ...], since: str, reason: str, unreadable: list[str]
) -> Iterator[FailedEvent]:
    """The events with these ids, or those that the options choose; MillstreamError if one is gone.

    Ids of files that cannot be read are added to `unreadable`.
    """
    from millstream.collect.intake.failed import Unreadable

    if not ids:
        yield from matching(store, since, reason)
        unreadable += store.unreadable()
    for name in ids:
        try:
            yield store.get(name)
        except Unreadable:
            unreadable.append(name)
