"""`tail`: follow a view, a stream or a query as it changes."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from millstream.cli.shared.options import (
    access_options,
    home_option,
    json_option,
    parameter_option,
    read_parameters,
    serve_access,
    url_option,
)
from millstream.errors import MillstreamError, RequestRefused

if TYPE_CHECKING:
    from millstream.client import Client, Message
    from millstream.client.credentials import Credentials

Line = dict[str, Any]
FORBIDDEN = 403


@click.command()
@click.argument("name", metavar="NAME|SQL")
@home_option
@url_option
@access_options
@json_option
@click.option("--where", default=None, help="Only rows that match this SQL condition.")
@click.option(
    "--after", default=None, help="Continue after this position or time, without a snapshot."
)
@click.option("--ledger", is_flag=True, help="Follow the entries of the view's ledger.")
@parameter_option
@click.option("--lineage", is_flag=True, help="Also show the lineage columns (_revision …).")
@click.option(
    "-n",
    "--limit-count",
    type=click.IntRange(1),
    default=None,
    help="Stop after so many rows, including those of the snapshot.",
)
def tail(
    name: str,
    home: Path,
    url: str,
    key_file: Path | None,
    ca: str,
    as_json: bool,
    where: str | None,
    after: str | None,
    ledger: bool,
    parameters: tuple[str, ...],
    lineage: bool,
    limit_count: int | None,
) -> None:
    """Follow a view, the events of a stream, a named query, or a SELECT over views.

    Prints the current rows, then every change, until Ctrl-C. A lost connection is opened again and
    continues at the same position. Into a pipe, or with --json, each row is a line of JSON with the
    position after it: pass it to --after to continue there.

    \b
    millstream tail by_city
    millstream tail by_city --where "n > 10"
    millstream tail rsvps --json -n 5
    millstream tail top_products -p n=10
    millstream tail "SELECT city, n FROM by_city ORDER BY n DESC LIMIT 5"
    millstream tail per_minute --ledger --where "kind = 'retraction'"
    """
    import asyncio

    plain = as_json or not sys.stdout.isatty()
    request: dict[str, Any] = {"where": where, "after": after, "lineage": lineage}
    if ledger:
        request["ledger"] = name
    elif " " in name:
        request["sql"] = name
    if parameters:
        request["params"] = read_parameters(parameters)
    address, access = serve_access(url, home, key_file, ca)
    asyncio.run(follow(address, access, name, request, plain, limit_count))


_OPTIONAL = ("skipped", "warning")  # shown only if they say something


async def follow(
    url: str,
    access: Credentials,
    name: str,
    request: dict[str, Any],
    plain: bool,
    count: int | None,
) -> None:
    from millstream.client import Client

    count_shown, pretty = 0, show_entry if "ledger" in request else show_pretty
    show = show_json if plain else pretty
    async with Client(url, credentials=access) as client:
        if not request.keys() & {"ledger", "sql"}:
            request[await kind_of(client, name)] = name
        async with client.changes(**request, pages=True) as changes:
            async for message in changes:
                for line in lines_of(message):
                    show(line)
                    count_shown += line["type"] in ("snapshot", "change")
                    if count_shown == count:
                        return


async def kind_of(client: Client, name: str) -> str:
    """`view`, `stream` or `query`; MillstreamError for an unknown name lists the known ones."""
    from difflib import get_close_matches

    queries = [query["name"] for query in await client.queries()]
    try:
        system = await client.system()
    except RequestRefused as refused:
        if refused.status != FORBIDDEN:
            raise
        # Without the right `admin`, only the server knows the streams.
        views = [view["name"] for view in await client.views()]
        return "view" if name in views else "query" if name in queries else "stream"
    views = [view["name"] for view in system["views"]]
    streams = [stream["name"] for stream in system["streams"]]
    if name in views:
        return "view"
    if name in streams:
        return "stream"
    if name in queries:
        return "query"
    close = get_close_matches(name, views + streams + queries, n=1)
    known = "; ".join(
        f"{kind}: {', '.join(names) or 'none'}"
        for kind, names in (("views", views), ("streams", streams), ("queries", queries))
    )
    raise MillstreamError(
        f"there is no view, stream or query {name!r}",
        remedy=f"did you mean {close[0]!r}? ({known})" if close else known,
    )


def lines_of(message: Message) -> Iterator[Line]:
    """One line per row of a message, with the position after the row."""
    from decimal import Decimal

    from msgspec import to_builtins

    from millstream.client import Snapshot

    if isinstance(message, Snapshot):
        for keyed in message.rows:
            row = {"op": "upsert", "key": keyed.key, "row": keyed.row}
            yield {"type": "snapshot", **row, "position": message.position}
    else:
        line = to_builtins(message, builtin_types=(Decimal,))
        yield {name: value for name, value in line.items() if name not in _OPTIONAL or value}


def show_json(line: Line) -> None:
    from msgspec.json import Encoder

    sys.stdout.write(Encoder(decimal_format="number").encode(line).decode() + "\n")
    sys.stdout.flush()


def show_entry(line: Line) -> None:
    """Shows an entry of a ledger like `millstream ledger`."""
    from msgspec import convert

    from millstream.cli.views.ledger import show
    from millstream.values.ledger_entry import LedgerEntry

    if line["type"] == "change":
        show(convert(line["row"], LedgerEntry), plain=False)
    else:
        show_pretty(line)


def show_pretty(line: Line) -> None:
    from datetime import datetime

    from millstream.cli.shared.text import format_row, value_text

    now = click.style(f"{datetime.now().astimezone():%H:%M:%S.%f}"[:-3], dim=True)
    match line:
        case {"type": "gap"}:
            text = click.style(f"gap: {value_text(line['reason'])}; all rows again", fg="yellow")
        case {"type": "lag"}:
            text = click.style(f"{line['behind']:,} changes behind", fg="yellow")
        case {"op": "delete"}:
            text = click.style(f"− {value_text(line['key'])}", fg="red")
        case {"type": "snapshot"}:
            text = f"  {format_row(line['row'])}"
        case _:
            text = click.style("+ ", fg="green") + format_row(line["row"])
    click.echo(f"{now} {text}")
