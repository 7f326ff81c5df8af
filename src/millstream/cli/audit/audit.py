"""`audit`: does every accepted event have its place?"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from millstream.cli.shared.options import home_option, json_option, log_of, set_option
from millstream.cli.shared.outcome import FAILED, perhaps_unread

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

    from millstream.cli.audit.balance import Auditor, Balance

_EVERY = 2.0


@click.command()
@home_option
@set_option
@click.option("--app", default="", help="The pipeline, if the log has several.")
@click.option("--watch", is_flag=True, help="Again and again, until Ctrl-C.")
@click.option("--records", is_flag=True, help="Read every record too, and look for doubles.")
@json_option
def audit(
    home: Path,
    assignments: tuple[str, ...],
    app: str,
    watch: bool,
    records: bool,
    as_json: bool,
) -> int:
    """Check that every accepted event is accounted for, and that the log has what it should.

    Per stream: accepted = logged + rejected + failed + shed + duplicates + damaged + pending, over
    all collectors and all their starts that the audit topic still has (a day); and what was counted
    as logged and rejected against what was ever written to the topics. What was lost with a damaged
    entry of a journal is a problem until `millstream failed drop` acknowledges it.

    Per view: logged = read + waiting, in the topics that it reads; of the read, some were late or
    shed, and all others are in its rows. Per stream with an event time:
    what was judged = in order + late + future + broken + lost; and what was set aside against the
    records that the late topic holds. The exit code is 1 if it does not add up; what is off is
    named.

    With --records each record that the topics hold is read, and an event that is there twice is
    found.

    \b
    millstream audit
    millstream audit --watch
    millstream audit --records
    millstream audit --json | jq .problems
    """
    from millstream.cli.audit.balance import Auditor, app_of

    log = log_of(home, assignments)
    auditor = Auditor(log, app_of(log, app))
    if watch and records:
        raise click.UsageError("--records reads everything: not again and again with --watch")
    balance = auditor.balance()
    if records:
        auditor.find_doubles(balance)
    if watch:
        return follow(auditor, balance, as_json)
    with perhaps_unread():
        if as_json:
            click.echo(json.dumps(balance.content(), indent=2))
        else:
            from millstream.supervise.status_tables import console

            console().print(picture(balance))
    return FAILED if balance.problems else 0


def follow(auditor: Auditor, balance: Balance, as_json: bool) -> int:
    from rich.live import Live

    from millstream.supervise.status_tables import console

    if as_json:
        while True:
            click.echo(json.dumps(balance.content()))
            time.sleep(_EVERY)
            balance = auditor.balance()
    with Live(picture(balance), console=console(), auto_refresh=False) as live:
        while True:
            time.sleep(_EVERY)
            balance = auditor.balance()
            live.update(picture(balance), refresh=True)


def picture(balance: Balance) -> RenderableType:
    """The table, then what is off, then what is worth knowing."""
    from rich.console import Group
    from rich.text import Text

    from millstream.supervise.status_tables import grid

    columns = (">accepted", ">= logged", ">+ rejected", ">+ failed", ">+ shed", ">+ duplicates")
    table = grid(
        "stream", *columns, ">+ damaged", ">+ pending", ">+ unseen", ">off", ">in the log", ">held"
    )
    for name, row in balance.rows.items():
        counts = (row.accepted, row.logged, row.rejected, row.failed, row.shed, row.duplicates)
        written = balance.written.get(name)
        table.add_row(
            Text(name, "bold"),
            *(f"{count:,}" for count in counts),
            Text(f"{row.damaged:,}", "bold red" if row.damaged else ""),
            *(f"{count:,}" for count in (row.pending, row.unseen)),
            Text(f"{row.off:,}", "bold red" if row.off else "green"),
            "–" if written is None else f"{written.at_most:,}",
            "–" if written is None else f"{written.held:,}",
        )
    parts: list[RenderableType] = [table, ""]
    parts += [part for each in completeness(balance) for part in (each, "")]
    lines = [Text(f"✗ {problem}", "red") for problem in balance.problems]
    notes = [Text(note, "dim") for note in balance.notes]
    damaged = sum(row.damaged for row in balance.rows.values())
    but = f", with {damaged:,} events that were lost to damage and acknowledged" if damaged else ""
    verdict = [] if balance.problems else [Text(f"✓ it adds up{but}", "green")]
    return Group(*parts, *lines, *verdict, *notes)


def completeness(balance: Balance) -> list[Table]:
    """What is in views, and what is late; nothing where nothing has a time, or is read."""
    from rich.text import Text

    from millstream.cli.shared.text import moment
    from millstream.supervise.status_tables import grid

    columns = (">in order", ">late", ">future", ">broken", ">lost", ">off", ">waiting")
    times = grid("stream", *columns, ">late topic", "watermark")
    for name, row in balance.completeness.streams.items():
        counts = (row.in_order, row.late, row.future, row.broken, row.lost)
        times.add_row(
            Text(name, "bold"),
            *(f"{count:,}" for count in counts),
            Text(f"{row.off:,}", "bold red" if row.off else "green"),
            f"{row.waiting:,}",
            f"{row.held:,}",
            moment(row.watermark) if row.watermark else "–",
        )
    views = grid("view", ">logged", ">= read", ">+ waiting", ">late", ">shed", ">lost", "watermark")
    for name, view in balance.completeness.views.items():
        views.add_row(
            Text(name, "bold"),
            *(
                f"{count:,}"
                for count in (view.logged, view.read, view.waiting, view.late, view.shed)
            ),
            Text(f"{view.lost:,}", "bold red" if view.lost else ""),
            moment(view.watermark) if view.watermark else "–",
        )
    return [each for each in (times, views) if each.row_count]
