"""`state`: shows the state of a view's query."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from millstream.cli.shared.options import (
    Flags,
    home_option,
    json_option,
    open_home,
    set_option,
    settings_of,
)

if TYPE_CHECKING:
    from millstream.analyze.monitor.state import ViewState


@click.command()
@click.argument("view")
@click.argument("key", nargs=-1)
@home_option
@set_option
@click.option(
    "--limit",
    type=click.IntRange(1),
    default=20,
    show_default=True,
    help="The maximum number of keys.",
)
@json_option
def state(
    view: str,
    key: tuple[str, ...],
    home: Path,
    assignments: tuple[str, ...],
    limit: int,
    as_json: bool,
) -> None:
    """Show the state of a view's query: each KEY with its current values.

    Spark reads the state from the checkpoint, which takes about 10 s, whether or not the system
    runs. It is the state of the newest commit: a real-time query has continued since then.

    \b
    millstream state by_city
    millstream state hourly Bern
    millstream state by_city --json --limit 1000 | jq '.operators[].entries'
    """
    from rich.console import Console

    from millstream.analyze.monitor.state import find_checkpoint
    from millstream.cli.shared.spark_output import hidden_spark_output

    checkpoint = find_checkpoint(open_home(home).checkpoints, view)
    settings = settings_of(None, Flags(assignments)).analyze
    with Console(stderr=True).status("reading the state with Spark"), hidden_spark_output():
        from millstream.analyze.history.history import local_session
        from millstream.analyze.monitor.state import read_state

        with local_session(settings, "state") as spark:
            found = read_state(spark, checkpoint, view, key, limit)
    if as_json:
        import msgspec

        click.echo(json.dumps(msgspec.to_builtins(found), indent=2, ensure_ascii=False))
    else:
        show(found)


def show(found: ViewState) -> None:
    from rich.table import Table
    from rich.text import Text

    from millstream.cli.shared.text import value_text
    from millstream.supervise.status_tables import console
    from millstream.values.clock import format_time

    out = console()
    out.print(f"view {found.view} as of batch {found.batch}, {format_time(found.committed_at)}")
    for operator in found.operators:
        out.print(Text.assemble("\n", (operator.name, "bold"), f" {operator.keys:,}"))
        if not operator.entries:
            continue
        picture = Table(header_style="bold")
        first = operator.entries[0]
        for name in first.key:
            picture.add_column(Text(name, "cyan"))
        for name in first.value:
            picture.add_column(Text(name))
        for entry in operator.entries:
            values = (*entry.key.values(), *(entry.value.get(name) for name in first.value))
            picture.add_row(*(Text(value_text(value)) for value in values))
        out.print(picture)
