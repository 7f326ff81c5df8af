"""Rows of a real query become final and corrected while Spark writes to the same topic."""

from __future__ import annotations

import time

from tests.analyze.conftest import Live, Load, RunningUpkeep

from millstream.analyze.settings import AnalyzeSettings
from millstream.log.consumer import bounds, read_range
from millstream.log.topic_names import view_topic
from millstream.settings import Settings
from millstream.store.views.table import ViewTable

PIPELINE = """
app.stream("clicks", schema="id LONG NOT NULL, at TIMESTAMP", event_time="at", lateness="2 hours")

@app.view(key=["window"])
def per_minute(clicks: DataFrame) -> DataFrame:
    return clicks.groupBy(F.window("at", "1 minute").alias("window")).agg(F.count("*").alias("n"))
"""
MINUTE = 60


def test_rows_of_a_real_query_become_final_and_corrected(live: Live, pipeline: Load) -> None:
    app = pipeline(PIPELINE)
    live.start(app)
    settings = Settings(log=live.settings.log, analyze=AnalyzeSettings(idle="1 hour"))
    upkeep = RunningUpkeep(settings, app, live.planned)
    began = int(time.time()) // MINUTE * MINUTE - 30 * MINUTE
    topic, table, read = view_topic(app.name, "per_minute"), ViewTable(keyed=True, stateful=True), 0
    ticked = 0.0

    def rows() -> list[tuple[object, object]]:
        nonlocal read, ticked
        assert live.queries is not None
        if time.monotonic() - ticked > 0.5:
            ticked = time.monotonic()
            upkeep.step(live.queries.counts())
        end = bounds(live.settings.log, topic)[0][1]
        for record in read_range(live.settings.log, topic, 0, read, end):
            read = record.offset + 1
            table.apply(*record[1:6])
        found = sorted(table.rows.items())
        return [(row["n"], row["_state"]) for _, row in found]

    def send(*minutes: int) -> None:
        live.send("clicks", *({"id": m, "at": began + m * MINUTE} for m in minutes))

    def watermark() -> int:
        assert live.queries is not None
        counts = live.queries.counts()
        upkeep.step(counts)
        return counts["per_minute"].watermark

    try:
        send(0, 0, 1)
        live.gives(rows, [(2, "provisional"), (1, "provisional")])
        live.until(lambda: rows() and upkeep.late_events.counts()["clicks"].watermark > 0)
        send(2)
        live.gives(rows, [(2, "final"), (1, "final"), (1, "provisional")])
        assert watermark() == (began + 2 * MINUTE) * 1000
        send(0)
        live.gives(rows, [(3, "corrected"), (1, "final"), (1, "provisional")])
        send(5)
        live.gives(lambda: rows()[2], (1, "final"))
    finally:
        upkeep.close()
