"""The figures of `/v1/system` as tables and as one line, for `run`'s screen and for `status`."""

from __future__ import annotations

import sys
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

GOOD = {"up", "ready", "running", "connected", "listening"}
NEARLY_FULL = 0.8
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
    """What came of the events that were handed in, per stream."""
    collect = system["tiers"].get("collect", {})
    counted = ("accepted", "rejected", "failed", "shed", "duplicates", "pending")
    table = grid("stream", ">rate", *(f">{name}" for name in counted), ">p50 / p99")
    for stream in system["streams"]:
        counts = collect.get("streams", {}).get(stream["name"], {})
        table.add_row(
            Text(stream["name"]),
            rate(counts.get("rate", 0.0)),
            *(_count(counts, name) for name in counted),
            milliseconds(counts.get("latency_ms")),
        )
    return table


def _count(counts: dict[str, Any], name: str) -> Text:
    value = counts.get(name, 0)
    style = "red" if name == "failed" else "yellow" if name in ("rejected", "shed") else ""
    return Text(f"{value:,}", style=style if value else "")


def steps_table(system: dict[str, Any]) -> Table:
    """How long after its arrival an event is on disk, handed to Kafka, and confirmed by it."""
    streams = system["tiers"].get("collect", {}).get("streams", {})
    table = grid("after the arrival", "", ">journaled", ">sent", ">acknowledged")
    for stream in system["streams"]:
        counts = streams.get(stream["name"], {})
        steps = [counts.get(step) for step in ("journaled_ms", "sent_ms", "latency_ms")]
        if any(steps):
            table.add_row(Text(stream["name"]), "min / mean / p99 / max", *map(_spread, steps))
    return table


def _spread(latency: dict[str, float] | None) -> str:
    if not latency or not latency.get("count"):
        return "–"
    measures = (latency.get(name, 0.0) for name in ("min", "mean", "p99", "max"))
    return " / ".join(_short(value) for value in measures) + " ms"


def sources_table(system: dict[str, Any]) -> Table:
    """What the collectors pull from: whether they hear from it, how fast, how far behind."""
    collect = system["tiers"].get("collect", {})
    table = grid("source of", "kind", "state", ">rate", ">behind", ">lost", "address", "")
    for source in collect.get("sources", []):
        table.add_row(
            Text(source["stream"]),
            source.get("kind", ""),
            state_text(source["state"]),
            rate(source.get("rate", 0.0)),
            _behind(source),
            _lost(source.get("lost", 0)),
            Text(source["url"], style="dim"),
            Text(source.get("error", "") if source["state"] not in GOOD else "", style="red"),
        )
    told = {source["stream"] for source in collect.get("sources", [])}
    for stream in system["streams"]:
        described = stream.get("source")
        if described and stream["name"] not in told:
            row = (Text(stream["name"]), described["kind"], state_text(""), "–", "–", "–")
            table.add_row(*row, Text(described["url"], style="dim"), "")
    return table


def _behind(source: dict[str, Any]) -> str:
    behind = source.get("behind")
    return "–" if behind is None else f"{behind:,} {source.get('behind_unit', '')}".rstrip()


def _lost(count: int) -> Text:
    return Text(f"{count:,}", style="red" if count else "")


def journal_line(system: dict[str, Any]) -> Text:
    """How much waits in the collectors' journals, of how much may; or why they take nothing."""
    journal = system["tiers"].get("collect", {}).get("journal")
    if not journal:
        return Text("journal: nothing is known of it", style="dim")
    if journal.get("broken"):
        return Text(f"✗ the journal takes nothing: {journal['broken']}", style="red")
    used = fill(journal)
    style = "red" if used >= 1 else "yellow" if used >= NEARLY_FULL else ""
    return Text(
        f"journal {journal.get('entries', 0):,} entries wait for Kafka · files "
        f"{size(journal.get('stored_bytes', 0))} of {size(journal.get('max_bytes', 0))} "
        f"({used:.0%})",
        style=style,
    )


def fill(journal: dict[str, Any]) -> float:
    """The share of its room that the journal's files take."""
    return float(journal.get("stored_bytes", 0) / (journal.get("max_bytes") or 1))


def size(count: float) -> str:
    """Bytes as people say them: 812 B, 3.4 MB, 1.0 GB."""
    unit = "B"
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if count < 1000 or unit == "TB":
            break
        count /= 1000
    return f"{count:,.0f} {unit}" if unit == "B" or count >= 100 else f"{count:.1f} {unit}"


def collect_parts(system: dict[str, Any]) -> list[Table | Text | str]:
    """All that is told of the collection tier, with empty lines between."""
    tables = (streams_table(system), steps_table(system), sources_table(system))
    parts = [part for table in tables if table.row_count for part in (table, "")]
    return [*parts, journal_line(system), ""]


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
    figures = [
        f"in {rate(collect.get('rate'))}",
        f"accepted {collect.get('accepted', 0):,}",
        f"rejected {collect.get('rejected', 0):,}",
        f"queries running {states.count('running')} of {len(system['views'])}",
        f"end to end {milliseconds(system.get('end_to_end_ms'))}",
        f"clients {tiers.get('serve', {}).get('clients', 0)}",
        f"restarts {restarts}",
    ]
    rare = [f"{word} {collect[word]:,}" for word in ("failed", "shed") if collect.get(word)]
    broken = (collect.get("journal") or {}).get("broken", "")
    return " · ".join([*figures, *rare, *([f"journal: {broken}"] if broken else [])])
