"""`query`: SQL over the views of a running system."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from millstream.cli.options import home_option, json_option, url_of, url_option

if TYPE_CHECKING:
    from millstream.client import Table


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

    text = sys.stdin.read() if sql == "-" else sql
    answer = asyncio.run(ask(url_of("serve", url, home), text, limit))
    if as_json or not sys.stdout.isatty():
        show_lines(answer)
    else:
        show_table(answer)
    if answer.truncated:
        click.echo(f"only the first {len(answer.rows):,} rows; add a LIMIT or --limit", err=True)


async def ask(url: str, sql: str, limit: int | None) -> Table:
    from millstream.client import Client

    async with Client(url) as client:
        return await client.query(sql, limit=limit)


def show_lines(answer: Table) -> None:
    names = [column.name for column in answer.columns]
    for row in answer.rows:
        click.echo(json.dumps(dict(zip(names, row, strict=True)), ensure_ascii=False))


def show_table(answer: Table) -> None:
    from rich.console import Console
    from rich.table import Table as Picture
    from rich.text import Text

    from millstream.cli.text import shown

    picture = Picture(header_style="bold")
    for column in answer.columns:
        numeric = any(word in column.type.upper() for word in ("INT", "DOUBLE", "DECIMAL", "FLOAT"))
        picture.add_column(Text(column.name), justify="right" if numeric else "left")
    for row in answer.rows:
        picture.add_row(*(Text(shown(value)) for value in row))
    Console().print(picture)
    click.echo(f"{len(answer.rows):,} rows in {answer.elapsed_ms:.1f} ms")
