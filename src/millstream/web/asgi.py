"""ASGI: its types, sending responses, and reading bodies within limits."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import msgspec

from millstream.web.problem import CLOSE, CONTENT_TYPE, Problem

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]
Grow = Callable[[int], Awaitable[None]]
HeaderList = list[tuple[bytes, bytes]]

_encode = msgspec.json.encode


class Disconnected(Exception):
    """The client disconnected before its request was complete; there is nobody to answer."""


async def send_response(
    send: Send, status: int, body: bytes, content_type: bytes, headers: HeaderList | None = None
) -> None:
    """Send a complete response."""
    await send(
        {
            "type": "http.response.start",
            "status": status,
            "headers": [
                (b"content-type", content_type),
                (b"content-length", str(len(body)).encode()),
                *(headers or ()),
            ],
        }
    )
    await send({"type": "http.response.body", "body": body})


async def send_problem(send: Send, problem: Problem) -> None:
    """Send an error as problem+json."""
    body = _encode(problem.content)
    await send_response(send, problem.status, body, CONTENT_TYPE, problem.headers)


async def send_json(send: Send, content: Any, status: int = 200) -> None:
    """Send `content` as JSON."""
    await send_response(send, status, _encode(content), b"application/json")


async def send_empty(send: Send, status: int = 204) -> None:
    """Send a response without content."""
    await send({"type": "http.response.start", "status": status, "headers": []})
    await send({"type": "http.response.body", "body": b""})


async def read_body(
    receive: Receive,
    announced: int,
    limit: int,
    seconds: float,
    grow: Grow | None = None,
    remedy: str = "",
) -> bytes:
    """The request's body; Problem 413 beyond `limit` bytes, 408 after `seconds`.

    `announced` is its Content-Length, 0 if there is none. `grow` is awaited with the size of each
    piece of the body, before the next one is read. `remedy` tells clients what to do after a 413.
    """
    if announced > limit:
        await _discard(receive, limit, seconds)
        raise _too_large(limit, remedy)
    message = await receive()
    if message["type"] == "http.disconnect":
        raise Disconnected
    chunks: list[bytes] = [message["body"]]
    length, more = len(chunks[0]), message["more_body"]
    if more:
        try:
            async with asyncio.timeout(seconds):
                while more and length <= limit:
                    if grow is not None:
                        await grow(len(chunks[-1]))
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise Disconnected
                    chunks.append(message["body"])
                    length += len(message["body"])
                    more = message["more_body"]
        except TimeoutError:
            raise Problem(
                408,
                f"the body was not complete after {seconds:g} s; send it faster, or in parts",
                headers=[CLOSE],
            ) from None
    if length > limit:
        if more:
            await _discard(receive, limit, seconds)
        raise _too_large(limit, remedy)
    if grow is not None:
        await grow(len(chunks[-1]))
    return chunks[0] if len(chunks) == 1 else b"".join(chunks)


async def _discard(receive: Receive, limit: int, seconds: float) -> None:
    # A client that is still sending when the connection closes may never see the response. So read
    # and drop a limited amount more.
    length, more = 0, True
    try:
        async with asyncio.timeout(seconds):
            while more and length <= limit:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise Disconnected
                length += len(message["body"])
                more = message["more_body"]
    except TimeoutError:
        return


def _too_large(limit: int, remedy: str) -> Problem:
    return Problem(
        413,
        f"the body is larger than {limit} bytes",
        remedy=remedy,
        headers=[CLOSE],
        max_body=limit,
    )
