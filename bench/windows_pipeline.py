"""The pipeline of bench.windows: one view of one kind of window, chosen by the environment."""

import os
from typing import cast

from millstream import App
from millstream.pipeline.app import Mode

KIND = os.environ.get("BENCH_KIND", "tumbling")
MODE = cast(Mode, os.environ.get("BENCH_MODE", "auto"))
WINDOWS = {
    "tumbling": "window(at, '1 minute')",
    "sliding": "window(at, '1 minute', '10 seconds')",
    "session": "session_window(at, '500 milliseconds')",
    "count": "count_window(5)",
}

app = App(os.environ.get("BENCH_NAME", "bench"))
app.stream(
    "events",
    schema="id LONG, key INT, at TIMESTAMP, city STRING, text STRING",
    key="key",
    event_time="at",
    ahead="0 seconds",  # a session's row would wait for it
)
# The row of a count window comes once, when it is full: the view has no key.
KEY = ["window", "key"] if KIND != "count" else None
app.view(
    "windowed",
    sql=f"""
        SELECT {WINDOWS[KIND]} AS window, key, count(*) AS n, max(id) AS id
        FROM events GROUP BY {WINDOWS[KIND]}, key
    """,
    key=KEY,
    mode=MODE,
)
