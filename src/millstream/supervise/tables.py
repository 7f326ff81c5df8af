"""The figures of `/v1/system` as tables and as one line, for `run`'s screen and for `status`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from millstream.runtime.failing_processes import Failure

GOOD = {"up", "ready", "running", "connected", "listening"}
NEARLY_FULL = 0.8
_NOTABLE = ("rejected", "shed", "future")
_UNITS = (("days", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1_000))
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


class _Piped(Console):
    def on_broken_pipe(self) -> None:
        """Tell the command that nobody reads on; Rich would end it with exit code 1."""
        raise BrokenPipeError


def console() -> Console:
    """A terminal as wide as it is; a file has no width, and gets enough for every table."""
    return _Piped(highlight=False, width=None if sys.stdout.isatty() else 160)


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
    is_silent = bool(silence(system, "collect"))
    for stream in system["streams"]:
        counts = collect.get("streams", {}).get(stream["name"], {})
        table.add_row(
            Text(stream["name"]),
            rate(None if is_silent else counts.get("rate", 0.0)),
            *(_count(counts, name) for name in counted),
            milliseconds(counts.get("latency_ms")),
        )
    return table


def silence(system: dict[str, Any] | None, tier: str) -> str:
    """`collect has not reported since …`; empty if it reports, or nothing is known of it.

    A process that hangs looks like that, and one that is down.
    """
    figures = (system or {}).get("tiers", {}).get(tier, {})
    if figures.get("state") != "down" or tier not in ("collect", "analyze"):
        return ""
    at = figures.get("reported_at")
    if not at:
        return f"{tier} has not reported since serve started"
    return f"{tier} has not reported since {at[:19]}Z ({behind(at, (system or {}).get('now'))})"


def _count(counts: dict[str, Any], name: str) -> Text:
    value = counts.get(name, 0)
    style = "red" if name == "failed" else "yellow" if name in _NOTABLE else ""
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


def skew_table(system: dict[str, Any]) -> Table:
    """How long before its arrival an event happened, as it says itself; below zero is ahead."""
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
            Text(_trouble(source), style="red"),
        )
    told = {source["stream"] for source in collect.get("sources", [])}
    for stream in system["streams"]:
        described = stream.get("source")
        if described and stream["name"] not in told:
            row = (Text(stream["name"]), described["kind"], state_text(""), "–", "–", "–")
            table.add_row(*row, Text(described["url"], style="dim"), "")
    return table


def _trouble(source: dict[str, Any]) -> str:
    error = "" if source["state"] in GOOD else source.get("error", "")
    return " · ".join(filter(None, (error, source.get("warning", ""))))


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
    lost = (journal.get("damage") or {}).get("entries", 0)
    return Text(
        f"journal {journal.get('entries', 0):,} entries wait for Kafka · files "
        f"{size(journal.get('stored_bytes', 0))} of {size(journal.get('max_bytes', 0))} "
        f"({used:.0%})" + (f" · {lost:,} damaged entries are lost" if lost else ""),
        style="red" if lost else style,
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
    tables = (
        *(streams_table(system), steps_table(system), skew_table(system)),
        sources_table(system),
    )
    parts = [part for table in tables if table.row_count for part in (table, "")]
    words = silence(system, "collect")
    old = [Text(f"✗ {words}: these figures are of then", style="red")] if words else []
    return [*old, *parts, journal_line(system), ""]


def analyze_parts(system: dict[str, Any]) -> list[Table | Text | str]:
    """All that is told of the analysis tier, with an empty line after each part."""
    words = silence(system, "analyze")
    silent: list[Table | Text | str] = [Text(f"✗ {words}", style="red")] if words else []
    tables = (
        *(views_table(system), rebuilds_table(system)),
        *(times_table(system), drifts_table(system)),
    )
    return [*silent, *(part for table in tables if table.row_count for part in (table, ""))]


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
            Text(counts.get("error", ""), style="red") if counts.get("error") else gone(counts),
        )
    return table


def rebuilds_table(system: dict[str, Any]) -> Table:
    """Views that are computed anew, or were: how far, how long it takes on, what is served."""
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
            "all" if rebuild.get("since") is None else f"from {_moment(rebuild['since'])} on",
            _moment(rebuild["started_at"]) if rebuild.get("started_at") else "–",
            "it was asked for" if rebuild.get("request") else "the pipeline changed",
            Text(rebuild.get("error", ""), style="red") if state == "failed" else served(rebuild),
        )
    return table


def served(rebuild: dict[str, Any]) -> Text:
    """Which rows clients get."""
    if rebuild["state"] != "done":
        return Text("the old rows are served until it is ready", style="dim")
    return Text(f"served in a new epoch since {_moment(rebuild['ended_at'])}", style="dim")


def _moment(milliseconds: int) -> str:
    return f"{datetime.fromtimestamp(milliseconds / 1000, UTC):%Y-%m-%d %H:%M:%S}Z"


def lag_text(counts: dict[str, Any]) -> Text:
    """`1,204 · 3.1 s ▼ 12 s`: events and seconds behind; shrinking, so caught up in 12 s."""
    behind = counts.get("behind")
    if not behind:
        return Text("–" if behind is None else "0")
    signs = {"growing": " ▲", "shrinking": " ▼"}
    trend = counts.get("trend", "")
    left = f" {counts['catch_up_s']:,.0f} s" if counts.get("catch_up_s") is not None else ""
    text = f"{behind:,} · {counts.get('behind_s', 0.0):,.1f} s{signs.get(trend, '')}{left}"
    return Text(text, style="yellow" if trend == "growing" else "")


def gone(counts: dict[str, Any]) -> Text:
    """What a view goes on without: events that it sheds, that break it, that retention took."""
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
    """Fields whose values are spread otherwise than they were lately."""
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


def times_table(system: dict[str, Any]) -> Table:
    """How far the time of each stream is, and how many events no window took."""
    judged = system["tiers"].get("analyze", {}).get("streams", {})
    table = grid("time of", ">watermark", ">in order", ">late", ">future", ">broken", ">lost")
    for stream in system["streams"]:
        counts = judged.get(stream["name"])
        if counts is not None:
            table.add_row(
                Text(stream["name"]),
                behind(stream.get("watermark"), system.get("now")),
                *(
                    _judged(counts, name)
                    for name in ("in_order", "late", "future", "broken", "lost")
                ),
            )
    return table


def _judged(counts: dict[str, Any], name: str) -> Text:
    value = counts.get(name, 0)
    style = {"in_order": "", "lost": "red"}.get(name, "yellow")
    return Text(f"{value:,}", style=style if value else "")


def behind(watermark: str | None, now: str | None) -> str:
    """`3.2 s ago`, by the server's clock; a dash while it is unknown."""
    if not watermark or not now:
        return "–"
    seconds = (datetime.fromisoformat(now) - datetime.fromisoformat(watermark)).total_seconds()
    if abs(seconds) < 60:
        return f"{seconds:.1f} s ago"
    if abs(seconds) < 3600:
        return f"{seconds / 60:,.0f} min ago"
    return f"{seconds / 3600:,.1f} h ago" if abs(seconds) < 172_800 else watermark[:16]


def failing_parts(failures: Sequence[Failure]) -> list[Text]:
    """Each process that keeps dying, why, and the end of its log."""
    parts = []
    for failure in failures:
        parts.append(Text(f"✗ {failure}; {failure.log} ends with", style="bold red"))
        parts += [Text(f"  | {line}", style="red") for line in failure.lines]
    return parts


def one_line(system: dict[str, Any] | None, restarts: int, failures: Sequence[Failure] = ()) -> str:
    """The most important figures for a log; first of all, which processes keep dying."""
    words = [f"{each.process.upper()} {each.verb.upper()}" for each in failures]
    return " · ".join([*words, _figures_line(system, restarts)])


def _figures_line(system: dict[str, Any] | None, restarts: int) -> str:
    if system is None:
        return f"no figures: serve does not answer; restarts {restarts}"
    tiers = system["tiers"]
    states = [view.get("state") for view in tiers.get("analyze", {}).get("views", {}).values()]
    collect = tiers.get("collect", {})
    taken_in = [
        f"in {rate(collect.get('rate'))}",
        f"accepted {collect.get('accepted', 0):,}",
        f"rejected {collect.get('rejected', 0):,}",
    ]
    if words := silence(system, "collect"):
        taken_in = [f"{words}, by then accepted {collect.get('accepted', 0):,}"]
        if not collect.get("reported_at"):
            taken_in = [words]
    queries = f"queries running {states.count('running')} of {len(system['views'])}"
    figures = [
        *taken_in,
        silence(system, "analyze") or queries,
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
    return " · ".join([*figures, *rare, *([f"journal: {broken}"] if broken else []), *failed])
