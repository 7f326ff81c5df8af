"""Counts for Prometheus."""

from __future__ import annotations

from collections.abc import Callable

from millstream.serve.context import State
from millstream.serve.views.served_view import Live

CONTENT_TYPE = b"text/plain; version=0.0.4; charset=utf-8"


def write(state: State) -> str:
    """The counters and gauges of this process, in Prometheus' text format."""
    lines = [
        "# TYPE millstream_serve_ready gauge",
        f"millstream_serve_ready {int(state.ready)}",
        "# TYPE millstream_serve_clients gauge",
        f"millstream_serve_clients {state.clients}",
        "# TYPE millstream_serve_turned_away_total counter",
        *(
            f'millstream_serve_turned_away_total{{reason="{reason}"}} {count}'
            for reason, count in sorted(state.refused.items())
        ),
    ]
    gauges: dict[str, Callable[[Live], int]] = {
        "rows gauge": lambda live: len(live.table),
        "changes_total counter": lambda live: live.tally.changes.total,
        "unreadable_total counter": lambda live: live.table.unreadable,
        "subscriptions gauge": lambda live: len(live.watchers),
    }
    for title, value in gauges.items():
        name, kind = title.split()
        lines.append(f"# TYPE millstream_view_{name} {kind}")
        for live in state.views.values():
            lines.append(f'millstream_view_{name}{{view="{live.name}"}} {value(live)}')
    lines.append("# TYPE millstream_view_latency_milliseconds gauge")
    for live in state.views.values():
        for step in ("analyze", "serve", "whole"):
            summary = getattr(live.tally, step).summary()
            for quantile in ("p50", "p99", "max") if summary else ():
                labels = f'view="{live.name}",step="{step}",quantile="{quantile}"'
                amount = getattr(summary, quantile)
                lines.append(f"millstream_view_latency_milliseconds{{{labels}}} {amount:.3f}")
    return "\n".join(lines) + "\n"
