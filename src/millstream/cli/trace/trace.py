"""`trace`: follows one event by its receipt, from the collector to every view."""

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
    serve_access,
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
@click.option(
    "--collect-url", default="", help="The collector's address; default: the one in --home."
)
@click.option("--serve-url", default="", help="The server's address; default: the one in --home.")
@access_options
@click.option("--wait", is_flag=True, help="Wait until every view has read the event.")
@click.option(
    "--timeout",
    type=click.FloatRange(0),
    default=60.0,
    show_default=True,
    help="Seconds for --wait.",
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

    Shows when the event was received, written to disk and logged; its topic, partition and offset;
    whether it was rejected or late; and for each view that reads its stream, directly or through
    other views, whether the view has read it. `likely` means that this is not certain.

    The exit code is 1 if the event was rejected, failed or no longer exists, and with --wait also
    if a view has not read it in time.

    \b
    millstream trace AQAB…
    millstream trace AQAB… --wait --timeout 10
    millstream trace AQAB… --json | jq .views
    """
    from millstream.cli.trace.event_trace import find_event, trace_event

    collect = url_of("collect", collect_url, home, "--collect-url")
    access = access_of(key_file, ca)
    deadline = time.monotonic() + timeout
    while True:
        event = find_event(collect, receipt, access, max(5.0, deadline - time.monotonic()))
        found = trace_event(event, *system_of(home, serve_url, key_file, ca))
        if found.is_over or not wait or time.monotonic() > deadline:
            break
        time.sleep(_PAUSE)
    found = with_late(found, home, assignments)
    if as_json:
        click.echo(json.dumps(found.content(), ensure_ascii=False, indent=2))
    else:
        show(found)
    return 0 if found.is_successful(wait) else FAILED


def system_of(
    home: Path, serve_url: str, key_file: Path | None, ca: str
) -> tuple[dict[str, Any] | None, str]:
    """The server's metrics; or None and the reason."""
    from millstream.supervise.metrics_poll import fetch_system

    try:
        address, access = serve_access(serve_url, home, key_file, ca, "--serve-url")
        return fetch_system(address, access, seconds=5), ""
    except MillstreamError as error:
        return None, str(error)


def with_late(found: Trace, home: Path, assignments: tuple[str, ...]) -> Trace:
    """The trace with the event's late records, or with the reason why they are unknown."""
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
