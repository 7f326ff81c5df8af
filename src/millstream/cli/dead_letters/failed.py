"""`failed`: events that Kafka refused for good, to list, look at, send again or drop."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from millstream.cli.dead_letters.damaged import (
    PREFIX,
    acknowledge,
    chosen_damage,
    damage_of,
    list_damage,
    show_damage,
)
from millstream.cli.dead_letters.selection import (
    check_choice,
    choice_options,
    print_line,
    print_raw,
    print_whole,
    since_when,
)
from millstream.cli.shared.options import home_option, json_option, log_of, open_home, set_option
from millstream.cli.shared.outcome import FAILED, complain
from millstream.errors import MillstreamError

if TYPE_CHECKING:
    from millstream.collect.intake.failed import Failed, FailedStore


@click.group()
def failed() -> None:
    """List, show, retry and drop accepted events that Kafka refused for good, or that were lost.

    They are on the disk of the collector: commands work on its home. An event was lost if its entry
    in the journal is damaged; such entries have ids that begin with `damaged-`. They cannot be sent
    again, but shown, with the bytes that are left, and dropped: that acknowledges the loss.

    \b
    millstream failed list
    millstream failed show 01JD…-17.0
    millstream failed retry --all
    """


@failed.command("list")
@home_option
@choice_options
@click.option("--limit", type=click.IntRange(1), default=20, show_default=True, help="The first.")
@json_option
def list_(home: Path, since: str, reason: str, limit: int, as_json: bool) -> int:
    """List failed events, in the order in which they came in.

    \b
    millstream failed list --since "1 hour" --reason "too large"
    millstream failed list --limit 100 --json
    """
    store, place = store_of(home), open_home(home)
    lost = chosen_damage(place, since_when(since) if since else 0, reason)
    damaged: list[str] = []
    count = 0
    for count, one in enumerate(chosen(store, since, reason, damaged), 1):
        if count <= limit:
            facts = {"topic": one.topic, "failed_at": one.failed_at, "headers": headers_of(one)}
            at, as_line = one.timestamp, as_json or not sys.stdout.isatty()
            print_line(one.id, at, one.reason, one.value, as_line, **facts)
    for name in damaged:
        complain(f"{name}: its file is damaged; look at it, and `millstream failed drop {name}`")
    list_damage(lost[: max(0, limit - count)], as_json)
    if not as_json:
        click.echo(f"{min(count, limit):,} of {count:,} failed events in {store.folder}", err=True)
    if lost and not as_json:
        count_lost = f"{len(lost):,} damaged pieces of the journal in {place.journal}"
        click.echo(f"{count_lost}: what they held was accepted, and is lost", err=True)
    return FAILED if damaged else 0


@failed.command()
@click.argument("name", metavar="ID")
@home_option
@click.option("--raw", is_flag=True, help="Only the event's bytes, as they came.")
@json_option
def show(name: str, home: Path, raw: bool, as_json: bool) -> None:
    """Show a failed event: why, where it was to go, its headers, its bytes.

    Of a damaged entry of the journal: what it held, as far as it can be told, and what is left.

    \b
    millstream failed show 01JD…-17.0
    millstream failed show 01JD…-17.0 --raw > event.json
    millstream failed show damaged-0-00000001-812 --raw | strings
    """
    if name.startswith(PREFIX):
        show_damage(damage_of(open_home(home), name), raw, as_json)
        return
    one = store_of(home).get(name)
    if raw:
        print_raw(one.value)
    elif as_json:
        facts = {"topic": one.topic, "failed_at": one.failed_at, "headers": headers_of(one)}
        print_line(one.id, one.timestamp, one.reason, one.value, True, **facts)
    else:
        key = (one.key or b"").decode("utf-8", "backslashreplace")
        known = {"topic": one.topic or "–", "key": key, **headers_of(one)}
        print_whole(one.id, one.timestamp, one.reason, known, one.value)


@failed.command()
@click.argument("ids", nargs=-1, metavar="[ID]...")
@home_option
@set_option
@choice_options
@click.option("--all", "everything", is_flag=True, help="All that are held.")
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
    """Send failed events to Kafka again, after what kept it from them was put right.

    Each goes to its topic with its key, headers and time, and leaves the store when Kafka's in-sync
    replicas have it. Those that fail again are named and stay, with the new reason, and the exit
    code is 1. What is in the log already is not sent: a retry that was killed makes no doubles.

    \b
    millstream failed retry --all
    millstream failed retry --reason "too large"
    millstream failed retry 01JD…-17.0 01JD…-18.0
    """
    import json

    from millstream.cli.dead_letters.retry import retry_events

    check_choice(ids, everything, since, reason)
    if lost := [name for name in ids if name.startswith(PREFIX)]:
        raise MillstreamError(
            f"cannot send {lost[0]} again: its bytes are damaged",
            remedy=f"`millstream failed show {lost[0]} --raw` gives what is left: hand in again "
            "what is whole, and `millstream failed drop` the entry",
        )
    log, store = log_of(home, assignments), store_of(home)
    damaged: list[str] = []
    events = list(picked(store, ids, since, reason, damaged))
    with open_home(home).hold("failed-retry"):
        result = retry_events(log, store, events)
    result.left.update(dict.fromkeys(damaged, "its file is damaged"))
    if as_json:
        content = {"sent": result.sent, "there": result.there, "left": result.left}
        click.echo(json.dumps(content, ensure_ascii=False))
    else:
        result.tell()
    return FAILED if result.left else 0


@failed.command()
@click.argument("ids", nargs=-1, metavar="[ID]...")
@home_option
@choice_options
@click.option("--all", "everything", is_flag=True, help="All that are held.")
@click.option("--yes", is_flag=True, help="Do not ask.")
def drop(
    ids: tuple[str, ...], home: Path, since: str, reason: str, everything: bool, yes: bool
) -> None:
    """Delete failed events for good. They were accepted: this is how they get lost.

    Dropping a damaged entry of the journal acknowledges that it is lost: `status` no longer names
    it, and `audit` still counts it.

    \b
    millstream failed drop 01JD…-17.0
    millstream failed drop damaged-0-00000001-812
    millstream failed drop --reason "no stream" --yes
    """
    check_choice(ids, everything, since, reason)
    store, place = store_of(home), open_home(home)
    if ids:
        lost = [damage_of(place, name) for name in ids if name.startswith(PREFIX)]
    else:
        lost = chosen_damage(place, since_when(since) if since else 0, reason)
    others = tuple(name for name in ids if not name.startswith(PREFIX))
    damaged: list[str] = []
    names: list[str] = []
    if others or not ids:
        names += [one.id for one in picked(store, others, since, reason, damaged)]
    # A damaged file has no reason and no time: it goes by its id, or with all.
    names += damaged if ids or everything else []
    if (names or lost) and not yes:
        if not sys.stdin.isatty():
            raise click.UsageError("this cannot be undone: confirm it with --yes")
        count = len(names) + len(lost)
        click.confirm(f"delete {count:,} accepted or damaged entries for good?", abort=True)
    click.echo(f"{store.drop(names) + acknowledge(lost):,} dropped")


def store_of(home: Path) -> FailedStore:
    from millstream.collect.intake.failed import FailedStore

    return FailedStore(open_home(home).failed)


def chosen(store: FailedStore, since: str, reason: str, damaged: list[str]) -> Iterator[Failed]:
    """The failed events that the options mean; ids of files that cannot be read go to `damaged`."""
    from millstream.collect.intake.failed import NotThere

    start = since_when(since) if since else 0
    for name in store.ids():
        try:
            one = store.get(name)
        except NotThere:  # dropped meanwhile
            continue
        except MillstreamError:
            damaged.append(name)
            continue
        if one.failed_at >= start and reason.lower() in one.reason.lower():
            yield one


def picked(
    store: FailedStore, ids: tuple[str, ...], since: str, reason: str, damaged: list[str]
) -> Iterator[Failed]:
    """Those of the ids, or those of the options. MillstreamError if there is none of an id."""
    from millstream.collect.intake.failed import NotThere

    if not ids:
        yield from chosen(store, since, reason, damaged)
    for name in ids:
        try:
            yield store.get(name)
        except NotThere:
            raise
        except MillstreamError:
            damaged.append(name)


def headers_of(one: Failed) -> dict[str, str]:
    return {name: (text or b"").decode("utf-8", "replace") for name, text in one.headers}
