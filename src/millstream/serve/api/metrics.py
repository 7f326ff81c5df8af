"""Counters and gauges for Prometheus."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from millstream.serve.context import Context
from millstream.serve.groups.group_metrics import StoredFigures
from millstream.serve.groups.groups import Groups
from millstream.serve.views.served_view import ServedView
from millstream.values.report import GroupCounts

CONTENT_TYPE = b"text/plain; version=0.0.4; charset=utf-8"
_GAUGES: dict[str, Callable[[ServedView], int]] = {
    "rows gauge": lambda view: len(view.table),
    "changes_total counter": lambda view: view.metrics.changes.total,
    "unreadable_total counter": lambda view: view.table.unreadable,
    "subscriptions gauge": lambda view: len(view.subscribers),
}

_USED = ("requests", "events", "bytes", "query_seconds")


async def render(context: Context) -> str:
    """The counters and gauges of this process, in Prometheus' text format."""
    stored = await context.groups.metrics.read()
    lines = [
        "# TYPE millstream_serve_ready gauge",
        f"millstream_serve_ready {int(context.ready)}",
        "# TYPE millstream_serve_clients gauge",
        f"millstream_serve_clients {len(context.connections)}",
        "# TYPE millstream_serve_turned_away_total counter",
        *(
            f'millstream_serve_turned_away_total{{reason="{reason}"}} {count}'
            for reason, count in sorted(context.refused().items())
        ),
    ]
    for field in _USED:
        name = f"millstream_serve_caller_{field}_total"
        lines.append(f"# TYPE {name} counter")
        for label, amount in context.connections.usage.samples(field).items():
            lines.append(f"{name}{{{label}}} {amount}")
    lines += [
        "# TYPE millstream_serve_live_queries gauge",
        f"millstream_serve_live_queries {len(context.live)}",
        "# TYPE millstream_serve_live_query_evaluations_total counter",
        f"millstream_serve_live_query_evaluations_total {context.live.evaluations}",
    ]
    for title, value in _GAUGES.items():
        name, kind = title.split()
        lines.append(f"# TYPE millstream_view_{name} {kind}")
        for view in context.views.values():
            lines.append(f'millstream_view_{name}{{view="{view.name}"}} {value(view)}')
    lines.append("# TYPE millstream_serve_skipped_total counter")
    for served in (*context.views.values(), *context.streams.served.values()):
        lines += [
            f'millstream_serve_skipped_total{{{served.kind}="{served.name}",reason="{reason}"}} {n}'
            for reason, n in sorted(served.metrics.skipped.items())
        ]
    lines.append("# TYPE millstream_view_latency_milliseconds gauge")
    for view in context.views.values():
        lines += _latencies(view)
    lines += _groups(context.groups, stored)
    return "\n".join(lines) + "\n"


def _groups(groups: Groups, stored: Mapping[str, StoredFigures]) -> list[str]:
    """Members and messages of this server; lag and messages set aside of the whole group."""
    here = groups.counts()
    counts = {name: here.get(name, GroupCounts()) for name in groups.definitions}
    families = {
        "members gauge": {name: each.member_count for name, each in counts.items()},
        "pending gauge": {name: each.unhandled for name, each in counts.items()},
        "redelivered_total counter": {name: each.redelivered for name, each in counts.items()},
        "lag gauge": {name: each.lag for name, each in stored.items()},
        "set_aside_total counter": {name: each.set_aside for name, each in stored.items()},
    }
    lines = []
    for title, amounts in families.items():
        name, kind = title.split()
        lines.append(f"# TYPE millstream_group_{name} {kind}")
        lines += [
            f'millstream_group_{name}{{group="{group}"}} {amount}'
            for group, amount in sorted(amounts.items())
        ]
    return lines


def _latencies(view: ServedView) -> list[str]:
    metrics, lines = view.metrics, []
    steps = {"analyze": metrics.analyze, "serve": metrics.serve, "whole": metrics.end_to_end}
    for step, latencies in steps.items():
        summary = latencies.summary()
        for quantile in ("p50", "p99", "max") if summary else ():
            labels = f'view="{view.name}",step="{step}",quantile="{quantile}"'
            amount = getattr(summary, quantile)
            lines.append(f"millstream_view_latency_milliseconds{{{labels}}} {amount:.3f}")
    return lines
