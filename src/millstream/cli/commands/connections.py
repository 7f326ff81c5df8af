"""`connections`: lists the clients of a server, and closes the connection of one."""

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
def connections(
    context: click.Context,
    home: Path,
    url: str,
    key_file: Path | None,
    ca: str,
    as_json: bool,
) -> None:
    """List the connections of a server's clients, WebSockets and server-sent events.

    Shows for each the caller, the address, what it is subscribed to, the messages per second, the
    changes that wait because it reads slowly, the bytes sent, and since when it is connected. Each
    server has connections of its own. This needs the right `admin`.

    \b
    millstream connections
    millstream connections --json | jq -r '.[] | select(.behind > 1000) | .id'
    millstream connections close 4f19c2-17
    """
    if context.invoked_subcommand is not None:
        return
    access = serve_access(url, home, key_file, ca)
    found = _call(lambda client: client.connections(), *access)
    if as_json:
        click.echo(json.dumps(found))
    else:
        _show(found)


@connections.command("close")
@click.argument("identifier", metavar="ID")
@_place_options
def close_connection(identifier: str, home: Path, url: str, key_file: Path | None, ca: str) -> None:
    """Close the connection with that ID; the client is told that it need not connect again.

    \b
    millstream connections close 4f19c2-17
    """
    access = serve_access(url, home, key_file, ca)
    _call(lambda client: client.close_connection(identifier), *access)
    click.echo(f"closed {identifier}")


def _call(work: Callable[[Client], Any], url: str, access: Credentials) -> Any:
    import asyncio

    from millstream.client import Client

    async def call() -> Any:
        async with Client(url, credentials=access) as client:
            return await work(client)

    return asyncio.run(call())


def _show(found: list[dict[str, Any]]) -> None:
    if not found:
        click.echo("no client is connected")
        return
    from rich.text import Text

    from millstream.supervise.status_tables import console, grid

    table = grid(
        "id",
        "caller",
        "address",
        "transport",
        "subscriptions",
        ">rate",
        ">behind",
        ">bytes",
        "since",
    )
    for each in found:
        table.add_row(
            Text(each["id"], "bold"),
            each["caller"],
            each["address"],
            each["transport"],
            "\n".join(map(_subscription, each["subscriptions"])),
            f"{each['rate']:,.1f}/s",
            f"{each['behind']:,}",
            f"{each['bytes']:,}",
            each["since"],
        )
    console().print(table)


def _subscription(subscription: dict[str, Any]) -> str:
    where = f" where {subscription['where']}" if subscription.get("where") else ""
    return f"{subscription['kind']} {subscription['name']}{where}"
