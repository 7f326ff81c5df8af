"""Which views can be computed anew beside themselves."""

from __future__ import annotations

from millstream.errors import MillstreamError
from millstream.pipeline.app import App
from millstream.pipeline.model import View
from millstream.pipeline.trigger import When


def why_not(app: App, view: View) -> str:
    """Why the view cannot be computed anew beside itself; empty if it can."""
    if view.ledger and _reads_tables(app, view):
        return (
            f"view {view.name} has a ledger and reads a table, whose earlier rows the log has no"
            " more: the sums that were entered cannot be computed anew"
        )
    if view.ledger and isinstance(view.trigger, When):
        return (
            f"view {view.name} has a ledger of the rows that came to fulfil its trigger, which a"
            " replay, that takes many events at once, may never see doing so"
        )
    return ""


def check_rebuildable(app: App, view: View) -> None:
    """MillstreamError unless the view can be computed anew beside itself."""
    if problem := why_not(app, view):
        raise MillstreamError(
            problem, remedy="verify it; if it is wrong, stop the system and remove its checkpoint"
        )


def _reads_tables(app: App, view: View) -> bool:
    upstream = [app.views[name] for name in view.inputs if name in app.views]
    return bool(view.reads) or any(_reads_tables(app, each) for each in upstream)
