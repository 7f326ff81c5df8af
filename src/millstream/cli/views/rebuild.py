"""`rebuild`: computes a view again from the log, then replaces the served one."""

from __future__ import annotations

import json
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from millstream.cli.shared.options import home_option, json_option, log_of, set_option
from millstream.cli.shared.outcome import FAILED
from millstream.errors import MillstreamError

if TYPE_CHECKING:
    from millstream.analyze.rebuild.edition_diff import Diff
    from millstream.log.settings import LogSettings
    from millstream.values.report import ProcessReport, RebuildStatus
    from millstream.values.view_description import ViewDescription

SILENCE = 60.0  # seconds without a report after which analyze counts as dead
SETTLING = 5  # how often differences are compared again, a second apart


@click.command()
@click.argument("view")
@home_option
@set_option
@click.option("--app", default="", help="The pipeline, if the log has several.")
@click.option("--from", "since", default="", metavar="TIME", help="Only events from this time on.")
@click.option("--yes", is_flag=True, help="Do not ask; replace the view whatever differs.")
@click.option(
    "--limit",
    type=click.IntRange(1),
    default=20,
    show_default=True,
    help="The number of rows to show.",
)
@json_option
def rebuild(
    view: str,
    home: Path,
    assignments: tuple[str, ...],
    app: str,
    since: str,
    yes: bool,
    limit: int,
    as_json: bool,
) -> int:
    """Compute a view again from the log while the system runs, then replace the served one.

    The log is replayed into a second copy of the view; the old one is served meanwhile. Then both
    are compared, and if you agree the new one replaces the old one: clients see a new epoch and a
    snapshot. Views that read this view are rebuilt with it. --from leaves out events that were
    collected earlier: '2 hours' ago, or 2026-01-31T12:00:00Z.

    \b
    millstream rebuild by_city
    millstream rebuild by_city --from "1 day" --yes
    """
    from millstream.analyze.planning.editions import describe_views, known_view, query_topic_of
    from millstream.analyze.rebuild.requests import RebuildRequest, send_request
    from millstream.cli.views.history import optional_time
    from millstream.log.topic_contents import only_app

    if not yes and not sys.stdin.isatty():
        raise click.UsageError("there is nobody to ask: give --yes")
    log = log_of(home, assignments)
    app = app or only_app(log)
    known_view(describe_views(app, log), view)
    request = RebuildRequest(uuid.uuid4().hex[:12], optional_time("--from", since))
    watch = RebuildWatch(log, app, view)
    send_request(log, app, view, request)
    swapped = False
    try:
        shadow = follow(watch, request.id)
        described = known_view(describe_views(app, log), view)
        new = query_topic_of(app, described, shadow.topic)
        found = settled_diff(log, described, query_topic_of(app, described), new)
        if not as_json:
            show(found, limit)
        if yes or click.confirm("Swap?", err=True):
            send_request(log, app, view, RebuildRequest(request.id, request.since, go=True))
            watch.await_end(request.id)
            swapped = True
    finally:
        if not swapped and watch.is_open(request.id):
            send_request(log, app, view, RebuildRequest(request.id, cancel=True))
    if as_json:
        click.echo(json.dumps(content(view, swapped, shadow, found), default=float, indent=2))
    else:
        done = f"{view} is served from {shadow.topic} now"
        click.echo(done if swapped else "nothing was changed", err=not swapped)
    return 0 if swapped else FAILED


class RebuildWatch:
    """The reports of `analyze` on a view's rebuild, one per second."""

    def __init__(self, log: LogSettings, app: str, view: str) -> None:
        from millstream.log.consumer import bounds
        from millstream.log.topic_names import audit_topic

        self._log, self._app, self._view = log, app, view
        self._topic = audit_topic(app)
        self._at = {partition: end for partition, (_, end) in bounds(log, self._topic).items()}

    def states(self, request: str) -> Iterator[RebuildStatus | None]:
        """The state in each report, None if it has none; MillstreamError if no report comes."""
        heard = time.monotonic()
        while True:
            for report in self._reports():
                if report.tier == "analyze":
                    heard = time.monotonic()
                    state = report.views[self._view].rebuild if self._view in report.views else None
                    yield state if state is not None and state.request == request else None
            if time.monotonic() - heard > SILENCE:
                raise MillstreamError(
                    f"cannot rebuild {self._view}: analyze has not reported for {SILENCE:g} s",
                    remedy="start the system with `millstream run PIPELINE`",
                )
            time.sleep(0.2)

    def await_end(self, request: str) -> None:
        """Wait until the rebuild is done; MillstreamError if it fails."""
        for state in self.states(request):
            if state is not None and state.state == "failed":
                raise _failed(state)
            # After a restart, analyze may report other work first.
            if (state is None or state.state == "done") and not self.is_open(request):
                return

    def is_open(self, id_: str) -> bool:
        """Whether the request is still open, and not replaced by another one for the view."""
        from millstream.analyze.rebuild.requests import read_requests

        request = read_requests(self._log, self._app)[0].get(self._view)
        return request is not None and request.id == id_

    def _reports(self) -> Iterator[ProcessReport]:
        import msgspec

        from millstream.log.consumer import bounds, read_range
        from millstream.values.report import ProcessReport

        for partition, (_, end) in bounds(self._log, self._topic).items():
            start = self._at.get(partition, end)
            for record in read_range(self._log, self._topic, partition, start, end):
                try:
                    yield msgspec.json.decode(record.value or b"", type=ProcessReport)
                except msgspec.MsgspecError:
                    continue
            self._at[partition] = end


def follow(watch: RebuildWatch, request: str) -> RebuildStatus:
    """Show the progress until the rebuild is ready; MillstreamError if it fails."""
    from rich.console import Console

    console, printed = Console(stderr=True, highlight=False), ""
    with console.status("asking analyze") as status:
        for state in watch.states(request):
            if state is None and watch.is_open(request):
                continue
            if state is None:
                raise MillstreamError(
                    "another rebuild of the view is running, and continues",
                    remedy="wait until it is done: see `millstream status`",
                )
            if state.state == "failed":
                raise _failed(state)
            if state.state == "ready":
                return state
            words = progress(state)
            status.update(words)
            if not console.is_terminal and words != printed:
                click.echo(words, err=True)
            printed = words
    raise AssertionError("reports never end")


def _failed(state: RebuildStatus) -> MillstreamError:
    return MillstreamError(f"the rebuild failed: {state.error}")


def progress(state: RebuildStatus) -> str:
    """The progress and the remaining time, as text."""
    if state.state != "replaying":
        return {"waiting": "waiting for the views that it reads"}.get(state.state, "going live")
    words = f"replayed {state.done:,} of {state.total:,} records"
    if state.left_s is not None:
        words += f", about {state.left_s:,.0f} s left"
    return words if not state.error else f"{words}; {state.error}"


def settled_diff(log: LogSettings, view: ViewDescription, old: str, new: str) -> Diff:
    """The differences that stay: a new row may be in one copy a moment before the other."""
    from millstream.analyze.rebuild.edition_diff import diff

    found = diff(log, view, old, new)
    for _ in range(SETTLING):
        if not found:
            break
        time.sleep(1.0)
        before, found = len(found), diff(log, view, old, new)
        if len(found) == before:
            break
    return found


def show(found: Diff, limit: int) -> None:
    from rich.text import Text

    from millstream.cli.shared.text import printable, value_text
    from millstream.supervise.status_tables import console, grid

    out = console()
    if found:
        table = grid("key", "old", "new")
        for key, old, new in list(rows_of(found))[:limit]:
            cells = (value_text(as_values(row)) if row else "–" for row in (old, new))
            table.add_row(Text(printable(key)), *(Text(cell) for cell in cells))
        out.print(table)
        if len(found) > limit:
            out.print(Text(f"… and {len(found) - limit:,} more; see --limit", "dim"))
    counts = (
        f"{len(found.changed):,} changed, {len(found.added):,} new, {len(found.removed):,} gone"
    )
    out.print(f"{found.same:,} rows are the same, {counts}")


def rows_of(found: Diff) -> Iterator[tuple[str, Any, Any]]:
    yield from ((key, old, new) for key, (old, new) in found.changed.items())
    yield from ((key, old, None) for key, old in found.removed.items())
    yield from ((key, None, new) for key, new in found.added.items())


def as_values(row: dict[str, Any]) -> Any:
    visible = {name: value for name, value in row.items() if not name.startswith("_")}
    return json.loads(json.dumps(visible, default=float))


def content(view: str, swapped: bool, shadow: RebuildStatus, found: Diff) -> dict[str, Any]:
    return {
        "view": view,
        "swapped": swapped,
        "topic": shadow.topic,
        "records": shadow.total,
        "same": found.same,
        "differences": [{"key": key, "old": old, "new": new} for key, old, new in rows_of(found)],
    }
