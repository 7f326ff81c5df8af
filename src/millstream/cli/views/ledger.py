"""`ledger`: lists or adds up the entries of a view's ledger."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from millstream.cli.shared.options import home_option, json_option, log_of, set_option
from millstream.errors import MillstreamError

if TYPE_CHECKING:
    from millstream.log.settings import LogSettings
    from millstream.values.ledger_entry import LedgerEntry


@click.command()
@click.argument("view")
@home_option
@set_option
@click.option("--app", default="", help="The pipeline, if several have such a view.")
@click.option("--sum", "adds_up", is_flag=True, help="Print only the sum of each key's entries.")
@click.option("--follow", is_flag=True, help="Continue with new entries.")
@json_option
def ledger(
    view: str,
    home: Path,
    assignments: tuple[str, ...],
    app: str,
    adds_up: bool,
    follow: bool,
    as_json: bool,
) -> None:
    """List the entries of a view's ledger, or add them up.

    A final row is entered as an assertion. A correction enters a retraction of the old row and an
    assertion of the new one, with the late events that caused it. So assertions minus retractions
    are correct at any time. Into a pipe, or with --json, each entry or sum is a line of JSON.

    \b
    millstream ledger per_minute
    millstream ledger per_minute --sum
    millstream ledger per_minute --follow --json
    """
    from millstream.log.ledger_topic import find_ledger_app, read_entries
    from millstream.values.ledger_entry import sums

    log = log_of(home, assignments)
    app = app or find_ledger_app(log, view)
    plain = as_json or not sys.stdout.isatty()
    if follow:
        follow_entries(log, app, view, adds_up, plain)
        return
    entries = read_entries(log, app, view)
    if not adds_up:
        count = show_all(entries, plain)
        if not plain:
            click.echo(f"{count:,} entries of {view}", err=True)
        return
    for key, amounts in sums(entries).values():
        show_sum(key, amounts, plain)


def show_all(entries: Iterable[LedgerEntry], plain: bool) -> int:
    count = 0
    for entry in entries:
        show(entry, plain)
        count += 1
    return count


def follow_entries(log: LogSettings, app: str, view: str, adds_up: bool, plain: bool) -> None:
    """Print entries until Ctrl-C, or until the reader of the output leaves."""
    import time

    from millstream.log.ledger_topic import following
    from millstream.values.ledger_entry import Amounts, add_entry

    totals: dict[str, Amounts] = {}

    def deliver(entry: LedgerEntry) -> None:
        if not adds_up:
            show(entry, plain)
            return
        total = totals.setdefault(repr(entry.key), {})
        add_entry(total, entry.kind, entry.amounts)
        if entry.kind == "assertion":  # a retraction is always followed by one
            show_sum(entry.key, total, plain)

    with following(log, app, view, deliver) as reader:
        while reader.failure is None:
            time.sleep(0.1)
    if not isinstance(reader.failure, BrokenPipeError):
        raise MillstreamError(f"cannot follow the ledger of {view}: {reader.failure}")


def show(entry: LedgerEntry, plain: bool) -> None:
    from millstream.cli.shared.text import format_row, value_text
    from millstream.values.ledger_entry import encode

    if plain:
        write(encode(entry))
        return
    sign = {"assertion": click.style("+", fg="green"), "retraction": click.style("−", fg="red")}
    because = click.style(f"  late: {', '.join(map(value_text, entry.reason))}", fg="yellow")
    click.echo(
        f"{click.style(value_text(entry.at), dim=True)} {sign[entry.kind]} "
        f"{', '.join(map(value_text, entry.key))}  {format_row(readable(entry.amounts))}"
        f"{because if entry.reason else ''}"
    )


def show_sum(key: list[Any], amounts: dict[str, Any], plain: bool) -> None:
    import msgspec

    from millstream.cli.shared.text import format_row, value_text

    if plain:
        encoder = msgspec.json.Encoder(decimal_format="number")
        write(encoder.encode({"key": key, "amounts": amounts}))
    else:
        click.echo(f"{', '.join(map(value_text, key))}  {format_row(readable(amounts))}")


def readable(amounts: dict[str, Any]) -> dict[str, str]:
    return {
        name: f"{amount:d}" if isinstance(amount, int) else f"{amount:f}"
        for name, amount in amounts.items()
    }


def write(line: bytes) -> None:
    sys.stdout.write(line.decode() + "\n")
    sys.stdout.flush()
