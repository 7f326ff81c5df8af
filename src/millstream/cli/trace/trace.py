"""`trace`: follow one event by its receipt, from the collector to every view that reads it."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from millstream.cli.shared.options import (
    access_of,
    access_options,
    home_option,
    json_option,
    log_of,
    set_option,
    url_of,
)
from millstream.cli.shared.outcome import FAILED
from millstream.errors import LogError, MillstreamError

if TYPE_CHECKING:
    from millstream.cli.trace.event_trace import Trace

_PAUSE = 0.2


@click.command()
@click.argument("receipt")
@home_option
@set_option
@click.option("--collect-url", default="", help="The collector's address; default: of --home.")
@click.option("--serve-url", default="", help="The server's address; default: of --home.")
@access_options
@click.option("--wait", is_flag=True, help="Until every view has read past the event.")
@click.option(
    "--timeout",
    type=click.FloatRange(0),
    default=60.0,
    show_default=True,
    help="Seconds of --wait.",
)
@json_option
def trace(
    receipt: str,
    home: Path,
    assignments: tuple[str, ...],
    collect_url: str,
    serve_url: str,
    key_file: Path | None,
    ca: str,
    wait: bool,
    timeout: float,
    as_json: bool,
) -> int:
    """Follow an event by the RECEIPT that its sender got.

    When it was received, on disk and in the log, at which place there, whether the rejected or the
    late topic holds it, and for each view that reads its stream, directly or through other views,
    whether it has read past it. Says `at least` and `likely` where only a bound is known.

    The exit code is 1 if the event was rejected, failed or is gone, and, with --wait, if a view has
    not read past it in time.

    \b
    millstream trace AQAB…
    millstream trace AQAB… --wait --timeout 10
    millstream trace AQAB… --json | jq .views
    """
    from millstream.cli.trace.event_trace import find_event, follow

    collect = url_of("collect", collect_url, home, "--collect-url")
    access = access_of(key_file, ca)
    deadline = time.monotonic() + timeout
    while True:
        event = find_event(collect, receipt, access, max(5.0, deadline - time.monotonic()))
        found = follow(event, *system_of(home, serve_url))
        if found.is_over or not wait or time.monotonic() > deadline:
            break
        time.sleep(_PAUSE)
    found = with_late(found, home, assignments)
    if as_json:
        click.echo(json.dumps(found.content(), ensure_ascii=False, indent=2))
    else:
        show(found)
    return 0 if found.is_well(wait) else FAILED


def system_of(home: Path, serve_url: str) -> tuple[dict[str, Any] | None, str]:
    """The server's figures; or None, and why there are none."""
    from millstream.supervise.metrics_poll import fetch_system

    try:
        return fetch_system(url_of("serve", serve_url, home, "--serve-url"), seconds=5), ""
    except MillstreamError as error:
        return None, str(error)


def with_late(found: Trace, home: Path, assignments: tuple[str, ...]) -> Trace:
    """The trace with what the late topic holds of the event, or with why that is not known."""
    from millstream.cli.trace.event_trace import find_late_records

    if found.event["state"] != "logged":
        return found
    try:
        return replace(found, late=find_late_records(log_of(home, assignments), found.event))
    except LogError as error:
        return replace(found, late_unknown=str(error))


def show(found: Trace) -> None:
    from rich.text import Text

    from millstream.supervise.status_tables import console

    out = console()
    for step in found.steps():
        out.print(Text.assemble((step.sign, step.style), f" {step.name:<10} ", (step.words, "")))
    if found.late_unknown:
        out.print(Text(f"  whether it was late is not known: {found.late_unknown}", "yellow"))
    if found.unknown:
        out.print(Text(f"  what the views have read is not known: {found.unknown}", "yellow"))
    for branch, view in found.tree():
        sign, style = view.sign
        out.print(
            Text.assemble(f"  {branch} ", (sign, style), f" {view.name}  ", (view.words, "dim"))
        )
