"""`status`: shows what runs in a home, and its problems."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from millstream.cli.shared.options import (
    ca_option,
    home_access,
    home_option,
    json_option,
    open_home,
)
from millstream.cli.shared.outcome import FAILED, ignored_broken_pipe
from millstream.errors import MillstreamError
from millstream.runtime.home import Home

if TYPE_CHECKING:
    from millstream.runtime.failing_processes import Failure

_MAX_LAG = 10.0  # seconds; a view that is further behind, and falls behind, is a problem
TIERS = ("kafka", "collect", "analyze", "serve")


@click.command()
@home_option
@ca_option
@json_option
def status(home: Path, ca: str, as_json: bool) -> int:
    """Show what runs: processes, addresses, rates, watermarks, the state of sources and queries.

    The exit code is 1 if a process keeps dying, a tier is down or hangs, a source or a query does
    not run, the journal accepts nothing, the collectors' counts do not add up, accepted events
    could not be logged (until `millstream failed retry` or `drop`), or accepted events were lost in
    a damaged entry of the journal (until `millstream failed drop` acknowledges the loss). What
    could not be checked is reported, and is no problem by itself.

    \b
    millstream status
    millstream status --json | jq .problems
    millstream status --ca ca.pem
    """
    import msgspec

    from millstream.runtime.failing_processes import read_failures
    from millstream.runtime.home import collectors

    place = open_home(home)
    running, failures = place.running(), read_failures(place)
    if not failures and not any(tier in running for tier in (*TIERS, *collectors(running))):
        raise MillstreamError(
            f"nothing runs in {home}",
            remedy="start it with `millstream run PIPELINE`, or name another --home",
        )
    system = read_system(place, running, ca)
    refused, unknown = ask_collect(running, ca)
    problems = [
        *map(str, failures),
        *problems_of(running, system),
        *refused,
        *problems_of_failed(place),
        *problems_of_damage(place, system),
    ]
    with ignored_broken_pipe():
        if as_json:
            answer = {
                "running": running,
                "system": system,
                "problems": problems,
                "unknown": unknown,
                "failing": msgspec.to_builtins(failures),
            }
            click.echo(json.dumps(answer, indent=2))
        else:
            show(running, system, failures, problems[len(failures) :], unknown)
    return FAILED if problems else 0


def read_system(home: Home, running: dict[str, Any], ca: str) -> dict[str, Any] | None:
    """The server's metrics, or None if no server answers."""
    from millstream.supervise.metrics_poll import fetch_system

    if "serve" not in running:
        return None
    try:
        access = home_access(home)
        access = replace(access, ca=ca) if ca and not access.certificate else access
        return fetch_system(running["serve"]["url"], access, seconds=5)
    except MillstreamError:
        return None


def ask_collect(running: dict[str, Any], ca: str) -> tuple[list[str], list[str]]:
    """The collector's reason for accepting no events, if any; and why it could not be asked."""
    from millstream.client.credentials import ssl_context
    from millstream.runtime.home import collectors
    from millstream.supervise.metrics_poll import why_not_ready

    trusted = ssl_context(ca)
    collector = next(iter(collectors(running).values()), None)
    if collector is None:
        return [], []
    try:
        why = why_not_ready(collector["url"], trusted)
    except MillstreamError as error:
        return [], [f"whether collect accepts events is not known: {error}"]
    return [f"collect accepts nothing: {why}"] if why else [], []


def problems_of(running: dict[str, Any], system: dict[str, Any] | None) -> list[str]:
    """All problems as text; a broker elsewhere has no entry in `run.json`."""
    from millstream.runtime.home import collectors
    from millstream.supervise.status_tables import missing_report

    up = {*running, "collect"} if collectors(running) else running
    problems = [f"{tier} is down" for tier in TIERS[1:] if tier not in up]
    if system is None:
        return [*problems, "no metrics: serve does not answer"] if "serve" in running else problems
    problems += [
        f"{words}: it hangs, or Kafka does not take its reports"
        for tier in system["tiers"]
        if tier in running and (words := missing_report(system, tier))
    ]
    if system["tiers"].get("log", {}).get("state") == "down":
        problems.append("kafka is down")
    problems += problems_of_collect(system["tiers"].get("collect", {}))
    analyze = system["tiers"].get("analyze", {}).get("views", {})
    for view in system["views"]:
        counts = analyze.get(view["name"], {})
        if (state := counts.get("state") or "unknown") != "running":
            error = f": {counts['error']}" if counts.get("error") else ""
            problems.append(f"view {view['name']} is {state}{error}")
        # A view that does not run has its error in its warning: it is a problem already.
        if warning := (view.get("warning") if state == "running" else "") or counts.get("warning"):
            problems.append(f"view {view['name']}: {warning}")
        rebuild = counts.get("rebuild") or {}
        if rebuild.get("state") == "failed" and not rebuild.get("request"):
            problems.append(
                f"view {view['name']} is served as it was before the pipeline changed, because it "
                f"cannot be rebuilt: {rebuild.get('error', '')}"
            )
        if dropped := counts.get("dropped"):
            problems.append(
                f"view {view['name']} lacks at least {dropped:,} rows that Spark had no state for: "
                f"`millstream rebuild {view['name']}`"
            )
        if (
            state == "running"
            and counts.get("trend") == "growing"
            and counts.get("behind_s", 0.0) > _MAX_LAG
        ):
            problems.append(
                f"view {view['name']} falls behind: {counts['behind']:,} events, "
                f"{counts['behind_s']:,.0f} s, and growing"
            )
    problems += [
        f"query {query['name']} cannot run: {query['error']}"
        for query in system.get("queries", [])
        if query["error"]
    ]
    for stream, counts in system["tiers"].get("analyze", {}).get("streams", {}).items():
        if error := counts.get("error"):
            problems.append(f"the watermark of {stream} may not advance: {error}")
        if lost := counts.get("lost"):
            problems.append(
                f"{lost:,} events of {stream} were deleted by retention before they were checked"
            )
    return problems


def problems_of_collect(collect: dict[str, Any]) -> list[str]:
    """Problems of journals and sources, and counts that do not add up."""
    from millstream.supervise.status_tables import GOOD, fill

    problems = []
    if journal := collect.get("journal"):
        if journal.get("broken"):
            problems.append(f"the journal accepts nothing: {journal['broken']}")
        elif fill(journal) >= 1:
            problems.append("the journal is full: nothing is accepted until Kafka accepts more")
    for source in collect.get("sources", []):
        if source["state"] not in GOOD | {"connecting"}:
            error = f": {source['error']}" if source.get("error") else ""
            problems.append(f"the source of {source['stream']} is {source['state']}{error}")
        if warning := source.get("warning"):
            problems.append(f"the source of {source['stream']}: {warning}")
    if off := collect.get("unaccounted"):
        problems.append(f"{off:,} accepted events are not accounted for: see `millstream audit`")
    return problems


def problems_of_failed(home: Home) -> list[str]:
    """Accepted events that could not be logged, and wait in this home for a decision."""
    from millstream.collect.intake.failed import FailedStore

    waiting = len(FailedStore(home.failed).ids())
    if not waiting:
        return []
    return [
        f"{waiting:,} accepted events could not be logged: see why with `millstream failed list`, "
        "then retry or drop them"
    ]


def problems_of_damage(home: Home, system: dict[str, Any] | None) -> list[str]:
    """Losses by damaged journals: those of this home from its files, others from reports."""
    import msgspec

    from millstream.cli.audit.collector_counts import damage_text
    from millstream.cli.dead_letters.damaged import damage_counts
    from millstream.values.report import JournalDamage

    here = damage_counts(home)
    problems = [damage_text(here)] if here.entries else []
    journal = (system or {}).get("tiers", {}).get("collect", {}).get("journal") or {}
    reported = msgspec.convert(journal.get("damage") or {}, JournalDamage)
    # Reports are a second old: what was just acknowledged here must not count as elsewhere.
    ever = reported.entries + reported.acknowledged - here.entries - here.acknowledged
    if min(ever, reported.entries - here.entries) > 0:
        problems.append(f"all collectors, those of other homes too: {damage_text(reported)}")
    return problems


def show(
    running: dict[str, Any],
    system: dict[str, Any] | None,
    failures: Sequence[Failure],
    problems: list[str],
    unknown: list[str],
) -> None:
    from rich.text import Text

    from millstream.runtime.home import collectors
    from millstream.supervise.status_tables import (
        analyze_section,
        collect_section,
        console,
        failure_lines,
        grid,
        milliseconds,
        missing_report,
        state_text,
        tier_row,
        warning_lines,
    )

    out = console()
    processes = grid("process", "state", "address", ">pid", ">rate", ">p50 / p99")
    more = sorted(collectors(running).keys() - {"collect"})
    for process in (*TIERS, *more):
        tier = process.partition("-")[0]
        entry = running.get(process, {})
        address = str(entry.get("url") or entry.get("bootstrap") or "")
        pid = str(entry.get("pid", ""))
        state = ("silent" if missing_report(system, tier) else "up") if entry else "down"
        if tier == "kafka" and not entry and system is not None:  # a cluster elsewhere
            state = system["tiers"]["log"]["state"]
        processes.add_row(
            Text(process, "bold"), state_text(state), address, pid, *tier_row(system, process)
        )
    out.print(processes)
    if system is not None:
        out.print("", *collect_section(system), *analyze_section(system), sep="\n")
        out.print(f"end to end {milliseconds(system.get('end_to_end_ms'))} (p50 / p99)")
    for line in failure_lines(failures):
        out.print(line)
    for problem in problems:
        out.print(Text(f"✗ {problem}", "red"))
    for each in unknown:
        out.print(Text(f"? {each}", "yellow"))
    for line in warning_lines(system):
        out.print(line)
