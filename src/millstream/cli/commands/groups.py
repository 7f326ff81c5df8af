"""`groups`: shows, resets and drops groups of clients that share messages."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from millstream.cli.shared.options import (
    access_options,
    home_option,
    json_option,
    serve_access,
    url_option,
)

if TYPE_CHECKING:
    from millstream.client import Client
    from millstream.client.credentials import Credentials

F = TypeVar("F", bound=Callable[..., Any])


def _place_options(function: F) -> F:
    return home_option(url_option(access_options(function)))


@click.group(invoke_without_command=True)
@_place_options
@json_option
@click.pass_context
def groups(
    context: click.Context, home: Path, url: str, key_file: Path | None, ca: str, as_json: bool
) -> None:
    """List the groups of clients that share the messages of a view, stream or ledger.

    Shows for each its members, the records behind its position (lag), the messages that wait for
    an acknowledgement (pending), and what became of the records that it has passed: each was
    acknowledged, set aside or filtered, or is absent because Kafka has compacted it away. This
    needs the right `admin`.

    \b
    millstream groups
    millstream groups show billing
    millstream groups reset billing --to 2026-11-18T12:00:00Z
    """
    if context.invoked_subcommand is not None:
        return
    found = _call(lambda client: client.groups(), *serve_access(url, home, key_file, ca))
    if as_json:
        click.echo(json.dumps(found))
    elif found:
        _show_all(found)
    else:
        click.echo("there are no groups")


@groups.command("show")
@click.argument("name")
@_place_options
@json_option
def show_group(
    name: str, home: Path, url: str, key_file: Path | None, ca: str, as_json: bool
) -> None:
    """Show one group: its definition, its partitions, and its members on each server.

    \b
    millstream groups show billing
    millstream groups show billing --json | jq .position
    """
    found = _call(lambda client: client.show_group(name), *serve_access(url, home, key_file, ca))
    if as_json:
        click.echo(json.dumps(found))
    else:
        _show_one(found)


@groups.command("reset")
@click.argument("name")
@click.option(
    "--to",
    required=True,
    metavar="TIME|POSITION|start|end",
    help="Where the group continues: '1 hour' ago, a timestamp, a position, start or end.",
)
@_place_options
def reset_group(name: str, to: str, home: Path, url: str, key_file: Path | None, ca: str) -> None:
    """Let a group continue elsewhere, earlier or later, as far back as the log reaches.

    Its members stay. Messages that they have now are not theirs any more, so a message may be
    handled twice. Messages that were set aside stay so.

    \b
    millstream groups reset billing --to "1 hour"
    millstream groups reset billing --to start
    """
    target = _target(to)
    access = serve_access(url, home, key_file, ca)
    position = _call(lambda client: client.reset_group(name, target), *access)
    click.echo(f"{name} continues at {position}")


@groups.command("drop")
@click.argument("name")
@_place_options
@click.option("--yes", is_flag=True, help="Do not ask.")
def drop_group(name: str, home: Path, url: str, key_file: Path | None, ca: str, yes: bool) -> None:
    """Remove a group, its position and its messages that are set aside; its members must leave.

    \b
    millstream groups drop billing
    millstream groups drop billing --yes
    """
    if not yes:
        question = f"Remove group {name}, its position and its undelivered messages?"
        click.confirm(question, abort=True, err=True)
    _call(lambda client: client.drop_group(name), *serve_access(url, home, key_file, ca))
    click.echo(f"{name} is removed", err=True)


def _target(to: str) -> str:
    """What the server takes: a duration becomes a time, everything else stays."""
    from millstream.cli.shared.options import parse_time
    from millstream.errors import InvalidPosition
    from millstream.values.clock import to_iso
    from millstream.values.position import Position

    if to in ("start", "end"):
        return to
    try:
        return str(Position.parse(to))
    except InvalidPosition:
        return to_iso(parse_time(to, "--to"))


def _call(work: Callable[[Client], Any], url: str, access: Credentials) -> Any:
    import asyncio

    from millstream.client import Client

    async def call() -> Any:
        async with Client(url, credentials=access) as client:
            return await work(client)

    return asyncio.run(call())


def _source(group: dict[str, Any]) -> str:
    kind = next(kind for kind in ("view", "stream", "ledger") if kind in group)
    where = f" where {group['where']}" if group["where"] else ""
    return f"{kind} {group[kind]}{where}"


def _show_all(found: list[dict[str, Any]]) -> None:
    from rich.text import Text

    from millstream.supervise.status_tables import console, grid

    counts = ("members", "lag", "pending", "redelivered", "acknowledged", "set_aside", "filtered")
    table = grid("group", "source", *(f">{name.replace('_', ' ')}" for name in counts))
    for each in found:
        numbers = [f"{each[name]:,}" for name in counts]
        table.add_row(Text(each["name"], "bold"), _source(each), *numbers)
    console().print(table)


def _show_one(group: dict[str, Any]) -> None:
    from millstream.supervise.status_tables import console, grid

    rules = (
        f"ack_timeout {group['ack_timeout']:g} s, max_attempts {group['max_attempts']}"
        if group["ack"]
        else "acknowledged when written"
    )
    click.echo(f"{group['name']}: {_source(group)}; {rules}")
    click.echo(f"created {group['created_at']} by {group['creator']}")
    if "warning" in group:
        click.echo(click.style(group["warning"], fg="yellow"), err=True)
    click.echo(f"position {group['position']}")
    click.echo(
        f"passed {group['passed']:,} = {group['acknowledged']:,} acknowledged + "
        f"{group['set_aside']:,} set aside + {group['filtered']:,} filtered + "
        f"{group['absent']:,} absent; {group['pending']:,} pending, lag {group['lag']:,}"
    )
    parts = grid(">partition", ">position", ">end", ">lag", "server")
    for each in group["partitions"]:
        numbers = [f"{each[name]:,}" for name in ("position", "end", "lag")]
        parts.add_row(str(each["partition"]), *numbers, each["server"] or "none")
    console().print(parts)
    if group["servers"]:
        members = grid("server", "member", ">pending", ">of")
        for server in group["servers"]:
            for one in server["members"]:
                numbers = [str(one["pending"]), str(one["max_pending"])]
                members.add_row(server["url"], one["caller"], *numbers)
        console().print(members)
