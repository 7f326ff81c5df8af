"""The pipeline of the benchmark: a stream and one view; environment variables choose them."""

import os
from typing import cast

from millstream import App
from millstream.pipeline.app import Mode

MODE = cast(Mode, os.environ.get("BENCH_MODE", "auto"))
VIEW = os.environ.get("BENCH_VIEW", "stateless")

app = App("bench")
app.stream(
    "events",
    schema="id LONG, key INT, at TIMESTAMP, city STRING, text STRING",
    key="key",
    event_time="at",
    lateness="10 seconds",
)

if VIEW == "stateless":
    app.view(
        "stateless",
        sql="SELECT id, key, at, upper(city) AS city FROM events WHERE id >= 0",
        mode=MODE,
    )
else:
    app.view(
        "windowed",
        sql="""
            SELECT window(at, '1 minute') AS window, key, count(*) AS n, max(id) AS id
            FROM events GROUP BY window(at, '1 minute'), key
        """,
        key=["window", "key"],
        keep="5 minutes",
        mode=MODE,
    )
