"""The collector's metrics as OpenMetrics text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from millstream.collect.http.admission import Admission
from millstream.collect.intake.intake import Intake
from millstream.collect.intake.stream_intake import StreamIntake
from millstream.values.report import JournalDamage, SourceState
from millstream.web.auth.usage import Usage

CONTENT_TYPE = b"application/openmetrics-text; version=1.0.0; charset=utf-8"

_STREAM_COUNTERS = {
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
_USED = {
    "requests": "Requests by login",
    "events": "Events that were accepted, by login",
    "bytes": "Bytes of bodies that were received, by login",
}
_MEASURES = ("min", "mean", "p50", "p99", "max")

Samples = Mapping[str, object]  # labels → value


class _Text:
    """OpenMetrics text that grows by one metric at a time."""

    def __init__(self) -> None:
        self._lines: list[str] = []

    def add(self, name: str, kind: str, description: str, samples: Samples) -> None:
        name = f"millstream_collect_{name}"
        self._lines += [f"# TYPE {name} {kind}", f"# HELP {name} {description}."]
        suffix = "_total" if kind == "counter" else ""
        for labels, value in samples.items():
            self._lines.append(f"{name}{suffix}{f'{{{labels}}}' if labels else ''} {value}")

    def gauge(self, name: str, description: str, value: int) -> None:
        self.add(name, "gauge", description, {"": value})

    def counter(self, name: str, description: str, value: int) -> None:
        self.add(name, "counter", description, {"": value})

    def __str__(self) -> str:
        return "\n".join([*self._lines, "# EOF"]) + "\n"


def render(
    intake: Intake,
    admission: Admission,
    sources: Iterable[SourceState],
    refused_requests: Mapping[str, int],
    usage: Usage,
) -> str:
    """All metrics, since this process started."""
    text = _Text()
    _add_streams(text, {f'stream="{name}"': each for name, each in intake.streams.items()})
    text.gauge("pending_bytes", "Bytes on the way to Kafka", intake.forwarder.pending_bytes)
    text.gauge("waiting", "Requests that wait for room", admission.waiting)
    body_bytes = admission.body_memory.held + intake.unpacking_bytes
    text.gauge("body_bytes", "Bytes of bodies that are not stored, or not unpacked", body_bytes)
    journal, dedup = intake.journal, intake.dedup
    text.gauge("journal_bytes", "Bytes in the journal", journal.pending_bytes)
    text.gauge("journal_entries", "Entries in the journal", journal.pending_entries)
    text.gauge("journal_max_bytes", "Bytes that the journal may hold", journal.max_bytes)
    text.gauge("journal_broken", "Whether the journal fails", int(bool(journal.broken)))
    damage = journal.damage.counts() or JournalDamage()
    text.gauge("damaged_entries", "Journal entries lost, not acknowledged", damage.entries)
    text.gauge("damaged_unread", "Those of them whose events cannot be counted", damage.unread)
    text.gauge("damaged_events", "Events known to be in those entries", damage.events)
    text.gauge("ids", "Senders' ids that are remembered", dedup.held)
    text.counter("ids_forgotten", "Ids forgotten before their window ended", dedup.forgotten)
    text.counter("ids_doubled", "Ids that two collectors accepted", dedup.doubled)
    text.add(
        "turned_away",
        "counter",
        "Connections and requests that were refused or cut off",
        {f'reason="{reason}"': count for reason, count in sorted(refused_requests.items())},
    )
    for field, what in _USED.items():
        text.add(f"caller_{field}", "counter", what, usage.samples(field))
    _add_sources(text, {f'stream="{s.stream}",kind="{s.kind}"': s for s in sources})
    return str(text)


def _add_streams(text: _Text, streams: Mapping[str, StreamIntake]) -> None:
    def values(name: str) -> Samples:
        return {labels: getattr(each, name) for labels, each in streams.items()}

    for name, description in _STREAM_COUNTERS.items():
        text.add(name, "counter", description, values(name))
    text.add("pending", "gauge", "Events that wait for Kafka", values("pending"))
    counts = {labels: each.counts() for labels, each in streams.items()}
    text.add(
        "unaccounted",
        "gauge",
        "Accepted events that no other count has; not 0: a bug",
        {labels: each.missing() for labels, each in counts.items()},
    )
    text.add(
        "latency_seconds",
        "gauge",
        "From receipt to each step, over the last ten seconds",
        {
            f'{labels},step="{step}",measure="{measure}"': f"{getattr(ms, measure) / 1000:.6f}"
            for labels, each in counts.items()
            for step, ms in (
                ("journaled", each.journaled_ms),
                ("sent", each.sent_ms),
                ("logged", each.latency_ms),
            )
            if ms is not None
            for measure in _MEASURES
        },
    )
    timed = {labels: counts[labels] for labels, each in streams.items() if each.watermark}
    for name, description in (
        ("out_of_order", "Events sent after one that is dated later"),
        ("future", "Events dated further ahead than their stream allows"),
    ):
        samples = {labels: getattr(each, name) for labels, each in timed.items()}
        text.add(name, "counter", description, samples)
    text.add(
        "watermark_seconds",
        "gauge",
        "The stream's watermark, in event time",
        {labels: f"{c.watermark / 1000:.3f}" for labels, c in timed.items() if c.watermark},
    )
    text.add(
        "skew_seconds",
        "gauge",
        "From event time to receipt, over the last ten seconds",
        {
            f'{labels},measure="{measure}"': f"{getattr(each.skew_ms, measure) / 1000:.3f}"
            for labels, each in timed.items()
            if each.skew_ms is not None
            for measure in _MEASURES
        },
    )


def _add_sources(text: _Text, sources: Mapping[str, SourceState]) -> None:
    for name, kind, description in (
        ("received", "counter", "Messages read from a source"),
        ("lost", "counter", "Messages of a source that were lost"),
        ("reconnects", "counter", "Connections after the first"),
        ("rate", "gauge", "Messages a second, over the last seconds"),
    ):
        samples = {labels: round(getattr(each, name), 3) for labels, each in sources.items()}
        text.add(f"source_{name}", kind, description, samples)
    text.add(
        "source_behind",
        "gauge",
        "How much the source still has to send",
        {
            f'{labels},unit="{each.behind_unit}"': round(each.behind, 3)
            for labels, each in sources.items()
            if each.behind is not None
        },
    )
    text.add(
        "source_connected",
        "gauge",
        "Whether a source is connected, or listens",
        {labels: int(each.state in ("connected", "listening")) for labels, each in sources.items()},
    )
