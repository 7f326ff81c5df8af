"""`query`: runs SQL or a named query over the views of a running system, or SQL over history."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from millstream.cli.shared.options import (
    access_options,
    home_option,
    json_option,
    parameter_option,
    pipeline_argument,
    read_parameters,
    serve_access,
    set_option,
    url_option,
)
from millstream.syntax.names import name_problem

if TYPE_CHECKING:
    from millstream.client import Table
    from millstream.client.credentials import Credentials

HISTORY_ROWS = 10_000  # default of --limit with --history


@click.command()
@click.argument("sql", metavar="SQL|NAME")
@pipeline_argument(required=False)
@home_option
@url_option
@access_options
@set_option
@json_option
@parameter_option
@click.option("--limit", type=click.IntRange(1), default=None, help="The maximum number of rows.")
@click.option("--history", is_flag=True, help="Also over streams, as they are in the log.")
@click.option(
    "--from", "since", default="", metavar="TIME", help="Of streams: events from this time on."
)
@click.option(
    "--to", "until", default="", metavar="TIME", help="Of streams: events before this time."
)
def query(
    sql: str,
    pipeline: Path | None,
    home: Path,
    url: str,
    key_file: Path | None,
    ca: str,
    assignments: tuple[str, ...],
    as_json: bool,
    parameters: tuple[str, ...],
    limit: int | None,
    history: bool,
    since: str,
    until: str,
) -> None:
    """Run an SQL query over all views, read only, or a named query of the pipeline.

    Prints a table on a terminal, and one JSON row per line into a pipe or with --json. `-` reads
    the SQL from stdin. A single word is the name of a query; -p gives it a parameter.

    With --history the query is Spark SQL over the log: the events of the streams with all their
    columns (_id, _received_at, _event_time, _position and _watermark only by name), and the rows of
    the views. It starts a Spark session, which takes about 10 s, and reads the events. --from and
    --to choose events by the time when they were collected: '2 hours' ago, or 2026-01-31T12:00:00Z.
    PIPELINE is by default the one that runs in --home.

    \b
    millstream query "SELECT city, n FROM by_city ORDER BY n DESC LIMIT 5"
    millstream query top_products -p n=10
    millstream query - < report.sql
    millstream query --history "SELECT city, avg(amount) FROM orders GROUP BY city" --from "1 day"
    """
    text = sys.stdin.read() if sql == "-" else sql
    is_name = not name_problem(text.strip())
    if parameters and (history or not is_name):
        raise click.UsageError("-p is for a named query")
    if history:
        answer = ask_history(text, pipeline, home, assignments, limit or HISTORY_ROWS, since, until)
    elif pipeline or since or until or assignments:
        raise click.UsageError("PIPELINE, --set, --from and --to are for --history")
    else:
        import asyncio

        address, access = serve_access(url, home, key_file, ca)
        if is_name and limit is not None:
            raise click.UsageError("--limit is for SQL; a named query has its own LIMIT")
        if is_name:
            given = read_parameters(parameters)
            answer = asyncio.run(ask_named(address, access, text.strip(), given))
        else:
            answer = asyncio.run(ask(address, access, text, limit))
    if as_json or not sys.stdout.isatty():
        show_lines(answer)
    else:
        show_table(answer)
    if answer.truncated:
        click.echo(f"only the first {len(answer.rows):,} rows; add a LIMIT or --limit", err=True)


def ask_history(
    sql: str,
    pipeline: Path | None,
    home: Path,
    assignments: tuple[str, ...],
    limit: int,
    since: str,
    until: str,
) -> Table:
    from millstream.cli.views.history import open_history, optional_time, spark_progress
    from millstream.client.messages import QueryColumn, Table

    app, settings = open_history(pipeline, home, assignments)
    start, end = optional_time("--from", since), optional_time("--to", until)
    with spark_progress("starting Spark") as report:
        from millstream.analyze.history.history import local_session
        from millstream.analyze.history.history_query import prepare_query, run_query

        query = prepare_query(app, settings.log, sql, start, end)
        with local_session(settings.analyze, f"{app.name} query") as spark:
            report(f"reading {query.log_range.records:,} records of the log")
            found = run_query(spark, app, settings.log, query, limit)
    columns = [QueryColumn(each.name, each.type) for each in found.columns]
    return Table(columns, found.rows, found.truncated, round(found.elapsed_ms, 1))


async def ask(url: str, access: Credentials, sql: str, limit: int | None) -> Table:
    from millstream.client import Client

    async with Client(url, credentials=access) as client:
        return await client.query(sql, limit=limit)


async def ask_named(url: str, access: Credentials, name: str, parameters: dict[str, str]) -> Table:
    from millstream.client import Client

    async with Client(url, credentials=access) as client:
        return await client.run(name, **parameters)


def show_lines(answer: Table) -> None:
    names = [column.name for column in answer.columns]
    for row in answer.rows:
        click.echo(json.dumps(dict(zip(names, row, strict=True)), ensure_ascii=False))


def show_table(answer: Table) -> None:
    from rich.console import Console
    from rich.table import Table as Picture
    from rich.text import Text

    from millstream.cli.shared.text import value_text

    picture = Picture(header_style="bold")
    for column in answer.columns:
        numeric = any(word in column.type.upper() for word in ("INT", "DOUBLE", "DECIMAL", "FLOAT"))
        picture.add_column(Text(column.name), justify="right" if numeric else "left")
    for row in answer.rows:
        picture.add_row(*(Text(value_text(value)) for value in row))
    Console().print(picture)
    click.echo(f"{len(answer.rows):,} rows in {answer.elapsed_ms:.1f} ms")
