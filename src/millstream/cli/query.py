"""`query`: SQL over the views of a running system."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

from millstream.cli.options import home_option, json_option, url_of, url_option


@click.command()
@click.argument("sql")
@home_option
@url_option
@json_option
@click.option("--limit", type=click.IntRange(1), default=None, help="At most so many rows.")
def query(sql: str, home: Path, url: str, as_json: bool, limit: int | None) -> None:
    """Answer SQL over all views, read only.

    A table on a terminal; JSON, one row a line, into a pipe or with --json. `-` reads the SQL from
    stdin.

    \b
    millstream query "SELECT city, n FROM by_city ORDER BY n DESC LIMIT 5"
    millstream query - < report.sql
    """
    import asyncio

    from millstream.client import Client

    text = sys.stdin.read() if sql == "-" else sql

    async def ask() -> object:
        async with Client(url_of("serve", url, home)) as client:
            return await client.query(text)

    answer = asyncio.run(ask())
    click.echo(json.dumps(answer))
