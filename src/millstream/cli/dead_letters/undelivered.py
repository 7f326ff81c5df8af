"""`undelivered`: messages that no member of a group could handle."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from millstream.cli.dead_letters.selection import (
    all_option,
    check_selection,
    filter_options,
    log_options,
    matching,
)
from millstream.cli.dead_letters.topic_commands import add_list_and_show
from millstream.cli.shared.options import log_of

if TYPE_CHECKING:
    from millstream.log.dead_letters.topic import Kind
    from millstream.log.dead_letters.undelivered import Undelivered, UndeliveredTopic


@click.group()
def undelivered() -> None:
    """List, show, retry and drop messages that no member of a group could handle.

    A message is set aside after the group's max_attempts, with the reason of the last attempt.

    \b
    millstream undelivered list billing --since "1 hour"
    millstream undelivered show billing/0/17
    millstream undelivered retry billing --all
    """


def undelivered_kind() -> Kind[Any]:
    from millstream.log.dead_letters.undelivered import UNDELIVERED

    return UNDELIVERED


add_list_and_show(
    undelivered,
    undelivered_kind,
    list_help="""List a group's messages that are set aside, the newest last.

    \b
    millstream undelivered list billing
    millstream undelivered list billing --reason timeout --limit 100 --json
    """,
    show_help="""Show a message that was set aside: the reason, its position and its content.

    \b
    millstream undelivered show billing/0/17
    millstream undelivered show billing/0/17 --raw > message.json
    """,
    subject="group",
)


@undelivered.command()
@click.argument("group")
@click.argument("ids", nargs=-1, metavar="[ID]...")
@log_options
@filter_options
@all_option
def retry(
    group: str,
    ids: tuple[str, ...],
    home: Path,
    assignments: tuple[str, ...],
    app: str,
    since: str,
    reason: str,
    everything: bool,
) -> None:
    """Deliver messages to the group's members again, from the first attempt on.

    A message that fails again is set aside again. Newer messages of its key may have been handled
    before it.

    \b
    millstream undelivered retry billing --all
    millstream undelivered retry billing billing/0/17 billing/0/18
    """
    check_selection(ids, everything, since, reason)
    count = _apply("retry", group, ids, log_of(home, assignments), app, since, reason)
    click.echo(f"{count:,} sent to the group again")


@undelivered.command()
@click.argument("group")
@click.argument("ids", nargs=-1, metavar="[ID]...")
@log_options
@filter_options
@all_option
@click.option("--yes", is_flag=True, help="Do not ask.")
def drop(
    group: str,
    ids: tuple[str, ...],
    home: Path,
    assignments: tuple[str, ...],
    app: str,
    since: str,
    reason: str,
    everything: bool,
    yes: bool,
) -> None:
    """Remove messages that were set aside. The view, stream or ledger still has their rows.

    \b
    millstream undelivered drop billing billing/0/17
    """
    check_selection(ids, everything, since, reason)
    if not yes:
        click.confirm(f"Remove undelivered messages of {group}?", abort=True, err=True)
    count = _apply("drop", group, ids, log_of(home, assignments), app, since, reason)
    click.echo(f"{count:,} removed")


def _apply(
    action: Literal["retry", "drop"],
    group: str,
    ids: tuple[str, ...],
    log: Any,
    app: str,
    since: str,
    reason: str,
) -> int:
    """Do it with the chosen messages; returns how many they were."""
    from millstream.log.dead_letters.undelivered import UNDELIVERED

    letters = UNDELIVERED.open(log, group, app)
    chosen = [letters.get(each) for each in ids] or list(matching(letters, since, reason))
    if chosen:
        asyncio.run(_send(action, letters, chosen))
    return len(chosen)


async def _send(
    action: Literal["retry", "drop"], letters: UndeliveredTopic, chosen: list[Undelivered]
) -> None:
    from millstream.log.producing.producer import Producer

    producer = Producer(letters.log)
    try:
        work = letters.send_again if action == "retry" else letters.drop
        await work(producer, chosen)
    finally:
        await producer.close()
