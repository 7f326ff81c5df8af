"""The figures of `/v1/system` as tables and as one line, for `run`'s screen and for `status`."""

from __future__ import annotations

import sys
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

GOOD = {"up", "ready", "running", "connected", "listening"}
PASSING = {"starting", "waiting", "connecting", "restarting", "retrying"}


def state_text(state: str) -> Text:
    """A state in its colour, with a sign for those who do not see colours."""
    if state in GOOD:
        return Text(f"● {state}", style="green")
    if state in PASSING:
        return Text(f"◐ {state}", style="yellow")
    return Text(f"✗ {state or 'unknown'}", style="red")


def milliseconds(latency: dict[str, float] | None) -> str:
    """`9 / 31 ms`: p50 and p99."""
    if not latency or not latency.get("count"):
        return "–"
    return f"{_short(latency['p50'])} / {_short(latency['p99'])} ms"


def rate(value: float | None) -> str:
    return "–" if value is None else f"{value:,.1f}/s" if value < 100 else f"{value:,.0f}/s"


def _short(value: float) -> str:
    return f"{value:.1f}" if value < 10 else f"{value:,.0f}"


def console() -> Console:
    """A terminal as wide as it is; a file has no width, and gets enough for every table."""
    return Console(highlight=False, width=None if sys.stdout.isatty() else 160)


def grid(*columns: str) -> Table:
    """A table without lines; columns that start with `>` hold numbers."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for column in columns:
        right = column.startswith(">")
        table.add_column(
            Text(column.removeprefix(">"), style="dim"),
            justify="right" if right else "left",
            no_wrap=bool(column),  # the one without a name holds errors, which are long
            overflow="ellipsis",
        )
    return table


def tier_row(system: dict[str, Any] | None, name: str) -> tuple[str, str]:
    """Rate and latency of a tier; `kafka` is called log there."""
    tier = (system or {}).get("tiers", {}).get("log" if name == "kafka" else name, {})
    return rate(tier.get("rate")), milliseconds(tier.get("latency_ms"))


def streams_table(system: dict[str, Any]) -> Table:
    collect = system["tiers"].get("collect", {})
    sources = {source["stream"]: source for source in collect.get("sources", [])}
    table = grid("stream", ">rate", ">accepted", ">rejected", ">pending", ">p50 / p99", "source")
    for stream in system["streams"]:
        counts = collect.get("streams", {}).get(stream["name"], {})
        table.add_row(
            Text(stream["name"]),
            rate(counts.get("rate", 0.0)),
            f"{counts.get('accepted', 0):,}",
            f"{counts.get('rejected', 0):,}",
            f"{counts.get('pending', 0):,}",
            milliseconds(counts.get("latency_ms")),
            _source(sources.get(stream["name"]), stream.get("source")),
        )
    return table


def _source(state: dict[str, Any] | None, described: dict[str, Any] | None) -> Text:
    if state is None:
        return Text(described["url"] if described else "HTTP only", style="dim")
    text = state_text(state["state"]).append(f" {state['url']}", style="dim")
    if state.get("error") and state["state"] not in GOOD:
        text.append(f" {state['error']}", style="red")
    return text


def views_table(system: dict[str, Any]) -> Table:
    analyze = system["tiers"].get("analyze", {}).get("views", {})
    serve = system["tiers"].get("serve", {}).get("views", {})
    table = grid("view", "mode", "state", ">rows", ">rate", ">p50 / p99", ">restarts", "")
    for view in system["views"]:
        counts, served = analyze.get(view["name"], {}), serve.get(view["name"], {})
        table.add_row(
            Text(view["name"]),
            str(view.get("mode", "")).replace("_", "-"),
            state_text(counts.get("state", "")),
            f"{view.get('rows') or 0:,}",
            rate(served.get("rate", 0.0)),
            milliseconds(served.get("analyze_ms") or counts.get("analyze_ms")),
            str(counts.get("restarts", 0)),
            Text(counts.get("error", ""), style="red"),
        )
    return table


def one_line(system: dict[str, Any] | None, restarts: int) -> str:
    """The most important figures for a log."""
    if system is None:
        return f"no figures: serve does not answer; restarts {restarts}"
    tiers = system["tiers"]
    states = [view.get("state") for view in tiers.get("analyze", {}).get("views", {}).values()]
    collect = tiers.get("collect", {})
    return " · ".join(
        (
            f"in {rate(collect.get('rate'))}",
            f"accepted {collect.get('accepted', 0):,}",
            f"rejected {collect.get('rejected', 0):,}",
            f"queries running {states.count('running')} of {len(system['views'])}",
            f"end to end {milliseconds(system.get('end_to_end_ms'))}",
            f"clients {tiers.get('serve', {}).get('clients', 0)}",
            f"restarts {restarts}",
        )
    )
