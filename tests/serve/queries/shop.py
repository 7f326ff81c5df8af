"""A pipeline with named queries, whose views the tests write."""

from __future__ import annotations

from tests.serve.pipeline import declare

from millstream import App

TOP = "SELECT city, n FROM by_city ORDER BY n DESC, city LIMIT :n"
BIG = (
    "SELECT city, n, n * :factor AS scaled FROM by_city"
    " WHERE n >= :low AND (:part IS NULL OR contains(city, :part))"
)


def declare_queries(name: str) -> App:
    """The views of `tests.serve.pipeline`, with named queries over them."""
    app = declare(name)
    app.query("top_cities", sql=TOP, n=3, description="The busiest cities")
    app.query("big_cities", sql=BIG, key="city", low=0, factor=1.5, part=None)
    app.query(
        "by_first_letter", sql="SELECT city[1] AS letter, sum(n) AS n FROM by_city GROUP BY 1"
    )
    app.query(
        "matches",
        sql="SELECT b.city, b.n, count(*) AS rows FROM by_city b JOIN newest USING (city)"
        " GROUP BY ALL ORDER BY ALL",
    )
    app.query("now_or_never", sql="SELECT city, now() AS at FROM by_city")
    app.query("wrong", sql="SELECT town FROM by_city")
    app.check()
    return app
