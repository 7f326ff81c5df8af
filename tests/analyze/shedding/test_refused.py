"""Views that cannot shed, with their errors; views of streams that shed."""

from __future__ import annotations

from typing import Any

import pytest

from millstream.errors import PipelineError
from millstream.testing import Logged, run

STREAMS = """
app.stream("orders", schema="id LONG, city STRING, amount DOUBLE, at TIMESTAMP", event_time="at")
app.stream("logs", schema="level STRING", delivery="at_least_once", shed="level = 'debug'")
"""


@pytest.mark.parametrize(
    ("select", "message"),
    [
        ("city, max(amount) AS top FROM orders GROUP BY city", "'top' is max("),
        ("city, count(DISTINCT id) AS ids FROM orders GROUP BY city", "'ids' is count(DISTINCT"),
        ("city, approx_count_distinct(id) AS ids FROM orders GROUP BY city", "'ids' is approx_"),
        ("city, sum(amount) / count(*) AS mean FROM orders GROUP BY city", "'mean' is computed"),
        ("city, amount AS a FROM orders", "does not group"),
        (
            "city, count(*) AS n FROM (SELECT city, window(at, '10 minutes', '5 minutes') FROM "
            "orders) GROUP BY city",
            "several windows of one event",
        ),
        (
            "city, count(*) AS n FROM (SELECT DISTINCT city, id FROM orders) GROUP BY city",
            "DISTINCT over a sample gives other rows",
        ),
        (
            "city, session_window(at, '5 minutes') AS w, count(*) AS n FROM orders "
            "GROUP BY city, session_window(at, '5 minutes')",
            "a sample splits sessions",
        ),
        (
            "city, count_window(10) AS w, count(*) AS n FROM orders "
            "GROUP BY city, count_window(10)",
            "count windows over a sample",
        ),
        (
            "o.city, count(*) AS n FROM orders o JOIN orders p "
            "ON o.id = p.id AND o.at <= p.at AND p.at <= o.at + INTERVAL 1 HOUR GROUP BY o.city",
            "two events each",
        ),
    ],
)
def test_a_view_whose_columns_cannot_be_estimated_may_not_shed(
    planned: Any, select: str, message: str
) -> None:
    key = '["city", "w"]' if " w," in select else '["city"]'
    body = f"""{STREAMS}
app.view("v", key={key}, shed="30 seconds", sql="SELECT {select}")
"""
    with pytest.raises(PipelineError) as refused:
        planned(body)
    assert "view 'v' has shed, but " in refused.value.message
    assert message in refused.value.message
    assert "leave shed out" in refused.value.remedy


def test_a_view_may_shed_in_either_mode_and_its_plan_names_the_estimates(planned: Any) -> None:
    views = planned(f"""{STREAMS}
app.view("by_city", key=["city"], shed="30 seconds",
         sql="SELECT city, count(*) AS n, avg(amount) AS mean FROM orders GROUP BY city")
app.view("slow", key=["city"], shed="1 minute", mode="micro_batch",
         sql="SELECT city, sum(amount) FILTER (WHERE amount > 1) AS s FROM orders GROUP BY city")
app.view("levels", key=["level"], shed="stream",
         sql="SELECT level, count(*) AS n FROM logs GROUP BY level")
""")
    plans = {name: query.plan for name, query in views.items()}
    assert [plan.mode for plan in plans.values()] == ["real_time", "micro_batch", "real_time"]
    assert plans["by_city"].estimated == ("n", "mean")
    assert plans["by_city"].shedding.startswith("takes a sample while it is more than 30 seconds")
    assert plans["levels"].shedding.startswith("never; n ")
    assert (
        plans["by_city"].generation
        == planned(f"""{STREAMS}
app.view("by_city", key=["city"], shed="2 minutes",
         sql="SELECT city, count(*) AS n, avg(amount) AS mean FROM orders GROUP BY city")
""")["by_city"].plan.generation
    )


@pytest.mark.usefixtures("spark")
def test_views_with_the_option_weigh_events_of_a_stream_that_sheds(pipeline: Any) -> None:
    app = pipeline(f"""{STREAMS}
app.view("weighed", key=["level"], shed="stream",
         sql="SELECT level, count(*) AS n FROM logs GROUP BY level")
app.view("plain", key=["level"], sql="SELECT level, count(*) AS n FROM logs GROUP BY level")
""")
    debug = [Logged({"level": "debug"}, sampled=0.25)] * 8
    views = run(app, {"logs": [*debug, {"level": "error"}, {"level": "error"}]})
    assert views["plain"] == [{"level": "debug", "n": 8}, {"level": "error", "n": 2}]
    estimated, exact = views["weighed"]
    error = pytest.approx(1.96 * (4 * 3 * (8 + 2)) ** 0.5, rel=1e-3)
    assert estimated == {"level": "debug", "n": 32, "_error": {"n": error}}
    assert exact == {"level": "error", "n": 2, "_error": {"n": 0.0}}
