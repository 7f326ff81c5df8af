"""Requests over HTTP when some servers are away."""

from __future__ import annotations

from urllib.parse import parse_qsl, unquote

import httpx
import pytest
from tests.client.scripted_servers import BREAK_OFF, Response, StartHttp

from millstream.client import Client, Rows
from millstream.client.messages import QueryColumn, Table
from millstream.client.servers import Servers
from millstream.errors import NotReachable, QueryError, RequestRefused, SettingsError

NOBODY = "http://127.0.0.1:9"
ROWS = {"view": "v", "position": "e:0=1", "rows": [{"city": "Köln", "n": 1}]}


async def test_a_snapshot_sends_its_parameters(http_peer: StartHttp) -> None:
    peer = await http_peer(lambda *_: Response(body=ROWS))
    async with Client(peer.url) as client:
        rows = await client.snapshot(
            "v", where="n > 0", select=["city", "n"], order="n DESC", limit=5
        )
    assert rows == Rows("v", "e:0=1", [{"city": "Köln", "n": 1}])
    path, _, asked = peer.requests[0][0].split()[1].partition("?")
    assert path == "/v1/views/v"
    assert dict(parse_qsl(asked)) == {
        "where": "n > 0",
        "select": "city,n",
        "order": "n DESC",
        "limit": "5",
    }


async def test_the_next_server_is_asked_when_one_is_away_and_kept_while_it_answers(
    http_peer: StartHttp,
) -> None:
    broken = await http_peer(lambda *_: BREAK_OFF)
    starting = await http_peer(lambda *_: Response(503, {"detail": "catching up"}))
    ready = await http_peer(lambda *_: Response(body={"views": [{"name": "v"}]}))
    async with Client(NOBODY, broken.url, starting.url, ready.url) as client:
        assert await client.views() == [{"name": "v"}]
        assert await client.views() == [{"name": "v"}]
    assert [len(peer.requests) for peer in (broken, starting, ready)] == [1, 1, 2]


async def test_an_error_says_which_servers_were_tried_and_why_none_answered(
    http_peer: StartHttp,
) -> None:
    peer = await http_peer(lambda *_: Response(503, {"detail": "catching up"}))
    async with Client(NOBODY, peer.url) as client:
        with pytest.raises(NotReachable) as caught:
            await client.system()
    assert "catching up" in str(caught.value)
    assert NOBODY in str(caught.value)
    assert caught.value.retry


async def test_an_error_without_message_is_shown_by_its_name() -> None:
    def never(request: httpx.Request) -> httpx.Response:
        raise httpx.ReadTimeout("", request=request)  # so it comes from a server that hangs

    async with httpx.AsyncClient(transport=httpx.MockTransport(never)) as http:
        with pytest.raises(NotReachable, match=f"cannot GET /v1/system: {NOBODY}: ReadTimeout"):
            await Servers((NOBODY,)).request(http, "GET", "/v1/system")


async def test_the_error_for_a_wrong_query_has_the_servers_words(http_peer: StartHttp) -> None:
    peer = await http_peer(lambda *_: Response(400, {"title": "Bad", "detail": "no table 'x'"}))
    async with Client(peer.url) as client:
        with pytest.raises(QueryError, match="no table 'x'"):
            await client.query("SELECT * FROM x")


async def test_a_query_gives_columns_and_rows(http_peer: StartHttp) -> None:
    body = {
        "columns": [{"name": "n", "type": "BIGINT"}],
        "rows": [[1], [2]],
        "truncated": True,
        "elapsed_ms": 1.5,
    }
    peer = await http_peer(lambda *_: Response(body=body))
    async with Client(peer.url) as client:
        table = await client.query("SELECT n FROM v", limit=2)
    assert table == Table([QueryColumn("n", "BIGINT")], [[1], [2]], True, 1.5)
    assert peer.requests[0][1] == b'{"sql":"SELECT n FROM v","limit":2}'


async def test_a_row_is_found_by_the_values_of_its_key(http_peer: StartHttp) -> None:
    peer = await http_peer(lambda *_: Response(body={"key": ["de", "Köln"], "row": {"n": 1}}))
    async with Client(peer.url) as client:
        assert await client.get("v", "de", "Köln") == {"n": 1}
    assert unquote(peer.requests[0][0].split()[1]) == '/v1/views/v/["de","Köln"]'


async def test_a_missing_key_gives_none_and_another_refusal_is_an_error(
    http_peer: StartHttp,
) -> None:
    statuses = iter([404, 410])
    peer = await http_peer(lambda *_: Response(next(statuses), {"title": "Gone"}))
    async with Client(peer.url) as client:
        assert await client.get("v", "Köln") is None
        with pytest.raises(RequestRefused, match="Gone") as caught:
            await client.get("v", "Köln")
    assert caught.value.status == 410


@pytest.mark.parametrize("url", ["localhost:8500", "ws://localhost:8500", ""])
def test_an_invalid_address_is_refused_with_an_example(url: str) -> None:
    with pytest.raises(SettingsError, match="http://host:port"):
        Client(url)


def test_no_address_at_all_is_refused() -> None:
    with pytest.raises(SettingsError, match="give one: http:"):
        Client()
