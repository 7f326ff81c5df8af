"""`audit`: checks that every accepted event is accounted for."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from millstream.cli.shared.options import home_option, json_option, log_of, set_option
from millstream.cli.shared.outcome import FAILED, ignored_broken_pipe

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

    from millstream.cli.audit.auditor import Auditor, AuditResult

_EVERY = 2.0


@click.command()
@home_option
@set_option
@click.option("--app", default="", help="The pipeline, if the log has several.")
@click.option("--watch", is_flag=True, help="Repeat until Ctrl-C.")
@click.option("--records", is_flag=True, help="Also read every record, and look for duplicates.")
@json_option
def audit(
    home: Path,
    assignments: tuple[str, ...],
    app: str,
    watch: bool,
    records: bool,
    as_json: bool,
) -> int:
    """Check that every accepted event is accounted for, and that the log contains it.

    Per stream: accepted = logged + rejected + failed + shed + duplicates + damaged + pending, over
    all collectors and all their starts in the audit topic, which keeps a day. The counts of logged
    and rejected events are compared with the records that were written to the topics. Events that
    were lost in a damaged entry of a journal are a problem until `millstream failed drop`
    acknowledges the loss.

    Per view: logged = read + waiting, over the topics that it reads. Some of the read events were
    late or shed; all others are in its rows. Per stream with an event time: read = in order + late
    + future + broken + lost. The last counts are compared with the records in the late topic.

    The exit code is 1 if the counts do not add up; the differences are listed. With --records,
    every record in the topics is read, to find events that are there twice.

    \b
    millstream audit
    millstream audit --watch
    millstream audit --records
    millstream audit --json | jq .problems
    """
    from millstream.cli.audit.auditor import Auditor
    from millstream.log.topic_contents import only_app

    log = log_of(home, assignments)
    auditor = Auditor(log, only_app(log, app))
    if watch and records:
        raise click.UsageError("--records reads everything: do not use it with --watch")
    result = auditor.check()
    if records:
        auditor.find_duplicates(result)
    if watch:
        return follow(auditor, result, as_json)
    with ignored_broken_pipe():
        if as_json:
            click.echo(json.dumps(result.content(), indent=2))
        else:
            from millstream.supervise.status_tables import console

            console().print(result_tables(result))
    return FAILED if result.problems else 0


def follow(auditor: Auditor, result: AuditResult, as_json: bool) -> int:
    from rich.live import Live

    from millstream.supervise.status_tables import console

    if as_json:
        while True:
            click.echo(json.dumps(result.content()))
            time.sleep(_EVERY)
            result = auditor.check()
    with Live(result_tables(result), console=console(), auto_refresh=False) as live:
        while True:
            time.sleep(_EVERY)
            result = auditor.check()
            live.update(result_tables(result), refresh=True)


def result_tables(result: AuditResult) -> RenderableType:
    """The tables, then the problems, then the notes."""
    from rich.console import Group
    from rich.text import Text

    from millstream.supervise.status_tables import grid

    columns = (">accepted", ">= logged", ">+ rejected", ">+ failed", ">+ shed", ">+ duplicates")
    table = grid(
        "stream", *columns, ">+ damaged", ">+ pending", ">+ unseen", ">off", ">in the log", ">held"
    )
    for name, row in result.rows.items():
        counts = (row.accepted, row.logged, row.rejected, row.failed, row.shed, row.duplicates)
        written = result.written.get(name)
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
    parts += [part for each in time_and_view_tables(result) for part in (each, "")]
    lines = [Text(f"✗ {problem}", "red") for problem in result.problems]
    notes = [Text(note, "dim") for note in result.notes]
    damaged = sum(row.damaged for row in result.rows.values())
    but = f", with {damaged:,} events that were lost to damage and acknowledged" if damaged else ""
    success = [] if result.problems else [Text(f"✓ it adds up{but}", "green")]
    return Group(*parts, *lines, *success, *notes)


def time_and_view_tables(result: AuditResult) -> list[Table]:
    """The tables of event times and of views, unless they are empty."""
    from rich.text import Text

    from millstream.supervise.status_tables import grid
    from millstream.values.clock import format_time

    columns = (">in order", ">late", ">future", ">broken", ">lost", ">off", ">waiting")
    times = grid("stream", *columns, ">late topic", "watermark")
    for name, row in result.view_audit.streams.items():
        counts = (row.in_order, row.late, row.future, row.broken, row.lost)
        times.add_row(
            Text(name, "bold"),
            *(f"{count:,}" for count in counts),
            Text(f"{row.off:,}", "bold red" if row.off else "green"),
            f"{row.waiting:,}",
            f"{row.held:,}",
            format_time(row.watermark) if row.watermark else "–",
        )
    views = grid("view", ">logged", ">= read", ">+ waiting", ">late", ">shed", ">lost", "watermark")
    for name, view in result.view_audit.views.items():
        views.add_row(
            Text(name, "bold"),
            *(
                f"{count:,}"
                for count in (view.logged, view.read, view.waiting, view.late, view.shed)
            ),
            Text(f"{view.lost:,}", "bold red" if view.lost else ""),
            format_time(view.watermark) if view.watermark else "–",
        )
    return [each for each in (times, views) if each.row_count]
