"""A pipeline with a late topic, and a process that reads its stream until it is killed."""

from __future__ import annotations

import sys
import time
from datetime import timedelta

from millstream import App
from millstream.analyze.plan import ViewPlan
from millstream.analyze.watermarks.late_events import LateEvents
from millstream.analyze.windows.time_window import TimeWindowSpec
from millstream.log.settings import LogSettings

MINUTE = 60_000


def declare(name: str) -> App:
    app = App(name)
    schema = "id LONG NOT NULL, at TIMESTAMP"
    app.stream("clicks", schema=schema, event_time="at", lateness="1 minute")
    app.view(
        "per_minute",
        key=["window"],
        sql="SELECT window(at, '1 minute') AS window, count(*) AS n FROM clicks GROUP BY 1",
    )
    return app


def plans(app: App) -> list[ViewPlan]:
    spec = TimeWindowSpec("clicks", "event", {"clicks": MINUTE}, MINUTE, MINUTE)
    return [
        ViewPlan(
            name="per_minute",
            inputs=("clicks",),
            reads=(f"{app.name}.stream.clicks",),
            topic=f"{app.name}.view.per_minute",
            key=("window",),
            columns=(),
            window="window",
            mode="real_time",
            output_mode="update",
            reason="",
            lineage="revision",
            lineage_reason="",
            slots=1,
            keep_ms=None,
            generation="g",
            description="",
            window_spec=spec,
            late_by_window=(spec,),
        )
    ]


def make_late_events(log: LogSettings, app: App, idle: float = 10.0) -> LateEvents:
    return LateEvents(log, app, plans(app), timedelta(seconds=idle))


def main() -> None:
    bootstrap, name = sys.argv[1:]
    late_events = make_late_events(LogSettings(bootstrap=bootstrap), declare(name))
    late_events.start()
    print("reading", flush=True)
    while True:
        time.sleep(1)


if __name__ == "__main__":
    main()
