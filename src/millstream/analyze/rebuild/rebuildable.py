"""Which views can be rebuilt beside themselves."""

from __future__ import annotations

from millstream.errors import MillstreamError
from millstream.pipeline.app import App
from millstream.pipeline.model import View
from millstream.pipeline.trigger import When


def why_not(app: App, view: View) -> str:
    """Why the view cannot be rebuilt beside itself; empty if it can."""
    if view.ledger and _reads_tables(app, view):
        return (
            f"view {view.name} has a ledger and reads a table. The log no longer has the table's"
            " earlier rows, so the entered sums cannot be computed again"
        )
    if view.ledger and isinstance(view.trigger, When):
        return (
            f"view {view.name} has a ledger and a trigger with a condition. A replay processes many"
            " events at once, so it may miss the moments when the condition became true"
        )
    return ""


def check_rebuildable(app: App, view: View) -> None:
    """MillstreamError unless the view can be rebuilt beside itself."""
    if problem := why_not(app, view):
        raise MillstreamError(
            problem, remedy="verify it; if it is wrong, stop the system and remove its checkpoint"
        )


def _reads_tables(app: App, view: View) -> bool:
    upstream = [app.views[name] for name in view.inputs if name in app.views]
    return bool(view.reads) or any(_reads_tables(app, each) for each in upstream)
