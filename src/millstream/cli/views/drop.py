"""`drop`: removes the rows and state of a view that the pipeline no longer has."""

from __future__ import annotations

from pathlib import Path

import click

from millstream.cli.shared.options import home_option, log_of, open_home, set_option
from millstream.errors import MillstreamError


@click.command()
@click.argument("view")
@home_option
@set_option
@click.option("--app", default="", help="The pipeline, if the log has several.")
@click.option("--yes", is_flag=True, help="Do not ask.")
def drop(view: str, home: Path, assignments: tuple[str, ...], app: str, yes: bool) -> None:
    """Remove the rows and state of a view that is no longer in the pipeline.

    The streams that it read stay, so the view can be computed again. Its ledger stays, too.

    \b
    millstream drop by_city
    millstream drop by_city --yes
    """
    from millstream.analyze.planning.editions import describe_views
    from millstream.analyze.rebuild.dropping import drop_view
    from millstream.analyze.recovery.checkpoint import removed_views
    from millstream.log.topic_contents import only_app
    from millstream.syntax.names import suggest

    place, log = open_home(home), log_of(home, assignments)
    app = app or only_app(log)
    known = {*describe_views(app, log), *removed_views(place.checkpoints, ())}
    if view not in known:
        raise MillstreamError(f"there is no view {view!r}", remedy=suggest(view, sorted(known)))
    running = place.running().get("analyze", {})
    if view in running.get("views", ()):  # the file may have changed since
        raise MillstreamError(
            f"view {view} is in the running pipeline",
            remedy=f"remove it from {running['pipeline']} and restart `analyze` first",
        )
    if not yes:
        click.confirm(f"Remove all rows and the state of {view}?", abort=True, err=True)
    drop_view(place, log, app, view)
    click.echo(f"{view} is removed", err=True)
