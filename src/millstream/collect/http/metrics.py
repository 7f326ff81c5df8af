"""The collector's metrics as OpenMetrics text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from millstream.collect.http.admission import Admission
from millstream.collect.intake.intake import Intake
from millstream.collect.intake.stream_intake import StreamIntake
from millstream.values.report import JournalDamage, SourceState

CONTENT_TYPE = b"application/openmetrics-text; version=1.0.0; charset=utf-8"


def render(
    intake: Intake,
    admission: Admission,
    sources: Iterable[SourceState],
    refused_requests: Mapping[str, int],
) -> str:
    """All metrics, since this process started."""
    streams, states = list(intake.streams.values()), list(sources)
    counted = {
        "accepted": "Events that were received, whatever their outcome",
        "logged": "Events that Kafka has acknowledged",
        "rejected": "Events that failed validation",
        "failed": "Events that Kafka refused for good",
        "shed": "Events that were dropped under pressure",
        "duplicates": "Events that had been received before",
        "damaged": "Events of this start that were lost with a damaged journal entry",
        "recovered": "Events that an earlier start had left in the journal",
        "refused": "Requests and messages of which nothing was accepted",
    }
    lines = [
        *(
            line
            for name, text in counted.items()
            for line in _family(name, "counter", text, streams, name)
        ),
        *_family("pending", "gauge", "Events that wait for Kafka", streams, "pending"),
        *_head("unaccounted", "gauge", "Accepted events that no other count has; not 0: a bug"),
        *(
            f'millstream_collect_unaccounted{{stream="{stream.name}"}} {stream.counts().missing()}'
            for stream in streams
        ),
        *_latency(streams),
        *_event_time([stream for stream in streams if stream.watermark is not None]),
        *_single("pending_bytes", "Bytes on the way to Kafka", intake.forwarder.pending_bytes),
        *_single("waiting", "Requests that wait for room", admission.waiting),
        *_single(
            "body_bytes",
            "Bytes of bodies that are not stored, or not unpacked",
            admission.body_memory.held + intake.unpacking_bytes,
        ),
        *_single("journal_bytes", "Bytes in the journal", intake.journal.pending_bytes),
        *_single("journal_entries", "Entries in the journal", intake.journal.pending_entries),
        *_single("journal_max_bytes", "Bytes that the journal may hold", intake.journal.max_bytes),
        *_single("journal_broken", "Whether the journal fails", int(bool(intake.journal.broken))),
        *_damage(intake.journal.damage.counts()),
        *_single("ids", "Senders' ids that are remembered", intake.dedup.held),
        *_counter(
            "ids_forgotten",
            "Ids forgotten before their window ended",
            intake.dedup.forgotten,
        ),
        *_counter("ids_doubled", "Ids that two collectors accepted", intake.dedup.doubled),
        *_head("turned_away", "counter", "Connections and requests that were refused or cut off"),
        *(
            f'millstream_collect_turned_away_total{{reason="{reason}"}} {count}'
            for reason, count in sorted(refused_requests.items())
        ),
        *_sources(states),
        "# EOF",
    ]
    return "\n".join(lines) + "\n"


def _head(name: str, kind: str, text: str) -> list[str]:
    full = f"millstream_collect_{name}"
    return [f"# TYPE {full} {kind}", f"# HELP {full} {text}."]


def _family(
    name: str, kind: str, text: str, streams: list[StreamIntake], attribute: str
) -> list[str]:
    suffix = "_total" if kind == "counter" else ""
    return [
        *_head(name, kind, text),
        *(
            f'millstream_collect_{name}{suffix}{{stream="{each.name}"}} {getattr(each, attribute)}'
            for each in streams
        ),
    ]


def _single(name: str, text: str, value: int) -> list[str]:
    return [*_head(name, "gauge", text), f"millstream_collect_{name} {value}"]


def _counter(name: str, text: str, value: int) -> list[str]:
    return [*_head(name, "counter", text), f"millstream_collect_{name}_total {value}"]


def _damage(damage: JournalDamage | None) -> list[str]:
    damage = damage or JournalDamage()
    return [
        *_single("damaged_entries", "Journal entries lost, not acknowledged", damage.entries),
        *_single("damaged_unread", "Those of them whose events cannot be counted", damage.unread),
        *_single("damaged_events", "Events known to be in those entries", damage.events),
    ]


def _latency(streams: list[StreamIntake]) -> list[str]:
    lines = _head(
        "latency_seconds", "gauge", "From receipt to each step, over the last ten seconds"
    )
    for stream in streams:
        steps = {
            "journaled": stream.journaled_ms,
            "sent": stream.sent_ms,
            "logged": stream.logged_ms,
        }
        for step, latencies in steps.items():
            summary = latencies.summary()
            if summary is None:
                continue
            for measure, value in (
                ("min", summary.min),
                ("mean", summary.mean),
                ("p50", summary.p50),
                ("p99", summary.p99),
                ("max", summary.max),
            ):
                labels = f'stream="{stream.name}",step="{step}",measure="{measure}"'
                lines.append(f"millstream_collect_latency_seconds{{{labels}}} {value / 1000:.6f}")
    return lines


def _event_time(streams: list[StreamIntake]) -> list[str]:
    counts_of = [(stream.name, stream.counts()) for stream in streams]
    lines = []
    for name, kind, text in (
        ("out_of_order", "counter", "Events sent after one that is dated later"),
        ("future", "counter", "Events dated further ahead than their stream allows"),
    ):
        lines += _head(name, kind, text)
        lines += [
            f'millstream_collect_{name}_total{{stream="{stream}"}} {getattr(counts, name)}'
            for stream, counts in counts_of
        ]
    lines += _head("watermark_seconds", "gauge", "The stream's watermark, in event time")
    lines += [
        f'millstream_collect_watermark_seconds{{stream="{stream}"}} {counts.watermark / 1000:.3f}'
        for stream, counts in counts_of
        if counts.watermark
    ]
    lines += _head("skew_seconds", "gauge", "From event time to receipt, over the last ten seconds")
    for stream, counts in counts_of:
        if (skew := counts.skew_ms) is not None:
            lines += [
                f'millstream_collect_skew_seconds{{stream="{stream}",measure="{measure}"}} '
                f"{getattr(skew, measure) / 1000:.3f}"
                for measure in ("min", "mean", "p50", "p99", "max")
            ]
    return lines


def _sources(states: list[SourceState]) -> list[str]:
    known = [state for state in states if state.behind is not None]
    return [
        *_source("received", "counter", "Messages read from a source", states, "received"),
        *_source("lost", "counter", "Messages of a source that were lost", states, "lost"),
        *_source("reconnects", "counter", "Connections after the first", states, "reconnects"),
        *_source("rate", "gauge", "Messages a second, over the last seconds", states, "rate"),
        *_source("behind", "gauge", "How much the source still has to send", known, "behind"),
        *_head("source_connected", "gauge", "Whether a source is connected, or listens"),
        *(
            f"millstream_collect_source_connected{{{_of(state)}}} "
            f"{int(state.state in ('connected', 'listening'))}"
            for state in states
        ),
    ]


def _source(
    name: str, kind: str, text: str, states: list[SourceState], attribute: str
) -> list[str]:
    suffix = "_total" if kind == "counter" else ""
    lines = _head(f"source_{name}", kind, text)
    for state in states:
        unit = f',unit="{state.behind_unit}"' if attribute == "behind" else ""
        value = round(getattr(state, attribute), 3)
        lines.append(f"millstream_collect_source_{name}{suffix}{{{_of(state)}{unit}}} {value}")
    return lines


def _of(state: SourceState) -> str:
    return f'stream="{state.stream}",kind="{state.kind}"'
