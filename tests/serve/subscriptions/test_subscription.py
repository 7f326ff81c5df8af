"""A client that changes servers, each of which read the partitions in another order."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.log.record import Record
from millstream.log.settings import LogSettings
from millstream.serve.settings import ServeSettings
from millstream.serve.subscriptions.selection import RowSelection
from millstream.serve.subscriptions.subscription import Subscription
from millstream.serve.views.encoding import WebSocketFormat
from millstream.serve.views.replay import Replay
from millstream.serve.views.served_view import ServedView
from millstream.store.views.ring import Offsets
from millstream.values.position import Position

PARTITIONS = 2


class NothingLost(Replay):
    """Kafka has whatever a server gave out, and nobody falls out of the ring here."""

    def __init__(self) -> None:
        super().__init__(LogSettings(), 0)

    async def is_beyond_end(self, served: ServedView, offsets: Offsets) -> bool:
        return False


def new_server() -> ServedView:
    served = ServedView("v", "view", "t", ServeSettings(), key=None)
    served.reset("epoch", dict.fromkeys(range(PARTITIONS), 0))
    return served


def record(partition: int, offset: int) -> Record:
    value = json.dumps({"id": [partition, offset]}).encode()
    return Record("t", partition, offset, 0, None, value, ())


class Client:
    """Remembers what it saw, and where it is."""

    def __init__(self) -> None:
        self.seen: list[tuple[int, int]] = []
        self.position = Position("epoch", dict.fromkeys(range(PARTITIONS), 0))
        self.subscription: Subscription | None = None

    def move(self, served: ServedView) -> None:
        if self.subscription is not None:
            self.subscription.close()
        self.subscription = Subscription(
            served,
            RowSelection(),
            WebSocketFormat("a"),
            lambda: None,
            NothingLost(),
            after=self.position,
        )

    async def read(self) -> None:
        assert self.subscription is not None
        await asyncio.sleep(0)  # a question to Kafka may be under way
        await asyncio.sleep(0)
        for text in self.subscription.next_messages():
            message: dict[str, Any] = json.loads(text)
            assert message["type"] == "change", message
            partition, offset = message["row"]["id"]
            self.seen.append((partition, offset))
            self.position = Position.parse(message["position"])


def partition_order(seen: list[tuple[int, int]], partition: int) -> list[int]:
    return [offset for p, offset in seen if p == partition]


# Each step: a server takes in the next record of a partition, or the client reads, or it moves.
steps = st.lists(
    st.one_of(
        st.tuples(st.just("apply"), st.integers(0, 1), st.integers(0, PARTITIONS - 1)),
        st.tuples(st.just("read"), st.just(0), st.just(0)),
        st.tuples(st.just("move"), st.integers(0, 1), st.just(0)),
    ),
    max_size=60,
)


@settings(max_examples=200, deadline=None)
@given(steps)
def test_a_client_that_changes_servers_sees_every_change_once_and_in_order(
    history: list[tuple[str, int, int]],
) -> None:
    async def play() -> None:
        servers = [new_server(), new_server()]
        applied = [[0] * PARTITIONS, [0] * PARTITIONS]
        client = Client()
        client.move(servers[0])

        def apply(server: int, partition: int) -> None:
            servers[server].apply([record(partition, applied[server][partition])])
            applied[server][partition] += 1

        for what, which, partition in history:
            match what:
                case "apply":
                    apply(which, partition)
                case "read":
                    await client.read()
                case "move":
                    client.move(servers[which])
        ends = [max(counts) for counts in zip(*applied, strict=True)]
        for server in range(2):
            for partition in range(PARTITIONS):
                while applied[server][partition] < ends[partition]:
                    apply(server, partition)
        await client.read()
        await client.read()
        for partition in range(PARTITIONS):
            assert partition_order(client.seen, partition) == list(range(ends[partition]))
        assert client.subscription is not None
        client.subscription.close()

    asyncio.run(play())
