"""Sending to collectors that refuse, ask to wait, disconnect or answer in part."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.client.scripted_servers import BREAK_OFF, Response, StartHttp

from millstream.client import Rejection, Sender, Sent
from millstream.client.backoff import Backoff
from millstream.errors import NotAllSent

NOBODY = "http://127.0.0.1:9"
QUICK = Backoff(first=0.001, longest=0.01)


def taken(body: bytes, **more: Any) -> Response:
    count = len(body.split(b"\n"))
    return Response(body={"accepted": count, "receipts": [f"r{count}"], "rejected": [], **more})


def events(count: int) -> list[dict[str, int]]:
    return [{"n": n} for n in range(count)]


async def test_all_events_arrive_in_batches_and_are_counted(http_peer: StartHttp) -> None:
    peer = await http_peer(lambda _, __, body: taken(body))
    sums: list[int] = []
    async with Sender(peer.url, batch=30) as sender:
        sent = await sender.send("s", events(100), progress=lambda ok, bad: sums.append(ok + bad))
    assert sent == Sent(100, [], [])
    assert sorted(len(body.split(b"\n")) for _, body in peer.requests) == [10, 30, 30, 30]
    lines = {json.loads(line)["n"] for _, body in peer.requests for line in body.split(b"\n")}
    assert lines == set(range(100))
    assert sorted(sums) == sums
    assert sums[-1] == 100


async def test_the_order_is_kept_when_batches_are_sent_again(
    http_peer: StartHttp,
) -> None:
    accepted: list[int] = []

    def script(number: int, _: str, body: bytes) -> Response:
        if number % 3 == 0:
            return Response([429, 503][number % 2], {"title": "Busy"}, {"retry-after": "0"})
        accepted.extend(json.loads(line)["n"] for line in body.split(b"\n"))
        return taken(body)

    peer = await http_peer(script)
    async with Sender(peer.url, batch=7, backoff=QUICK) as sender:
        assert (await sender.send("s", events(100))).accepted == 100
    assert accepted == list(range(100))


async def test_a_batch_is_small_enough_for_a_collector_to_list_all_rejections(
    http_peer: StartHttp,
) -> None:
    peer = await http_peer(lambda _, __, body: taken(body))
    async with Sender(peer.url, batch=5000) as sender:
        await sender.send("s", events(2500))
    assert [len(body.split(b"\n")) for _, body in peer.requests] == [1000, 1000, 500]


async def test_rejected_events_have_their_index_among_all_events(
    http_peer: StartHttp,
) -> None:
    def script(_: int, __: str, body: bytes) -> Response:
        if b'"n":7' in body:
            rejected = [{"index": 1, "error": "n is too lucky", "field": "n", "receipt": "r.1"}]
            return Response(body={"accepted": 2, "receipts": ["a", "b"], "rejected": rejected})
        if b'"n":9' in body:
            error = {"index": 0, "error": "n is last"}
            return Response(
                422, {"title": "No", "accepted": 0, "receipts": [], "rejected": [error]}
            )
        return taken(body)

    peer = await http_peer(script)
    async with Sender(peer.url, batch=3) as sender:
        sent = await sender.send("s", events(10), receipts=True)
    assert sent.accepted == 8
    assert sent.rejected == [Rejection(7, "n is too lucky", "n"), Rejection(9, "n is last")]
    assert {"a", "b"} <= set(sent.receipts)


@pytest.mark.parametrize("status", [429, 503])
async def test_a_batch_is_retried_when_a_collector_asks_to_wait(
    http_peer: StartHttp, status: int
) -> None:
    def script(number: int, _: str, body: bytes) -> Response:
        if number < 3:
            return Response(status, {"detail": "full"}, {"retry-after": "0"})
        return taken(body)

    peer = await http_peer(script)
    async with Sender(peer.url, backoff=QUICK) as sender:
        assert (await sender.send("s", events(5))).accepted == 5
    assert len(peer.requests) == 4


async def test_retry_after_is_respected_and_patience_ends(http_peer: StartHttp) -> None:
    peer = await http_peer(lambda *_: Response(503, {"detail": "full"}, {"retry-after": "60"}))
    async with Sender(peer.url, patience=5, backoff=QUICK) as sender:
        with pytest.raises(NotAllSent, match="full") as caught:
            await sender.send("s", events(5))
    # Nothing was taken in, so nothing is unclear, and the minute asked for exceeds the patience.
    assert (caught.value.accepted, caught.value.unclear) == (0, ())
    assert len(peer.requests) == 1


async def test_a_batch_with_unclear_outcome_is_not_sent_again_by_default(
    http_peer: StartHttp,
) -> None:
    peer = await http_peer(lambda number, _, body: BREAK_OFF if number == 1 else taken(body))
    async with Sender(peer.url, batch=2, concurrency=1, backoff=QUICK) as sender:
        with pytest.raises(NotAllSent, match=r"2 unclear.*retry_unclear=True") as caught:
            await sender.send("s", events(6))
    assert (caught.value.accepted, caught.value.unclear) == (2, (2, 3))
    assert len(peer.requests) == 2


async def test_a_batch_with_unclear_outcome_is_sent_again_on_request(http_peer: StartHttp) -> None:
    peer = await http_peer(lambda number, _, body: BREAK_OFF if number == 1 else taken(body))
    sender = Sender(peer.url, batch=2, concurrency=1, backoff=QUICK, retry_unclear=True)
    async with sender:
        assert (await sender.send("s", events(6))).accepted == 6
    assert [body for _, body in peer.requests].count(b'{"n":2}\n{"n":3}') == 2


async def test_only_events_that_the_log_did_not_confirm_are_unclear(
    http_peer: StartHttp,
) -> None:
    def script(number: int, _: str, body: bytes) -> Response:
        if number == 0:
            answer = {"accepted": 2, "receipts": [], "rejected": [], "unconfirmed": [1, 3]}
            return Response(503, {"detail": "Kafka is slow", **answer}, {"retry-after": "0"})
        return taken(body)

    peer = await http_peer(script)
    async with Sender(peer.url, backoff=QUICK) as sender:
        with pytest.raises(NotAllSent, match="Kafka is slow") as caught:
            await sender.send("s", events(4))
    assert (caught.value.accepted, caught.value.unclear) == (2, (1, 3))

    again = await http_peer(script)
    async with Sender(again.url, backoff=QUICK, retry_unclear=True) as sender:
        assert (await sender.send("s", events(4))).accepted == 4
    assert again.requests[1][1] == b'{"n":1}\n{"n":3}'


async def test_without_connection_the_outcome_is_clear_and_the_next_collector_is_used(
    http_peer: StartHttp,
) -> None:
    peer = await http_peer(lambda _, __, body: taken(body))
    async with Sender(NOBODY, peer.url, backoff=QUICK) as sender:
        assert (await sender.send("s", events(3))).accepted == 3
    async with Sender(NOBODY, patience=0.05, backoff=QUICK) as sender:
        with pytest.raises(NotAllSent, match="send the rest later") as caught:
            await sender.send("s", events(3))
    assert caught.value.unclear == ()


async def test_a_refusal_stops_sending_and_is_an_error(http_peer: StartHttp) -> None:
    peer = await http_peer(lambda *_: Response(404, {"detail": "there is no stream 's'"}))
    async with Sender(peer.url, batch=1, concurrency=1) as sender:
        with pytest.raises(NotAllSent, match="there is no stream 's'"):
            await sender.send("s", events(100))
    assert len(peer.requests) == 1


async def test_a_collector_that_failed_leaves_the_outcome_unclear(http_peer: StartHttp) -> None:
    peer = await http_peer(lambda *_: Response(500, {"detail": "the collector failed"}))
    async with Sender(peer.url) as sender:
        with pytest.raises(NotAllSent, match="the collector failed") as caught:
            await sender.send("s", events(2))
    assert caught.value.unclear == (0, 1)
