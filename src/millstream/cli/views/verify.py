"""`verify`: is a view what its query makes of the log?"""

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
    from millstream.analyze.verify.result import Difference, Left, Part, VerifyResult


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
    help="Of columns that are estimates (approx_…, sketches): how far they may be off, relative.",
)
@click.option(
    "--wait",
    type=click.FloatRange(0),
    default=30.0,
    show_default=True,
    help="Seconds that the view may stand still before it has come to the log's end.",
)
@click.option(
    "--limit", type=click.IntRange(1), default=20, show_default=True, help="Rows to show."
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

    The view's own query runs in batch over the events up to now; the live view is compared as it is
    with just those events in. Rows that have expired and rows with events that the log no longer
    has are left out and counted. Numbers in floating point may differ by rounding, estimates by
    --tolerance. The exit code is 1 if a row differs; both values are shown. PIPELINE is the one
    that runs in --home, unless another is given.

    Of a view with a trigger or an accumulation, what clients are shown is compared, too, where it
    must have been shown by now. Of one with a ledger, so is the sum of each final row's entries.

    \b
    millstream verify by_city
    millstream verify by_city pipeline.py --json | jq .differences
    """
    from millstream.cli.views.past import open_past, working

    app, settings = open_past(pipeline, home, assignments)
    with working("starting Spark") as report:
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
            verdict = compare(
                *(query, settings.log),
                checkpoints=open_home(home).checkpoints,
                tolerance=tolerance,
                patience=wait,
                report=report,
            )
    if as_json:
        from millstream.analyze.verify.result import content

        click.echo(json.dumps(content(verdict), default=float, ensure_ascii=False, indent=2))
    else:
        show(verdict, limit)
    return FAILED if verdict.differences else 0


def show(verdict: VerifyResult, limit: int) -> None:
    from rich.text import Text

    from millstream.supervise.status_tables import console, grid

    out = console()
    if verdict.differences:
        table = grid("key", "", "column", "in the view", "recomputed")  # or in its ledger
        for difference in verdict.differences[:limit]:
            for cells in lines(difference):
                table.add_row(*(Text(cell) for cell in cells))
        out.print(table)
        if len(verdict.differences) > limit:
            out.print(Text(f"… and {len(verdict.differences) - limit:,} more; see --limit", "dim"))
        out.print("")
    rows = "row" if verdict.same == 1 else "rows"
    records = f"up to {verdict.past.records:,} records of the log"
    if verdict.differences:
        out.print(
            Text(f"✗ {len(verdict.differences):,} differ; {verdict.same:,} {rows} agree", "red")
        )
    else:
        out.print(Text(f"✓ {verdict.same:,} {rows} as recomputed, {records}", "green"))
    for note in notes(verdict):
        out.print(Text(note, "dim"))


def lines(difference: Difference) -> list[tuple[str, ...]]:
    """A line for each column that differs."""
    from millstream.cli.shared.text import harmless, shown

    key, kind = difference.key, difference.kind
    what = kind if difference.where == "query" else f"{difference.where}: {kind}"
    live, recomputed = as_json_values(difference.live), as_json_values(difference.recomputed)
    if live is None or recomputed is None or not difference.columns:
        whole = tuple("–" if row is None else shown(plain(row)) for row in (live, recomputed))
        return [(harmless(key), what, "", *whole)]
    return [
        (
            harmless(key),
            what,
            harmless(name),
            shown(live.get(name)),
            shown(recomputed.get(name)),
        )
        for name in difference.columns
    ]


def as_json_values(row: Any) -> Any:
    return json.loads(json.dumps(row, default=float))


def plain(row: Any) -> dict[str, Any]:
    return {name: value for name, value in row.items() if not name.startswith("_")}


def notes(verdict: VerifyResult) -> list[str]:
    """What was left out, and what was let pass."""
    found = {
        "{:,} expired, as keep says": verdict.expired,
        "{:,} not due yet: they come when they are final": verdict.awaited,
        "{:,} with events that the log no longer has: not compared": verdict.older,
        "{:,} still moving: not compared": verdict.moving,
    }
    written = [words.format(count) for words, count in found.items() if count]
    written += map(told_of, verdict.parts)
    tolerances = sorted(verdict.comparison.tolerances.items())
    if tolerances:
        shown = ", ".join(f"{name} ±{tolerance:g}" for name, tolerance in tolerances)
        written.append(f"relative tolerance: {shown}")
    return written


LEFT: dict[Left, str] = {
    "not due": "not due yet",
    "moving": "still moving",
    "gone": "expired",
    "behind": "whose row is behind",
    "older": "with events that the log no longer has",
    "kept": "entered from other events, or by another query",
    "trimmed": "of which retention took a part",
}


def told_of(part: Part) -> str:
    """What came of what is shown, or entered, and what was not compared."""
    compared = {
        "shown": f"what is shown: {part.same:,} as recomputed",
        "ledger": f"the ledger: {part.same:,} sums as recomputed",
    }
    left = [f"{count:,} {LEFT[why]}" for why, count in sorted(part.left.items()) if count]
    rest = f"; not compared: {', '.join(left)}" if left else ""
    return f"{compared[part.where]}{rest}"
