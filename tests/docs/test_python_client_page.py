"""The snippets of docs/guides/python_client.md do what the page says, against a scripted system."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from tests.client.scripted_servers import Response, StartHttp, StartSocket
from tests.docs.pages import read, snippets
from websockets.asyncio.server import ServerConnection

(_, FOLLOWING), (_, SENDING) = snippets(read("docs/guides/python_client.md"))


def names_of(snippet: str) -> dict[str, Any]:
    names: dict[str, Any] = {}
    exec(snippet.replace("asyncio.run(main())", ""), names)
    return names


async def test_following(socket_peer: StartSocket, capsys: pytest.CaptureFixture[str]) -> None:
    done = asyncio.Event()

    async def script(_: int, connection: ServerConnection) -> None:
        row = {"key": ["Köln"], "row": {"rsvps": 11}}
        for message in (
            {"type": "snapshot", "position": "e:0=1", "rows": [row]},
            {"type": "change", "op": "upsert", "position": "e:0=2", **row},
            {"type": "change", "op": "delete", "position": "e:0=3", "key": ["Köln"], "row": None},
            {"type": "gap", "asked": "e:0=1", "position": "e:0=3", "reason": "too old"},
            {"type": "lag", "behind": 7, "position": "e:0=3"},
        ):
            await connection.send(json.dumps(message))
        await connection.wait_closed()
        done.set()

    peer = await socket_peer(script)
    main = names_of(FOLLOWING.replace("http://127.0.0.1:8500", peer.url))["main"]
    following = asyncio.create_task(main())
    printed = ""
    async with asyncio.timeout(10):
        while "7 changes behind" not in printed:
            await asyncio.sleep(0.01)
            printed += capsys.readouterr().out
        following.cancel()
        await done.wait()
    assert "gap: too old" in printed


async def test_sending(http_peer: StartHttp, capsys: pytest.CaptureFixture[str]) -> None:
    answer = {"accepted": 1, "receipts": ["r"], "rejected": []}
    peer = await http_peer(lambda *_: Response(body=answer))
    await names_of(SENDING.replace("http://127.0.0.1:8400", peer.url))["send"]()
    assert capsys.readouterr().out == "1 []\n"
