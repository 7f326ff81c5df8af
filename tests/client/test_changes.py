"""Changes when connections break, servers fail and subscriptions are refused."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.client.scripted_servers import StartSocket
from websockets.asyncio.server import ServerConnection

from millstream.client import Change, Client, Gap, Keyed, Lag, Message, Snapshot
from millstream.client.backoff import Backoff
from millstream.client.changes import ReadingPace
from millstream.errors import NotReachable, QueryError, RequestRefused

QUICK = Backoff(first=0.001, longest=0.01)


async def tell(connection: ServerConnection, kind: str, **fields: Any) -> None:
    await connection.send(json.dumps({"type": kind, "id": "1", **fields}))


async def tell_change(connection: ServerConnection, n: int) -> None:
    await tell(connection, "change", op="upsert", key=["a"], row={"n": n}, position=f"e:0={n}")


def change(n: int) -> Change:
    return Change("upsert", f"e:0={n}", ["a"], {"n": n})


async def take(messages: AsyncIterator[Message], count: int) -> list[Message]:
    async with asyncio.timeout(10):
        return [await anext(messages) for _ in range(count)]


async def test_a_snapshot_comes_first_and_then_every_change(socket_peer: StartSocket) -> None:
    async def script(_: int, connection: ServerConnection) -> None:
        rows = [{"key": ["a"], "row": {"n": 1}}]
        await tell(connection, "snapshot", view="v", position="e:0=1", rows=rows)
        await tell_change(connection, 2)
        await tell(connection, "change", op="delete", key=["a"], row=None, position="e:0=3")
        await tell(connection, "lag", behind=7, position="e:0=3")
        await connection.wait_closed()

    peer = await socket_peer(script)
    async with Client(peer.url) as client, client.changes("v", where="n > 0") as changes:
        assert await take(aiter(changes), 4) == [
            Snapshot("e:0=1", [Keyed(["a"], {"n": 1})]),
            change(2),
            Change("delete", "e:0=3", ["a"], None),
            Lag(7, "e:0=3"),
        ]
        assert changes.position == "e:0=3"
    assert peer.asked == [
        {"type": "subscribe", "id": "1", "view": "v", "where": "n > 0", "when_slow": "buffer"}
    ]


async def test_after_a_broken_connection_it_continues_from_the_last_position(
    socket_peer: StartSocket,
) -> None:
    async def script(number: int, connection: ServerConnection) -> None:
        if number == 0:
            await tell(connection, "snapshot", view="v", position="e:0=0", rows=[])
        await tell_change(connection, 2 * number + 1)
        await tell_change(connection, 2 * number + 2)
        connection.transport.abort()

    peer = await socket_peer(script)
    client = Client(peer.url, backoff=QUICK)
    async with client, client.changes("v") as changes:
        got = await take(aiter(changes), 7)
    assert got == [Snapshot("e:0=0", []), *map(change, range(1, 7))]
    assert [asked.get("after") for asked in peer.asked[:3]] == [None, "e:0=2", "e:0=4"]


async def test_another_server_continues_when_one_is_away(socket_peer: StartSocket) -> None:
    async def dying(_: int, connection: ServerConnection) -> None:
        await tell_change(connection, 1)
        await connection.close(1012, "restarting")

    async def living(_: int, connection: ServerConnection) -> None:
        await tell_change(connection, 2)
        await connection.wait_closed()

    first, second = await socket_peer(dying), await socket_peer(living)
    client = Client("http://127.0.0.1:9", first.url, second.url, backoff=QUICK)
    async with client, client.changes("v", after="e:0=0") as changes:
        assert await take(aiter(changes), 2) == [change(1), change(2)]
    assert [first.asked[0]["after"], second.asked[0]["after"]] == ["e:0=0", "e:0=1"]


async def test_a_gap_is_a_message_and_does_not_change_the_position(
    socket_peer: StartSocket,
) -> None:
    async def script(number: int, connection: ServerConnection) -> None:
        await tell(connection, "gap", asked="old:0=1", position="e:0=5", reason="a new generation")
        if number == 0:
            return
        await tell(connection, "snapshot", view="v", position="e:0=5", rows=[])
        await connection.wait_closed()

    peer = await socket_peer(script)
    client = Client(peer.url, backoff=QUICK)
    async with client, client.changes("v", after="old:0=1") as changes:
        gap = Gap("old:0=1", "e:0=5", "a new generation")
        assert await take(aiter(changes), 3) == [gap, gap, Snapshot("e:0=5", [])]
    # Broken off between gap and snapshot: the snapshot was still owed.
    assert [asked["after"] for asked in peer.asked] == ["old:0=1", "old:0=1"]


async def test_a_refused_subscription_is_an_error_in_the_servers_words(
    socket_peer: StartSocket,
) -> None:
    async def script(_: int, connection: ServerConnection) -> None:
        await tell(connection, "error", title="Bad Request", detail="there is no column 'm'")
        await connection.wait_closed()

    peer = await socket_peer(script)
    async with Client(peer.url) as client, client.changes("v", where="m = 1") as changes:
        with pytest.raises(QueryError, match="there is no column 'm'"):
            await take(aiter(changes), 1)


async def test_a_slow_client_with_disconnect_gets_an_error(
    socket_peer: StartSocket,
) -> None:
    async def script(_: int, connection: ServerConnection) -> None:
        await connection.close(4008, "too slow")

    peer = await socket_peer(script)
    client = Client(peer.url, backoff=QUICK)
    async with client, client.changes("v", when_slow="disconnect") as changes:
        with pytest.raises(RequestRefused, match="too slowly"):
            await take(aiter(changes), 1)
    assert len(peer.asked) == 1


async def test_it_gives_up_after_the_attempts_allowed() -> None:
    client = Client("http://127.0.0.1:9", backoff=QUICK)
    async with client, client.changes("v", attempts=3) as changes:
        with pytest.raises(NotReachable, match=r"cannot follow v: .*check that a server runs"):
            await take(aiter(changes), 1)


async def test_leaving_early_closes_the_connection(socket_peer: StartSocket) -> None:
    async def script(_: int, connection: ServerConnection) -> None:
        await tell_change(connection, 1)
        await connection.wait_closed()

    peer = await socket_peer(script)
    async with Client(peer.url) as client, client.changes(stream="s") as changes:
        async for _ in changes:
            break
        assert not peer.closed.is_set()
    async with asyncio.timeout(5):
        await peer.closed.wait()
    assert peer.asked[0]["stream"] == "s"


async def test_changes_need_either_a_view_or_a_stream() -> None:
    async with Client("http://127.0.0.1:9") as client:
        with pytest.raises(TypeError, match="either a view, or a stream"):
            client.changes()
        with pytest.raises(TypeError, match="either a view, or a stream"):
            client.changes("v", stream="s")


async def page(connection: ServerConnection, number: int, last: bool, *keys: str) -> None:
    rows = [{"key": [key], "row": {"n": 1}} for key in keys]
    fields = {"view": "v", "position": "e:0=5", "rows": rows, "page": number, "last": last}
    await tell(connection, "snapshot", total=3, truncated=False, **fields)


async def test_pages_are_joined_and_their_position_counts_only_with_the_last_one(
    socket_peer: StartSocket,
) -> None:
    async def script(number: int, connection: ServerConnection) -> None:
        await page(connection, 1, False, "a", "b")
        if number == 0:
            return  # broken off: the rest must not be missed
        await page(connection, 2, True, "c")
        await connection.wait_closed()

    peer = await socket_peer(script)
    client = Client(peer.url, backoff=QUICK)
    async with client, client.changes("v") as changes:
        (snapshot,) = await take(aiter(changes), 1)
        assert changes.position == "e:0=5"
    assert isinstance(snapshot, Snapshot)
    assert [row.key for row in snapshot.rows] == [["a"], ["b"], ["c"]]
    assert [asked.get("after") for asked in peer.asked] == [None, None]


async def test_pages_come_one_by_one_on_request(socket_peer: StartSocket) -> None:
    async def script(_: int, connection: ServerConnection) -> None:
        await page(connection, 1, False, "a", "b")
        await page(connection, 2, True, "c")
        await connection.wait_closed()

    peer = await socket_peer(script)
    async with Client(peer.url) as client, client.changes("v", pages=True) as changes:
        (first,) = await take(aiter(changes), 1)
        assert isinstance(first, Snapshot)
        assert (first.page, first.last, len(first.rows), changes.position) == (1, False, 2, None)
        (second,) = await take(aiter(changes), 1)
        assert isinstance(second, Snapshot)
        assert (second.last, changes.position) == (True, "e:0=5")


async def test_an_update_is_sent_and_kept_for_the_next_connection(socket_peer: StartSocket) -> None:
    async def script(number: int, connection: ServerConnection) -> None:
        await tell_change(connection, number + 1)
        if number == 0:
            assert json.loads(await connection.recv())["where"] == "n > 1"
            return  # broken off before it was answered
        await connection.wait_closed()

    peer = await socket_peer(script)
    client = Client(peer.url, backoff=QUICK)
    async with client, client.changes("v", after="e:0=0") as changes:
        await take(aiter(changes), 1)
        await changes.update(where="n > 1")
        await take(aiter(changes), 1)
    assert peer.asked[-1]["where"] == "n > 1"
    assert "after" not in peer.asked[-1], "only all rows are right then"


async def test_a_growing_lag_is_logged(
    socket_peer: StartSocket, caplog: pytest.LogCaptureFixture
) -> None:
    async def script(_: int, connection: ServerConnection) -> None:
        lag = {"behind": 7, "seconds": 1.5, "growing": True, "warning": "soon closed"}
        await tell(connection, "lag", position="e:0=3", **lag)
        await connection.wait_closed()

    peer = await socket_peer(script)
    async with Client(peer.url) as client, client.changes("v") as changes:
        assert await take(aiter(changes), 1) == [Lag(7, "e:0=3", 1.5, True, "soon closed")]
    assert "following v: 7 changes and 1.5 s behind, and it grows; soon closed" in caplog.text


async def test_a_program_that_never_waits_for_messages_is_warned(
    caplog: pytest.LogCaptureFixture,
) -> None:
    now = 0.0
    pace = ReadingPace("v", lambda: now)

    async def ready() -> int:
        return 1

    for _ in range(7):
        now += 1.0
        assert await pace.measure(ready()) == 1
    assert caplog.text.count("without a break") == 1
