"""The metrics of `/v1/system` as tables and as one line, for `run` and `status`."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from millstream.runtime.failing_processes import Failure
from millstream.values.clock import format_time

GOOD = {"up", "ready", "running", "connected", "listening"}
NEARLY_FULL = 0.8
_RED_COUNTS = ("failed", "lost")
_YELLOW_COUNTS = ("rejected", "shed", "future", "late", "broken")
_UNITS = (("days", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1_000))
TRANSIENT = {"starting", "waiting", "connecting", "restarting", "retrying"}


def state_text(state: str) -> Text:
    """A state with its colour, and a sign for people who do not see colours."""
    if state in GOOD:
        return Text(f"● {state}", style="green")
    if state in TRANSIENT:
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


class _PipedConsole(Console):
    def on_broken_pipe(self) -> None:
        """Raise, so that the command chooses its exit code; Rich would exit with 1."""
        raise BrokenPipeError


def console() -> Console:
    """A console with the terminal's width; in a file, wide enough for every table."""
    return _PipedConsole(highlight=False, width=None if sys.stdout.isatty() else 160)


def grid(*columns: str) -> Table:
    """A table without borders; columns that start with `>` hold numbers."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for column in columns:
        right = column.startswith(">")
        table.add_column(
            Text(column.removeprefix(">"), style="dim"),
            justify="right" if right else "left",
            no_wrap=bool(column),  # the column without a name holds errors, which are long
            overflow="ellipsis",
        )
    return table


def tier_row(system: dict[str, Any] | None, name: str) -> tuple[str, str]:
    """Rate and latency of a tier; the metrics call `kafka` log."""
    tier = (system or {}).get("tiers", {}).get("log" if name == "kafka" else name, {})
    return rate(tier.get("rate")), milliseconds(tier.get("latency_ms"))


def streams_table(system: dict[str, Any]) -> Table:
    """Counts of received events, per stream."""
    collect = system["tiers"].get("collect", {})
    counted = ("accepted", "rejected", "failed", "shed", "duplicates", "pending")
    table = grid("stream", ">rate", *(f">{name}" for name in counted), ">p50 / p99")
    is_silent = bool(missing_report(system, "collect"))
    for stream in system["streams"]:
        counts = collect.get("streams", {}).get(stream["name"], {})
        table.add_row(
            Text(stream["name"]),
            rate(None if is_silent else counts.get("rate", 0.0)),
            *(_count(counts, name) for name in counted),
            milliseconds(counts.get("latency_ms")),
        )
    return table


def missing_report(system: dict[str, Any] | None, tier: str) -> str:
    """`collect has not reported since …`; empty if it reports, or nothing is known about it.

    A tier does not report if it hangs or is down.
    """
    metrics = (system or {}).get("tiers", {}).get(tier, {})
    if metrics.get("state") != "down" or tier not in ("collect", "analyze"):
        return ""
    at = metrics.get("reported_at")
    if not at:
        return f"{tier} has not reported since serve started"
    return f"{tier} has not reported since {at[:19]}Z ({behind(at, (system or {}).get('now'))})"


def _count(counts: dict[str, Any], name: str) -> Text:
    value = counts.get(name, 0)
    style = "red" if name in _RED_COUNTS else "yellow" if name in _YELLOW_COUNTS else ""
    return Text(f"{value:,}", style=style if value else "")


def latency_table(system: dict[str, Any]) -> Table:
    """How long after its arrival an event is on disk, sent to Kafka, and acknowledged."""
    streams = system["tiers"].get("collect", {}).get("streams", {})
    table = grid("after the arrival", "", ">journaled", ">sent", ">acknowledged")
    for stream in system["streams"]:
        counts = streams.get(stream["name"], {})
        steps = [counts.get(step) for step in ("journaled_ms", "sent_ms", "latency_ms")]
        if any(steps):
            table.add_row(Text(stream["name"]), "min / mean / p99 / max", *map(_spread, steps))
    return table


def skew_table(system: dict[str, Any]) -> Table:
    """How far event times are behind the arrival; below zero they are ahead."""
    streams = system["tiers"].get("collect", {}).get("streams", {})
    table = grid("event time", "", ">behind the arrival", ">out of order", ">in the future")
    for stream in system["streams"]:
        counts = streams.get(stream["name"], {})
        if stream.get("event_time") and (counts.get("skew_ms") or counts.get("future")):
            skew = counts.get("skew_ms") or {}
            measures = [_span(skew[name]) for name in ("p50", "p99", "max") if name in skew]
            table.add_row(
                Text(stream["name"]),
                "p50 / p99 / max",
                " / ".join(measures) or "–",
                _count(counts, "out_of_order"),
                _count(counts, "future"),
            )
    return table


def _span(milliseconds: float) -> str:
    for unit, size in _UNITS:
        if abs(milliseconds) >= size:
            return f"{milliseconds / size:.1f} {unit}"
    return f"{milliseconds:.0f} ms"


def _spread(latency: dict[str, float] | None) -> str:
    if not latency or not latency.get("count"):
        return "–"
    measures = (latency.get(name, 0.0) for name in ("min", "mean", "p99", "max"))
    return " / ".join(_short(value) for value in measures) + " ms"


def sources_table(system: dict[str, Any]) -> Table:
    """The sources of the collectors: state, rate and lag."""
    collect = system["tiers"].get("collect", {})
    table = grid("source of", "kind", "state", ">rate", ">behind", ">lost", "address", "")
    for source in collect.get("sources", []):
        table.add_row(
            Text(source["stream"]),
            source.get("kind", ""),
            state_text(source["state"]),
            rate(source.get("rate", 0.0)),
            _behind(source),
            _count(source, "lost"),
            Text(source["url"], style="dim"),
            Text(_source_error(source), style="red"),
        )
    reported = {source["stream"] for source in collect.get("sources", [])}
    for stream in system["streams"]:
        described = stream.get("source")
        if described and stream["name"] not in reported:
            row = (Text(stream["name"]), described["kind"], state_text(""), "–", "–", "–")
            table.add_row(*row, Text(described["url"], style="dim"), "")
    return table


def _source_error(source: dict[str, Any]) -> str:
    error = "" if source["state"] in GOOD else source.get("error", "")
    return " · ".join(filter(None, (error, source.get("warning", ""))))


def _behind(source: dict[str, Any]) -> str:
    behind = source.get("behind")
    return "–" if behind is None else f"{behind:,} {source.get('behind_unit', '')}".rstrip()


def journal_line(system: dict[str, Any]) -> Text:
    """How full the collectors' journals are, or why they accept nothing."""
    journal = system["tiers"].get("collect", {}).get("journal")
    if not journal:
        return Text("journal: unknown", style="dim")
    if journal.get("broken"):
        return Text(f"✗ the journal accepts nothing: {journal['broken']}", style="red")
    used = fill(journal)
    style = "red" if used >= 1 else "yellow" if used >= NEARLY_FULL else ""
    lost = (journal.get("damage") or {}).get("entries", 0)
    return Text(
        f"journal {journal.get('entries', 0):,} entries wait for Kafka · files "
        f"{size(journal.get('stored_bytes', 0))} of {size(journal.get('max_bytes', 0))} "
        f"({used:.0%})" + (f" · {lost:,} damaged entries are lost" if lost else ""),
        style="red" if lost else style,
    )


def fill(journal: dict[str, Any]) -> float:
    """The share of its maximum size that the journal's files use."""
    return float(journal.get("stored_bytes", 0) / (journal.get("max_bytes") or 1))


def size(count: float) -> str:
    """Bytes with a unit: 812 B, 3.4 MB, 1.0 GB."""
    unit = "B"
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if count < 1000 or unit == "TB":
            break
        count /= 1000
    return f"{count:,.0f} {unit}" if unit == "B" or count >= 100 else f"{count:.1f} {unit}"


def collect_section(system: dict[str, Any]) -> list[Table | Text | str]:
    """Everything about the collect tier, with empty lines between."""
    words = missing_report(system, "collect")
    old = [Text(f"✗ {words}: these are its last metrics", style="red")] if words else []
    tables = (
        streams_table(system),
        latency_table(system),
        skew_table(system),
        sources_table(system),
    )
    return [*old, *_spaced(tables), journal_line(system), ""]


def analyze_section(system: dict[str, Any]) -> list[Table | Text | str]:
    """Everything about the analyze tier, with an empty line after each table."""
    words = missing_report(system, "analyze")
    silent = [Text(f"✗ {words}", style="red")] if words else []
    tables = (
        views_table(system),
        rebuilds_table(system),
        event_time_table(system),
        drifts_table(system),
    )
    return [*silent, *_spaced(tables)]


def _spaced(tables: Iterable[Table]) -> list[Table | str]:
    return [each for table in tables if table.row_count for each in (table, "")]


def views_table(system: dict[str, Any]) -> Table:
    analyze = system["tiers"].get("analyze", {}).get("views", {})
    serve = system["tiers"].get("serve", {}).get("views", {})
    columns = (">rows", ">rate", ">p50 / p99", ">behind", ">restarts", ">watermark")
    table = grid("view", "mode", "state", *columns, "")
    for view in system["views"]:
        counts, served = analyze.get(view["name"], {}), serve.get(view["name"], {})
        table.add_row(
            Text(view["name"]),
            str(view.get("mode", "")).replace("_", "-"),
            state_text(counts.get("state", "")),
            f"{view.get('rows') or 0:,}",
            rate(served.get("rate", 0.0)),
            milliseconds(served.get("analyze_ms") or counts.get("analyze_ms")),
            lag_text(counts),
            str(counts.get("restarts", 0)),
            behind(view.get("watermark"), system.get("now")),
            Text(counts.get("error", ""), style="red")
            if counts.get("error")
            else missing_events(counts),
        )
    return table


def rebuilds_table(system: dict[str, Any]) -> Table:
    """Rebuilds of views: progress, remaining time, and what is served."""
    table = grid("rebuild of", "state", ">replayed", ">left", "events", "began", "because", "")
    for name, counts in system["tiers"].get("analyze", {}).get("views", {}).items():
        if (rebuild := counts.get("rebuild")) is None:
            continue
        state, total, left = rebuild["state"], rebuild.get("total", 0), rebuild.get("left_s")
        table.add_row(
            Text(name),
            Text(state, style={"failed": "red", "done": "green"}.get(state, "yellow")),
            f"{rebuild.get('done', 0):,} of {total:,}" if total else "–",
            "–" if left is None else _span(left * 1000),
            "all" if rebuild.get("since") is None else f"from {format_time(rebuild['since'])} on",
            format_time(rebuild["started_at"]) if rebuild.get("started_at") else "–",
            "it was requested" if rebuild.get("request") else "the pipeline changed",
            Text(rebuild.get("error", ""), style="red") if state == "failed" else served(rebuild),
        )
    return table


def served(rebuild: dict[str, Any]) -> Text:
    """Which rows clients see."""
    if rebuild["state"] != "done":
        return Text("the old rows are served until it is ready", style="dim")
    return Text(f"served in a new epoch since {format_time(rebuild['ended_at'])}", style="dim")


def lag_text(counts: dict[str, Any]) -> Text:
    """`1,204 · 3.1 s ▼ 12 s`: events and seconds behind; shrinking, caught up in 12 s."""
    behind = counts.get("behind")
    if not behind:
        return Text("–" if behind is None else "0")
    signs = {"growing": " ▲", "shrinking": " ▼"}
    trend = counts.get("trend", "")
    left = f" {counts['catch_up_s']:,.0f} s" if counts.get("catch_up_s") is not None else ""
    text = f"{behind:,} · {counts.get('behind_s', 0.0):,.1f} s{signs.get(trend, '')}{left}"
    return Text(text, style="yellow" if trend == "growing" else "")


def missing_events(counts: dict[str, Any]) -> Text:
    """The events that a view lacks: shed, set aside, or deleted by retention."""
    parts = []
    if shed := counts.get("shed"):
        parts.append(f"{shed:,} shed")
    if (share := counts.get("share", 1.0)) < 1:
        parts.append(f"takes {share:.1%} of its input to keep up")
    if broken := counts.get("broken"):
        newest = counts["newest_broken"]
        place = f"{newest['topic']}/{newest['partition']}/{newest['offset']}"
        parts.append(f"{broken:,} set aside, the newest {place}: {newest['reason']}")
    if lost := counts.get("lost"):
        losses = (
            f"{loss['topic']}/{loss['partition']} {loss['start']}-{loss['stop'] - 1}"
            for loss in counts.get("losses", [])
        )
        parts.append(f"{lost:,} lost to retention: {', '.join(losses)}")
    return Text("; ".join(parts), style="yellow")


def drifts_table(system: dict[str, Any]) -> Table:
    """Fields whose values have another distribution than before."""
    table = grid("drift of", "field", "since", "before", "now")
    for drift in system["tiers"].get("analyze", {}).get("drifts", []):
        table.add_row(
            Text(drift["stream"]),
            Text(drift["field"]),
            f"{datetime.fromtimestamp(drift['at'] / 1000, UTC):%H:%M:%S}Z",
            Text(drift["before"]),
            Text(drift["now"], style="yellow"),
        )
    return table


def event_time_table(system: dict[str, Any]) -> Table:
    """Per stream, the watermark and how many events came late."""
    judged = system["tiers"].get("analyze", {}).get("streams", {})
    table = grid("time of", ">watermark", ">in order", ">late", ">future", ">broken", ">lost")
    for stream in system["streams"]:
        counts = judged.get(stream["name"])
        if counts is not None:
            table.add_row(
                Text(stream["name"]),
                behind(stream.get("watermark"), system.get("now")),
                *(
                    _count(counts, name)
                    for name in ("in_order", "late", "future", "broken", "lost")
                ),
            )
    return table


def behind(watermark: str | None, now: str | None) -> str:
    """`3.2 s ago`, by the server's clock; a dash if unknown."""
    if not watermark or not now:
        return "–"
    seconds = (datetime.fromisoformat(now) - datetime.fromisoformat(watermark)).total_seconds()
    if abs(seconds) < 60:
        return f"{seconds:.1f} s ago"
    if abs(seconds) < 3600:
        return f"{seconds / 60:,.0f} min ago"
    return f"{seconds / 3600:,.1f} h ago" if abs(seconds) < 172_800 else watermark[:16]


def failure_lines(failures: Sequence[Failure]) -> list[Text]:
    """Each process that keeps dying, with the reason and the end of its log."""
    parts = []
    for failure in failures:
        parts.append(Text(f"✗ {failure}; {failure.log} ends with", style="bold red"))
        parts += [Text(f"  | {line}", style="red") for line in failure.lines]
    return parts


def warning_lines(system: dict[str, Any] | None) -> list[Text]:
    """What the settings make of the pipeline, and hardly anybody wants."""
    return [Text(f"! {each}", style="yellow") for each in (system or {}).get("warnings", [])]


def status_line(
    system: dict[str, Any] | None, restarts: int, failures: Sequence[Failure] = ()
) -> str:
    """The most important metrics as one line; first, which processes keep dying."""
    words = [f"{each.process.upper()} {each.verb.upper()}" for each in failures]
    return " · ".join([*words, _metrics_line(system, restarts)])


def _metrics_line(system: dict[str, Any] | None, restarts: int) -> str:
    if system is None:
        return f"no metrics: serve does not answer; restarts {restarts}"
    tiers = system["tiers"]
    states = [view.get("state") for view in tiers.get("analyze", {}).get("views", {}).values()]
    collect = tiers.get("collect", {})
    received = [
        f"in {rate(collect.get('rate'))}",
        f"accepted {collect.get('accepted', 0):,}",
        f"rejected {collect.get('rejected', 0):,}",
    ]
    if words := missing_report(system, "collect"):
        received = [f"{words}, by then accepted {collect.get('accepted', 0):,}"]
        if not collect.get("reported_at"):
            received = [words]
    queries = f"queries running {states.count('running')} of {len(system['views'])}"
    metrics = [
        *received,
        missing_report(system, "analyze") or queries,
        f"end to end {milliseconds(system.get('end_to_end_ms'))}",
        f"clients {tiers.get('serve', {}).get('clients', 0)}",
        f"restarts {restarts}",
    ]
    rare = [f"{word} {collect[word]:,}" for word in ("failed", "shed") if collect.get(word)]
    broken = (collect.get("journal") or {}).get("broken", "")
    failed = [
        f"✗ view {name} failed: {view.get('error', '')}"
        for name, view in tiers.get("analyze", {}).get("views", {}).items()
        if view.get("state") == "failed"
    ]
    return " · ".join([*metrics, *rare, *([f"journal: {broken}"] if broken else []), *failed])
