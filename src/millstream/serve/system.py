"""The state of the whole system for `/v1/system`, from the reports of its processes."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec

import millstream
from millstream.expression.condition import event_columns
from millstream.log.record import Record
from millstream.log.topic_names import stream_topic
from millstream.pipeline.app import App
from millstream.pipeline.model import Stream
from millstream.runtime.failing_processes import Failure
from millstream.serve.access.visibility import SEES_ALL, Visibility
from millstream.serve.queries.named_query import ServedQuery
from millstream.serve.views.encoding import iso_time
from millstream.serve.views.served_view import ServedView
from millstream.values.clock import now_ms, to_iso
from millstream.values.report import (
    JournalDamage,
    JournalState,
    Latency,
    ProcessReport,
    StreamCounts,
    ViewCounts,
)

_DEAD_MS = 5_000
_REMOVED_MS = 60_000
_SETTLED = ("logged", "rejected", "failed", "shed", "duplicates", "damaged")
_COUNTS = ("accepted", *_SETTLED, "pending", "recovered")
_TIME_COUNTS = ("out_of_order", "future")
_STEPS = ("latency_ms", "journaled_ms", "sent_ms")


class System:
    """The newest report of every process.

    `failures` lists processes that keep failing; it is called for every answer. `warnings` are
    about the settings: they hold as long as the server runs.
    """

    def __init__(
        self,
        app: App,
        views: Mapping[str, ServedView],
        streams: Mapping[str, ServedView] | None = None,
        failures: Callable[[], Sequence[Failure]] = tuple,
        queries: Mapping[str, ServedQuery] | None = None,
        warnings: Sequence[str] = (),
    ) -> None:
        self._app = app
        self._views = views
        self._streams = streams or {}
        self._failures = failures
        self._queries = queries or {}
        self._warnings = warnings
        self._reports: dict[tuple[str, str], ProcessReport] = {}
        self._decode = msgspec.json.Decoder(ProcessReport).decode

    def add_report(self, record: Record) -> None:
        """Store the report in a record of the audit topic."""
        try:
            report = self._decode(record.value or b"")
        except msgspec.MsgspecError:
            return  # of another version
        self._reports[report.tier, report.instance] = report
        if report.tier == "analyze":
            for name, view in self._views.items():
                counts = report.views.get(name, ViewCounts())
                view.watermark, view.warning = counts.watermark, warning_of(counts)
            for name, stream in self._streams.items():
                stream.watermark = report.streams[name].watermark if name in report.streams else 0

    def servers(self) -> list[ProcessReport]:
        """The newest report of each server that runs."""
        now = now_ms()
        return [
            each
            for each in self._reports.values()
            if each.tier == "serve" and now - each.at <= _DEAD_MS and not each.ended
        ]

    def describe(self) -> dict[str, Any]:
        """The current state, as JSON objects."""
        now = time.time() * 1000
        self._remove_old(now)
        collect, analyze, serve = (
            [r for r in self._reports.values() if r.tier == tier and now - r.at <= _DEAD_MS]
            for tier in ("collect", "analyze", "serve")
        )
        collected = _collect(collect) if collect else _collect_down(self._last_reports("collect"))
        return {
            "app": self._app.name,
            "version": millstream.__version__,
            "now": to_iso(now_ms()),
            "streams": [self._describe_stream(each) for each in self._app.streams.values()],
            "views": [describe_view(self._app, served) for served in self._views.values()],
            "queries": [query.describe() for query in self._queries.values()],
            "tiers": {
                "collect": {**collected, "reported_at": self._reported_at("collect")},
                "log": {
                    "state": "up" if collect or analyze or serve else "down",
                    "rate": collected["rate"],
                },
                "analyze": {
                    **self._analyze(analyze, serve),
                    "reported_at": self._reported_at("analyze"),
                },
                "serve": self._serve(serve),
            },
            "failing": self._failures(),
            "warnings": self._warnings,
            "end_to_end_ms": _merge_latencies(
                served.metrics.end_to_end.summary() for served in self._views.values()
            ),
        }

    def _remove_old(self, now: float) -> None:
        """Remove old reports, but keep the last ones of each tier."""
        kept = {id(r) for tier in ("collect", "analyze") for r in self._last_reports(tier)}
        self._reports = {
            at: report
            for at, report in self._reports.items()
            if now - report.at <= _REMOVED_MS or id(report) in kept
        }

    def _last_reports(self, tier: str) -> list[ProcessReport]:
        """The reports of the last seconds in which the tier reported."""
        reports = [report for report in self._reports.values() if report.tier == tier]
        newest = max((report.at for report in reports), default=0)
        return [report for report in reports if newest - report.at <= _DEAD_MS]

    def _reported_at(self, tier: str) -> str | None:
        """Time of the tier's last report; None if there is none since this server started."""
        return iso_time(max((report.at for report in self._last_reports(tier)), default=0))

    def _describe_stream(self, stream: Stream) -> dict[str, Any]:
        source, served = stream.source, self._streams.get(stream.name)
        return {
            "name": stream.name,
            "topic": stream_topic(self._app.name, stream.name),
            "columns": event_columns(stream.schema),
            "key": stream.key,
            "event_time": stream.event_time,
            "lateness_ms": round(stream.lateness.total_seconds() * 1000),
            "delivery": stream.delivery,
            "source": None if source is None else {"kind": source.kind, "url": source.address},
            "watermark": None if served is None else iso_time(served.watermark),
        }

    def _analyze(
        self, reports: Sequence[ProcessReport], serve: Sequence[ProcessReport]
    ) -> dict[str, Any]:
        views = {name: counts for report in reports for name, counts in report.views.items()}
        starting = any(counts.state == "starting" for counts in views.values())
        served = _view_counts(serve)
        return {
            "state": "down" if not reports else "starting" if starting else "up",
            "instances": len(reports),
            "rate": round(sum(counts.rate for counts in served.values()), 2),
            "latency_ms": _merge_latencies(
                counts.analyze_ms for report in serve for counts in report.views.values()
            ),
            "views": views,
            "drifts": [drift for report in reports for drift in report.drifts],
            "streams": {name: each for report in reports for name, each in report.streams.items()},
        }

    def _serve(self, reports: Sequence[ProcessReport]) -> dict[str, Any]:
        views = _view_counts(reports)
        return {
            "state": "up",
            "instances": max(1, len(reports)),
            "clients": sum(report.clients for report in reports),
            "rate": round(sum(counts.rate for counts in views.values()), 2),
            "latency_ms": _merge_latencies(
                counts.serve_ms for report in reports for counts in report.views.values()
            ),
            "views": views,
        }


def warning_of(counts: ViewCounts) -> str:
    """Why a view's rows may be out of date, as its query reports; empty if it does not."""
    if counts.state in ("failed", "restarting"):
        return f"the query is {counts.state}: {counts.error}" if counts.error else ""
    return counts.warning


def describe_view(
    app: App, served: ServedView, visibility: Visibility = SEES_ALL
) -> dict[str, Any]:
    """A view as the pipeline declares it and, once it runs, `analyze` describes it.

    Only what the caller sees: no hidden column, and no count of rows if some may be hidden.
    """
    view, described = app.views[served.name], served.description
    keep = None if view.keep is None else round(view.keep.total_seconds() * 1000)
    return {
        "name": served.name,
        "topic": served.topic,
        "inputs": list(view.inputs),
        "key": None if view.key is None else list(view.key),
        "columns": list(served.visible_columns(visibility)),
        "window": described.window if described else None,
        "keep_ms": keep,
        "trigger": str(view.trigger),
        "accumulation": view.accumulation,
        "ledger": [name for name in view.ledger if name not in visibility.hidden],
        "mode": described.mode if described else None,
        "reason": described.reason if described else "analyze has not started it yet",
        "guarantee": described.guarantee if described else None,
        "lineage": described.lineage if described else None,
        "description": view.description,
        "rows": None if visibility.rows is not None else len(served.table),
        "position": str(served.position),
        "watermark": iso_time(served.watermark),
        "warning": served.warning_for(visibility) or None,
    }


def _collect(reports: Sequence[ProcessReport]) -> dict[str, Any]:
    by_stream: dict[str, list[StreamCounts]] = {}
    for report in reports:
        for name, counts in report.streams.items():
            by_stream.setdefault(name, []).append(counts)
    streams = {
        name: StreamCounts(
            **_sums(counted, ("rate", *_COUNTS, *_TIME_COUNTS)),
            **_latencies(counted, (*_STEPS, "skew_ms")),
        )
        for name, counted in by_stream.items()
    }
    total = _sums(streams.values(), ("rate", *_COUNTS))
    return {
        "state": "up" if reports else "down",
        "instances": len(reports),
        **total,
        "rate": round(total["rate"], 2),
        **_latencies(streams.values(), _STEPS),
        "unaccounted": sum(abs(counts.missing()) for counts in streams.values()),
        "journal": _sum_journals([each.journal for each in reports if each.journal is not None]),
        "streams": streams,
        "sources": [source for report in reports for source in report.sources],
    }


def _collect_down(reports: Sequence[ProcessReport]) -> dict[str, Any]:
    """The last figures of collectors that no longer report; their rate is unknown."""
    last = _collect(reports)
    for counts in last["streams"].values():
        counts.rate = 0.0
    return {**last, "state": "down", "instances": 0, "rate": None}


def _sum_journals(journals: Sequence[JournalState]) -> JournalState | None:
    """Several collectors' journals as one; `broken` is the first reason found."""
    if not journals:
        return None
    return JournalState(
        **_sums(journals, ("entries", "bytes", "stored_bytes", "max_bytes")),
        broken=next((journal.broken for journal in journals if journal.broken), ""),
        damage=_sum_damage([journal.damage for journal in journals if journal.damage is not None]),
    )


def _sum_damage(found: Sequence[JournalDamage]) -> JournalDamage | None:
    if not found:
        return None
    streams: Counter[str] = Counter()
    for damage in found:
        streams.update(damage.streams)
    fields = ("entries", "events", "bytes", "unread", "acknowledged")
    return JournalDamage(**_sums(found, fields), streams=dict(streams))


def _sums(items: Iterable[Any], fields: Sequence[str]) -> dict[str, Any]:
    held = list(items)
    return {field: sum(getattr(item, field) for item in held) for field in fields}


def _latencies(items: Iterable[Any], fields: Sequence[str]) -> dict[str, Any]:
    held = list(items)
    return {field: _merge_latencies(getattr(item, field) for item in held) for field in fields}


def _view_counts(reports: Sequence[ProcessReport]) -> dict[str, ViewCounts]:
    """The counts of the server that is furthest: all servers read every view."""
    views: dict[str, ViewCounts] = {}
    for report in reports:
        for name, counts in report.views.items():
            if name not in views or counts.changes > views[name].changes:
                views[name] = counts
    return views


def _merge_latencies(latencies: Iterable[Latency | None]) -> Latency | None:
    """Several processes' latencies as one: weighted means of p50 and mean, extremes of the rest."""
    seen = [latency for latency in latencies if latency is not None]
    count = sum(latency.count for latency in seen)
    if not count:
        return None
    return Latency(
        p50=round(sum(latency.p50 * latency.count for latency in seen) / count, 3),
        p99=round(max(latency.p99 for latency in seen), 3),
        max=round(max(latency.max for latency in seen), 3),
        count=count,
        min=round(min(latency.min for latency in seen), 3),
        mean=round(sum(latency.mean * latency.count for latency in seen) / count, 3),
    )
