"""What the collector counts, as OpenMetrics text."""

from __future__ import annotations

from collections.abc import Iterable

from millstream.audit import SourceState
from millstream.collect.intake import Intake
from millstream.collect.lane import Lane

CONTENT_TYPE = b"application/openmetrics-text; version=1.0.0; charset=utf-8"


def render(intake: Intake, sources: Iterable[SourceState]) -> str:
    """All counts, since this process started."""
    lanes, states = list(intake.lanes.values()), list(sources)
    lines = [
        *_family("logged", "counter", "Events that Kafka has confirmed", lanes, "logged"),
        *_family("rejected", "counter", "Events that failed validation", lanes, "rejected"),
        *_family(
            "unconfirmed", "counter", "Events that Kafka did not confirm", lanes, "unconfirmed"
        ),
        *_family("refused", "counter", "Events not taken in for lack of room", lanes, "refused"),
        *_family("pending", "gauge", "Events that wait for Kafka", lanes, "pending"),
        *_latency(lanes),
        *_single("pending_bytes", "Bytes that wait for Kafka", intake.pending_bytes),
        *_sources(states),
        "# EOF",
    ]
    return "\n".join(lines) + "\n"


def _head(name: str, kind: str, text: str) -> list[str]:
    full = f"millstream_collect_{name}"
    return [f"# TYPE {full} {kind}", f"# HELP {full} {text}."]


def _family(name: str, kind: str, text: str, lanes: list[Lane], attribute: str) -> list[str]:
    suffix = "_total" if kind == "counter" else ""
    return [
        *_head(name, kind, text),
        *(
            f'millstream_collect_{name}{suffix}{{stream="{lane.name}"}} {getattr(lane, attribute)}'
            for lane in lanes
        ),
    ]


def _single(name: str, text: str, value: int) -> list[str]:
    return [*_head(name, "gauge", text), f"millstream_collect_{name} {value}"]


def _latency(lanes: list[Lane]) -> list[str]:
    lines = _head("latency_seconds", "gauge", "Received to confirmed, over the last ten seconds")
    for lane in lanes:
        summary = lane.latencies.summary()
        if summary is not None:
            for quantile, value in (
                ("0.5", summary.p50),
                ("0.99", summary.p99),
                ("1", summary.max),
            ):
                labels = f'stream="{lane.name}",quantile="{quantile}"'
                lines.append(f"millstream_collect_latency_seconds{{{labels}}} {value / 1000:.6f}")
    return lines


def _sources(states: list[SourceState]) -> list[str]:
    lines = _head("source_received", "counter", "Events read from a source")
    lines += [f"millstream_collect_source_received_total{{{_of(s)}}} {s.received}" for s in states]
    lines += _head("source_reconnects", "counter", "Connections to a source after the first")
    lines += [
        f"millstream_collect_source_reconnects_total{{{_of(s)}}} {s.reconnects}" for s in states
    ]
    lines += _head("source_connected", "gauge", "Whether a source is connected")
    lines += [
        f"millstream_collect_source_connected{{{_of(s)}}} {int(s.state == 'connected')}"
        for s in states
    ]
    return lines


def _of(state: SourceState) -> str:
    return f'stream="{state.stream}",kind="{state.kind}"'
