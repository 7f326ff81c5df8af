"""Views that read views, and rows that come from several events."""

from __future__ import annotations

from collections import Counter
from typing import Any

STREAM = """
app.stream("clicks", schema="user STRING, page STRING, tags ARRAY<ARRAY<STRING>>")
"""
USERS = ["ann", "bob", "ann", "cid", "ann", "bob", "ann", "bob", "ann", "bob"]


def clicks(start: int, count: int) -> list[dict[str, Any]]:
    return [
        {"user": USERS[number % 10], "page": f"p{number}", "tags": [["a", "b"], [], ["c"]]}
        for number in range(start, start + count)
    ]


def test_views_of_views_are_exact_after_a_restart(live: Any, pipeline: Any) -> None:
    app = pipeline(f"""{STREAM}
app.view("ann", sql="SELECT user, page FROM clicks WHERE user = 'ann'")
app.view("counted", key=["user"], sql="SELECT user, count(*) AS n FROM ann GROUP BY user")
app.view("by_user", key=["user"], sql="SELECT user, count(*) AS n FROM clicks GROUP BY user")
app.view("fives", sql="SELECT user, n FROM by_user WHERE n % 5 = 0", reads={{"by_user": "changes"}})

@app.view
def parts(clicks: DataFrame) -> DataFrame:
    return (clicks.select("page", F.explode("tags").alias("some"))
                  .select("page", F.explode("some").alias("tag")))
""")
    live.start(app)
    live.send("clicks", *clicks(0, 20))
    live.gives(lambda: live.table("counted"), {'["ann"]': {"user": "ann", "n": 10}})
    live.gives(lambda: len(live.stream("fives")), 3)
    live.stop()
    live.send("clicks", *clicks(20, 10))
    live.start(app)
    live.send("clicks", *clicks(30, 10))

    counts = Counter(USERS * 4)
    live.gives(lambda: live.table("counted"), {'["ann"]': {"user": "ann", "n": counts["ann"]}})
    live.gives(lambda: {r["user"]: r["n"] for r in live.table("by_user").values()}, counts)
    fives = sorted((user, n) for user, last in counts.items() for n in range(5, last + 1, 5))
    live.gives(lambda: sorted((r["user"], r["n"]) for r in live.stream("fives")), fives)
    live.gives(
        lambda: live.stream("parts"),
        [{"page": f"p{number}", "tag": tag} for number in range(40) for tag in "abc"],
    )
    rows = [row["_position"]["row"] for _, row in live.records("parts")[:3]]
    assert rows == [0, 1, 2 << 20], "the third is the first of the third array"


def test_a_union_of_unions_of_one_stream_gives_every_row(live: Any, pipeline: Any) -> None:
    numbered = [f"SELECT {number} AS number, page FROM clicks" for number in range(4)]
    left = f"({numbered[0]} UNION ALL {numbered[1]})"
    right = f"({numbered[2]} UNION ALL {numbered[3]})"
    app = pipeline(f"""{STREAM}
app.view("in_a_row", sql="{" UNION ALL ".join(numbered)}")
app.view("in_pairs", sql="{left} UNION ALL {right}")
app.view("at_the_end", sql="{numbered[0]} UNION ALL ({numbered[1]} UNION ALL {right})")
""")
    live.start(app)
    live.send("clicks", *clicks(0, 2))
    expected = [(number, page) for number in range(4) for page in ("p0", "p1")]
    for view in app.views:
        live.gives(
            lambda v=view: sorted((row["number"], row["page"]) for row in live.stream(v)), expected
        )


def test_a_join_of_streams_and_a_look_up_give_each_row_once(live: Any, pipeline: Any) -> None:
    app = pipeline(f"""{STREAM}
app.stream("orders", schema="page STRING, amount INT")
app.view("by_user", key=["user"], sql="SELECT user, count(*) AS n FROM clicks GROUP BY user")

@app.view
def paired(clicks: DataFrame, orders: DataFrame) -> DataFrame:
    return clicks.join(orders, "page").select("user", "page", "amount")

@app.view(reads={{"by_user": "reference"}})
def known(orders: DataFrame, by_user: DataFrame) -> DataFrame:
    user = F.when(orders.page == "p1", "bob").otherwise("dan")
    return orders.select("page", user.alias("user")).join(by_user, "user", "left")
""")
    live.start(app)
    plans = {query.view.name: query.plan for query in live.planned}
    assert (plans["paired"].mode, plans["paired"].lineage) == ("micro_batch", "batch")
    assert (plans["known"].mode, plans["known"].lineage) == ("micro_batch", "position")
    live.send("clicks", *clicks(0, 10))
    live.gives(lambda: {r["user"]: r["n"] for r in live.table("by_user").values()}, Counter(USERS))

    live.send("orders", {"page": "p1", "amount": 7}, {"page": "p2", "amount": 8})
    by_page = lambda row: row["page"]  # noqa: E731
    live.gives(
        lambda: sorted(live.stream("paired"), key=by_page),
        [
            {"user": "bob", "page": "p1", "amount": 7},
            {"user": "ann", "page": "p2", "amount": 8},
        ],
    )
    live.gives(
        lambda: live.stream("known"),
        [{"user": "bob", "page": "p1", "n": 4}, {"user": "dan", "page": "p2", "n": None}],
    )
    positions = [row["_position"] for _, row in live.records("paired")]
    assert {each["source"] for each in positions} == {"paired"}
