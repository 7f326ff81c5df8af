"""Clients with `field = constant` get what they would get without the index, at a constant cost."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.serve.subscriptions.test_subscription import NothingLost

from millstream.log.record import Record
from millstream.serve.access.visibility import Visibility
from millstream.serve.settings import ServeSettings
from millstream.serve.subscriptions.selection import RowSelection
from millstream.serve.subscriptions.subscription import Subscription
from millstream.serve.views.encoding import WebSocketFormat
from millstream.serve.views.served_view import ServedView
from millstream.values.view_description import ViewColumn

CITIES = "abc"
SELECTIONS = {
    "indexed": RowSelection(where="city = 'a'"),
    "and more": RowSelection(where="n > 1 AND city = 'b'"),
    "policy": RowSelection(visibility=Visibility("city = 'a'")),
    "all": RowSelection(),
}


def new_view(recent: int = 10_000) -> ServedView:
    columns = (ViewColumn("id", "string"), ViewColumn("city", "string"), ViewColumn("n", "bigint"))
    settings_ = ServeSettings(recent_changes=recent)
    view = ServedView("v", "view", "t", settings_, key=("id",), columns=columns)
    view.reset("epoch", {0: 0})
    return view


class Client:
    """A client that applies what it gets, as often as it is woken."""

    def __init__(self, view: ServedView, selection: RowSelection) -> None:
        self.rows: dict[str, Any] = {}
        self.woken = 0
        self.subscription = Subscription(
            view, selection, WebSocketFormat("a"), self.wake, NothingLost()
        )
        self.read()

    def wake(self) -> None:
        self.woken += 1
        self.read()

    def read(self) -> None:
        while messages := self.subscription.next_messages():
            for message in map(json.loads, messages):
                assert message["type"] in ("snapshot", "change"), message
                if message["type"] == "change":
                    key = json.dumps(message["key"])
                    assert message["op"] == "upsert" or key in self.rows  # no delete of nothing
                    self.rows.pop(key, None)
                    if message["op"] == "upsert":
                        self.rows[key] = message["row"]


changes = st.lists(
    st.tuples(st.integers(0, 3), st.none() | st.tuples(st.sampled_from(CITIES), st.integers(0, 3))),
    max_size=40,
)


@given(several=changes, recent=st.sampled_from([8, 10_000]))
@settings(max_examples=60, deadline=None)
async def test_every_client_holds_the_rows_that_match_its_filter(
    several: list[tuple[int, tuple[str, int] | None]], recent: int
) -> None:
    view = new_view(recent)
    clients = {name: Client(view, selection) for name, selection in SELECTIONS.items()}
    for offset, (number, content) in enumerate(several):
        row = None
        if content is not None:
            row = {"id": str(number), "city": content[0], "n": content[1], "_revision": offset}
        key, value = json.dumps([str(number)]), None if row is None else json.dumps(row)
        record = Record("t", 0, offset, 0, key.encode(), value and value.encode(), ())  # type: ignore[arg-type]
        view.apply([record])
        for name, client in clients.items():
            matches = SELECTIONS[name].encoding(view).matches
            held = {
                json.dumps(json.loads(key)): {"id": row["id"], "city": row["city"], "n": row["n"]}
                for key, row in view.table.rows.items()
                if matches(row)
            }
            assert client.rows == held, name
            assert client.subscription.behind == 0
            client.subscription.refresh()
            assert client.subscription.position == view.position
    for client in clients.values():
        client.subscription.close()
    assert not view.subscribers
    assert not view._index


async def test_clients_whose_filter_a_change_does_not_concern_are_not_woken() -> None:
    view = new_view()
    clients = [Client(view, RowSelection(where=f"city = 'city {n}'")) for n in range(100)]
    for offset in range(50):
        row = {"id": str(offset), "city": "city 7", "n": offset, "_revision": offset}
        key = json.dumps([str(offset)]).encode()
        view.apply([Record("t", 0, offset, 0, key, json.dumps(row).encode(), ())])
    assert [client.woken for client in clients if client.woken] == [50]
    assert len(clients[7].rows) == 50
