"""ASGI as far as the servers need it: reading a body within bounds, and answering."""

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
    """The sender went away before its request was complete; there is nobody to answer."""


async def send_response(
    send: Send, status: int, body: bytes, content_type: bytes, headers: HeaderList | None = None
) -> None:
    """Send a whole answer."""
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
    """Send what is wrong with a request."""
    await send_response(
        send, problem.status, _encode(problem.content), CONTENT_TYPE, problem.headers
    )


async def send_json(send: Send, content: Any, status: int = 200) -> None:
    """Send `content` as JSON."""
    await send_response(send, status, _encode(content), b"application/json")


async def send_empty(send: Send, status: int = 204) -> None:
    """Send an answer that has no content."""
    await send({"type": "http.response.start", "status": status, "headers": []})
    await send({"type": "http.response.body", "body": b""})


async def read_body(
    receive: Receive, announced: int, most: int, seconds: float, grow: Grow
) -> bytes:
    """The request's body; Problem 413 beyond `most` bytes, 408 after `seconds`.

    `grow` is awaited for each piece of it, before the next one is read.
    """
    if announced > most:
        await _discard(receive, most, seconds)
        raise _too_large(most)
    message = await receive()
    if message["type"] == "http.disconnect":
        raise Disconnected
    body: bytes = message["body"]
    if not message["more_body"]:
        if len(body) > most:
            raise _too_large(most)
        await grow(len(body))
        return body
    return await _read_rest(receive, body, most, seconds, grow)


async def _read_rest(receive: Receive, body: bytes, most: int, seconds: float, grow: Grow) -> bytes:
    chunks, length, more = [body], len(body), True
    try:
        async with asyncio.timeout(seconds):
            while more and length <= most:
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
    if length > most:
        if more:
            await _discard(receive, most, seconds)
        raise _too_large(most)
    await grow(len(chunks[-1]))
    return b"".join(chunks)


async def _discard(receive: Receive, most: int, seconds: float) -> None:
    # A sender that is still sending when the connection closes may never see the answer; so take in
    # and forget a bounded amount more.
    length, more = 0, True
    try:
        async with asyncio.timeout(seconds):
            while more and length <= most:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise Disconnected
                length += len(message["body"])
                more = message["more_body"]
    except TimeoutError:
        return


def _too_large(most: int) -> Problem:
    return Problem(
        413,
        f"the body is larger than {most} bytes; split it into several requests, or raise "
        "collect.max_body",
        headers=[CLOSE],
        max_body=most,
    )
