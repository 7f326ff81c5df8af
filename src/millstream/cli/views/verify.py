"""`verify`: compares a view with a recomputation from the log."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from millstream.cli.shared.options import (
    home_option,
    json_option,
    open_home,
    pipeline_argument,
    set_option,
)
from millstream.cli.shared.outcome import FAILED

if TYPE_CHECKING:
    from millstream.analyze.verify.result import Difference, NotCompared, PartResult, VerifyResult


@click.command()
@click.argument("view")
@pipeline_argument(required=False)
@home_option
@set_option
@click.option(
    "--tolerance",
    type=click.FloatRange(0, 1),
    default=0.05,
    show_default=True,
    help="Relative tolerance for columns that are estimates (approx_…, sketches).",
)
@click.option(
    "--wait",
    type=click.FloatRange(0),
    default=30.0,
    show_default=True,
    help="Seconds without progress after which the view counts as stuck.",
)
@click.option(
    "--limit",
    type=click.IntRange(1),
    default=20,
    show_default=True,
    help="The number of rows to show.",
)
@json_option
def verify(
    view: str,
    pipeline: Path | None,
    home: Path,
    assignments: tuple[str, ...],
    tolerance: float,
    wait: float,
    limit: int,
    as_json: bool,
) -> int:
    """Recompute a view from the log, and compare every row with the live one.

    The view's query runs in batch over the events up to now, and the live view is compared as of
    the same events. Rows that have expired, and rows with events that the log no longer has, are
    left out and counted. Floating-point numbers may differ by rounding, estimates by --tolerance.
    The exit code is 1 if a row differs; both values are shown. PIPELINE is by default the one that
    runs in --home.

    If the view has a trigger or an accumulation, the rows that clients must have seen by now are
    compared, too. If it has a ledger, the sum of each final row's entries is compared.

    \b
    millstream verify by_city
    millstream verify by_city pipeline.py --json | jq .differences
    """
    from millstream.cli.views.history import open_history, spark_progress

    app, settings = open_history(pipeline, home, assignments)
    with spark_progress("starting Spark") as report:
        from millstream.analyze.history.history import local_session
        from millstream.analyze.planning.editions import (
            check_generation,
            describe_views,
            known_view,
            topic_of,
        )
        from millstream.analyze.planning.planner import Planner
        from millstream.analyze.verify.verify import verify as compare

        described = describe_views(app.name, settings.log)
        running = known_view(described, view)
        topics = {name: topic_of(app.name, each) for name, each in described.items()}
        with local_session(settings.analyze, f"{app.name} verify") as spark:
            report("building the query")
            query = Planner(spark, app, settings, topics=topics).query(view)
            check_generation(running, query.plan.generation)
            result = compare(
                query,
                settings.log,
                checkpoints=open_home(home).checkpoints,
                tolerance=tolerance,
                patience=wait,
                report=report,
            )
    if as_json:
        from millstream.analyze.verify.result import to_json

        click.echo(json.dumps(to_json(result), default=float, ensure_ascii=False, indent=2))
    else:
        show(result, limit)
    return FAILED if result.differences else 0


def show(result: VerifyResult, limit: int) -> None:
    from rich.text import Text

    from millstream.supervise.status_tables import console, grid

    out = console()
    if result.differences:
        table = grid("key", "", "column", "in the view", "recomputed")  # or in its ledger
        for difference in result.differences[:limit]:
            for cells in lines(difference):
                table.add_row(*(Text(cell) for cell in cells))
        out.print(table)
        if len(result.differences) > limit:
            out.print(Text(f"… and {len(result.differences) - limit:,} more; see --limit", "dim"))
        out.print("")
    rows = "row" if result.same == 1 else "rows"
    records = f"up to {result.log_range.records:,} records of the log"
    if result.differences:
        out.print(
            Text(f"✗ {len(result.differences):,} differ; {result.same:,} {rows} agree", "red")
        )
    else:
        out.print(Text(f"✓ {result.same:,} {rows} as recomputed, {records}", "green"))
    for note in notes(result):
        out.print(Text(note, "dim"))


def lines(difference: Difference) -> list[tuple[str, ...]]:
    """A line for each column that differs."""
    from millstream.cli.shared.text import printable, value_text

    key, kind = difference.key, difference.kind
    what = kind if difference.where == "query" else f"{difference.where}: {kind}"
    live, recomputed = as_json_values(difference.live), as_json_values(difference.recomputed)
    if live is None or recomputed is None or not difference.columns:
        whole = tuple("–" if row is None else value_text(plain(row)) for row in (live, recomputed))
        return [(printable(key), what, "", *whole)]
    return [
        (
            printable(key),
            what,
            printable(name),
            value_text(live.get(name)),
            value_text(recomputed.get(name)),
        )
        for name in difference.columns
    ]


def as_json_values(row: Any) -> Any:
    return json.loads(json.dumps(row, default=float))


def plain(row: Any) -> dict[str, Any]:
    return {name: value for name, value in row.items() if not name.startswith("_")}


def notes(result: VerifyResult) -> list[str]:
    """What was not compared, and the tolerances."""
    found = {
        "{:,} expired, as keep says": result.expired,
        "{:,} not due yet: they come when they are final": result.not_due,
        "{:,} with events that the log no longer has: not compared": result.older,
        "{:,} still moving: not compared": result.moving,
    }
    written = [words.format(count) for words, count in found.items() if count]
    written += map(part_note, result.parts)
    tolerances = sorted(result.comparison.tolerances.items())
    if tolerances:
        shown = ", ".join(f"{name} ±{tolerance:g}" for name, tolerance in tolerances)
        written.append(f"relative tolerance: {shown}")
    return written


NOT_COMPARED: dict[NotCompared, str] = {
    "not due": "not due yet",
    "moving": "still moving",
    "gone": "expired",
    "behind": "whose row is behind",
    "older": "with events that the log no longer has",
    "kept": "entered from other events, or by another query",
    "trimmed": "of which retention deleted a part",
}


def part_note(part: PartResult) -> str:
    """The result for the shown rows or the ledger, and what was not compared."""
    compared = {
        "shown": f"what is shown: {part.same:,} as recomputed",
        "ledger": f"the ledger: {part.same:,} sums as recomputed",
    }
    left = [f"{n:,} {NOT_COMPARED[why]}" for why, n in sorted(part.not_compared.items()) if n]
    rest = f"; not compared: {', '.join(left)}" if left else ""
    return f"{compared[part.where]}{rest}"
