"""Whatever a client asks for and however it reads: its rows are right in the end.

Nothing is left out without being counted.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.log.record import Record
from millstream.log.settings import LogSettings
from millstream.serve.settings import ServeSettings
from millstream.serve.subscriptions.pace import Pace
from millstream.serve.subscriptions.selection import RowSelection
from millstream.serve.subscriptions.subscription import Subscription
from millstream.serve.views.encoding import Encoding, WebSocketFormat
from millstream.serve.views.replay import Replay
from millstream.serve.views.served_view import PositionUnavailable, ServedView
from millstream.store.views.ring import Offsets, ViewChange
from millstream.values.position import Position
from millstream.values.view_description import ViewColumn

KEYS = ("a", "b", "c", "d")
COLUMNS = (ViewColumn("k", "string"), ViewColumn("n", "bigint"))


class NothingInTheLog(Replay):
    """Kafka has no change that the ring lacks."""

    def __init__(self) -> None:
        super().__init__(LogSettings(), 0)

    async def changes(
        self, served: ServedView, start: Offsets, encoding: Encoding, *, unlimited: bool = False
    ) -> AsyncIterator[ViewChange]:
        raise PositionUnavailable("it is gone")
        yield

    async def is_beyond_end(self, served: ServedView, offsets: Offsets) -> bool:
        return False


def new_view(*, keyed: bool = True, **options: Any) -> ServedView:
    serve = ServeSettings(**options)
    served = ServedView("v", "view", "t", serve, key=("k",) if keyed else None, columns=COLUMNS)
    served.reset("epoch", {0: 0})
    return served


@dataclass
class Writer:
    """Writes changes of the view, each with a higher number."""

    served: ServedView
    written: int = 0

    def put(self, key: str, n: int | None) -> None:
        row = None if n is None else {"k": key, "n": n, "_revision": self.written + 1}
        value = None if row is None else json.dumps(row).encode()
        stamp = int(time.time() * 1000)
        record = Record("t", 0, self.written, stamp, f'["{key}"]'.encode(), value, ())
        self.written += 1
        self.served.apply([record])


class Reader:
    """A client that applies what it gets, and reads when the test says so."""

    def __init__(
        self,
        served: ServedView,
        pace: Pace | None = None,
        where: str | None = None,
        after: Position | None = None,
    ) -> None:
        self.served = served
        self.where = where
        self.rows: dict[str, int] = {}
        self.changes = 0
        self.skipped = 0
        self.lags: list[dict[str, Any]] = []
        self.pages: list[dict[str, Any]] = []
        self.updates = 0
        self.position = ""
        self.subscription = Subscription(
            served,
            RowSelection(where=where),
            WebSocketFormat("a"),
            lambda: None,
            NothingInTheLog(),
            pace=pace,
            after=after,
        )

    def read(self, size: int = 65_536) -> None:
        for text in self.subscription.next_messages(size):
            self._apply(json.loads(text))

    def _apply(self, message: dict[str, Any]) -> None:
        self.skipped += message.get("skipped", 0)
        self.position = message["position"]
        match message["type"]:
            case "snapshot":
                if message["page"] == 1:
                    self.rows.clear()
                self.rows |= {row["key"][0]: row["row"]["n"] for row in message["rows"]}
                self.pages.append(message)
            case "change":
                self.changes += 1
                self._change(message)
            case "lag":
                self.lags.append(message)
            case "updated":
                self.updates += 1

    def _change(self, message: dict[str, Any]) -> None:
        if message["op"] == "delete":
            self.rows.pop(message["key"][0], None)
        else:
            self.rows[message["key"][0]] = message["row"]["n"]

    @property
    def expected(self) -> dict[str, Any]:
        held: list[dict[str, Any]] = list(self.served.table.rows.values())
        rows = {row["k"]: row["n"] for row in held}
        limit = None if self.where is None else int(self.where.split()[-1])
        return {key: n for key, n in rows.items() if limit is None or n < limit}

    async def read_all(self) -> None:
        """Read until the rows are those of the view."""
        async with asyncio.timeout(20):
            while True:
                self.read()
                if self.rows == self.expected and self._is_up_to_date():
                    return
                await asyncio.sleep(0.001)

    def _is_up_to_date(self) -> bool:
        subscription = self.subscription
        held = subscription._thinning.held_since
        return not (subscription.is_busy or subscription.behind or held)


paces = st.sampled_from(
    [
        Pace(),
        Pace("conflate"),
        Pace("sample", sample=500),
        Pace("disconnect"),
        Pace(max_rate=1000),
        Pace("conflate", max_rate=400),
        Pace(max_rate_per_key=200),
        Pace("conflate", max_rate_per_key=300),
        Pace("sample", sample=800, max_rate=600, max_rate_per_key=300),
    ]
)
changes = st.tuples(st.just("put"), st.sampled_from(KEYS), st.none() | st.integers(0, 9))
reads = st.tuples(st.just("read"), st.just(""), st.sampled_from([1, 60, 300, 65_536]))
waits = st.tuples(st.just("wait"), st.just(""), st.just(0))
pauses = st.tuples(st.sampled_from(["pause", "resume"]), st.just(""), st.just(0))
Step = tuple[str, str, Any]


async def play(reader: Reader, writer: Writer, steps: list[Step]) -> None:
    for what, key, number in steps:
        match what:
            case "put":
                writer.put(key, number)
            case "read":
                reader.read(number)
            case "wait":
                await asyncio.sleep(0.002)
            case "pause":
                reader.subscription.pause()
            case "resume":
                reader.subscription.resume()
            case "where":
                reader.where = None if number is None else f"n < {number}"
                reader.subscription.update({"where": reader.where})
            case "pace":
                fields = {name: getattr(number, name) for name in Pace.__slots__}
                reader.subscription.update(fields)
    reader.subscription.resume()
    await reader.read_all()


@settings(max_examples=120, deadline=None)
@given(paces, st.lists(st.one_of(changes, changes, reads, waits, pauses), max_size=60))
def test_every_change_is_delivered_or_counted_and_the_rows_are_right(
    pace: Pace, steps: list[Step]
) -> None:
    async def run() -> None:
        writer = Writer(served := new_view())
        reader = Reader(served, pace)
        reader.read()
        applied = served.table.ring.end
        await play(reader, writer, steps)
        assert reader.changes + reader.skipped == served.table.ring.end - applied
        assert reader.skipped == reader.subscription.skipped
        assert served.metrics.skipped.total() == reader.skipped
        if pace in (Pace(), Pace("disconnect")):
            assert reader.skipped == 0
        reader.subscription.close()

    asyncio.run(run())


wheres = st.tuples(st.just("where"), st.just(""), st.none() | st.integers(0, 10))
new_paces = st.tuples(st.just("pace"), st.just(""), paces)


@settings(max_examples=150, deadline=None)
@given(
    paces,
    st.sampled_from([3, 100]),
    st.lists(st.one_of(changes, changes, reads, waits, pauses, wheres, new_paces), max_size=60),
)
def test_filters_and_limits_change_at_any_moment_and_the_rows_are_right(
    pace: Pace, recent: int, steps: list[Step]
) -> None:
    async def run() -> None:
        writer = Writer(served := new_view(recent_changes=recent))
        reader = Reader(served, pace, "n < 5")
        await play(reader, writer, steps)
        wanted = sum(what in ("where", "pace") for what, _, _ in steps)
        assert reader.updates == wanted
        reader.subscription.close()

    asyncio.run(run())


@settings(max_examples=120, deadline=None)
@given(
    paces,
    st.lists(st.one_of(changes, changes, reads, waits), max_size=40),
    st.lists(changes, max_size=20),
)
def test_a_client_resumes_from_any_position_and_its_rows_are_right(
    pace: Pace, steps: list[Step], later: list[Step]
) -> None:
    async def run() -> None:
        writer = Writer(served := new_view())
        first = Reader(served, pace, "n < 5")
        first.read()
        for what, key, number in steps:
            if what == "put":
                writer.put(key, number)
            elif what == "read":
                first.read(number)
            else:
                await asyncio.sleep(0.002)
        first.subscription.close()
        second = Reader(served, pace, "n < 5", Position.parse(first.position))
        second.rows = first.rows
        await play(second, writer, later)
        second.subscription.close()

    asyncio.run(run())


async def test_conflation_sends_the_newest_change_of_a_key_and_counts_the_others() -> None:
    writer = Writer(served := new_view())
    reader = Reader(served, Pace("conflate"))
    reader.read()
    for n in range(100):
        writer.put("a", n)
    writer.put("b", 1)
    reader.read()
    assert (reader.rows, reader.changes, reader.skipped) == ({"a": 99, "b": 1}, 2, 99)


async def test_a_rate_is_kept_and_the_last_value_arrives() -> None:
    writer = Writer(served := new_view())
    reader = Reader(served, Pace("sample", sample=100))
    reader.read()
    began = time.monotonic()
    n = 0
    while time.monotonic() < began + 0.5:
        n += 1
        writer.put(KEYS[n % 4], n)
        reader.read()
        await asyncio.sleep(0)
    await reader.read_all()
    assert reader.changes <= (time.monotonic() - began) * 100 + 6
    assert reader.changes + reader.skipped == n


async def test_rows_without_key_are_sampled() -> None:
    served = new_view(keyed=False)
    reader = Reader(served, Pace("sample", sample=10))
    reader.read()
    rows = [json.dumps({"k": "a", "n": n}).encode() for n in range(1000)]
    served.apply([Record("t", 0, n, 0, None, row, ()) for n, row in enumerate(rows)])
    messages = reader.subscription.next_messages()
    assert len(messages) == 1
    refreshed = reader.subscription.refresh()
    assert refreshed is not None
    assert json.loads(refreshed)["skipped"] == 999


async def test_a_paused_subscription_is_not_woken() -> None:
    writer = Writer(served := new_view())
    reader = Reader(served)
    reader.read()
    reader.subscription.pause()
    assert not served.subscribers
    writer.put("a", 1)
    reader.read()
    assert reader.changes == 0
    reader.subscription.resume()
    reader.read()
    assert reader.rows == {"a": 1}


async def test_lag_reports_how_far_behind_and_whether_it_grows_and_recovery() -> None:
    writer = Writer(served := new_view(recent_changes=100))
    reader = Reader(served, Pace("disconnect"))
    reader.read()
    writer.put("a", 0)
    reader.subscription.mark_slow()
    for n in range(60):
        writer.put("a", n)
    reader.read(1)
    (lag,) = reader.lags
    assert (lag["behind"], lag["growing"]) == (61, True)
    assert "closed with code 4008" in lag["warning"]
    reader.read()
    assert reader.lags[-1]["behind"] == 0
    assert "warning" not in reader.lags[-1]


async def test_only_a_subscription_that_asked_for_it_is_too_slow() -> None:
    writer = Writer(served := new_view(recent_changes=5))
    patient, strict = Reader(served), Reader(served, Pace("disconnect"))
    patient.read()
    strict.read()
    writer.put("a", 1)
    assert not strict.subscription.is_too_slow(1.0)
    assert strict.subscription.is_too_slow(3.0)
    assert not patient.subscription.is_too_slow(100.0)
    for n in range(10):
        writer.put("a", n)
    assert strict.subscription.is_too_slow(0.0), "its changes are no longer in memory"


async def test_rows_that_come_into_sight_are_sent_without_a_snapshot() -> None:
    writer = Writer(served := new_view())
    for n in range(4):
        writer.put(KEYS[n], n)
    reader = Reader(served, where="n < 2")
    reader.read()
    reader.where = "n < 3"
    reader.subscription.update({"where": reader.where})
    await reader.read_all()
    assert (len(reader.pages), reader.changes, reader.rows) == (1, 1, {"a": 0, "b": 1, "c": 2})
    reader.subscription.update({"max_rate": 10.0, "when_slow": "conflate"})
    reader.read()
    assert (len(reader.pages), reader.updates) == (1, 2)
    reader.subscription.update({"select": ["n"]})
    reader.read()
    assert (len(reader.pages), reader.updates) == (2, 3)


async def test_a_snapshot_comes_in_pages_and_changes_follow_the_last_one() -> None:
    writer = Writer(served := new_view(page_bytes=1024))
    for n in range(3000):
        writer.put(f"k{n}", n)
    reader = Reader(served)
    written = writer.written
    async with asyncio.timeout(20):
        while not reader.pages or not reader.pages[-1]["last"]:
            reader.read(1)
            assert reader.changes == 0
            if writer.written < written + 200:
                writer.put("k7", writer.written)
            await asyncio.sleep(0)
    (position,) = {page["position"] for page in reader.pages}
    began = Position.parse(position).offsets[0]
    assert [page["page"] for page in reader.pages] == list(range(1, len(reader.pages) + 1))
    assert {(page["total"], page["truncated"]) for page in reader.pages} == {(3000, False)}
    await reader.read_all()
    assert reader.changes == writer.written - began


async def test_a_large_snapshot_never_holds_the_loop() -> None:
    served = new_view()
    row: dict[str, object] = {"k": "a", "n": 1}
    served.table.rows = {f'["{n}"]': row for n in range(300_000)}
    longest, count = 0.0, 0
    subscription = Subscription(
        served, RowSelection(), WebSocketFormat("a"), lambda: None, NothingInTheLog()
    )
    with contextlib.suppress(StopAsyncIteration):
        is_last = False
        while not is_last:
            began = time.monotonic()
            messages = subscription.next_messages()
            count += sum(message.count(b'"key"') for message in messages)
            is_last = any(b'"last":true' in message[:300] for message in messages)
            assert sum(map(len, messages)) < 600_000
            await asyncio.sleep(0)
            longest = max(longest, time.monotonic() - began)
    assert count == 300_000
    assert longest < 0.5, "50 ms on a quiet machine"
