"""Opens and reads one endless HTTP response."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import AsyncIterator, Mapping

import httpx

from millstream.connectors.reading.reconnecting_reader import ConnectionLost
from millstream.connectors.settings import SourceSettings
from millstream.syntax.urls import without_secrets

_OPEN_SECONDS = 10.0
_MOST_RETRY_AFTER = 3600.0

# Their lower levels log URLs and headers, which hold secrets.
for _name in ("httpx", "httpcore"):
    logging.getLogger(_name).setLevel(logging.WARNING)


class UnexpectedStatus(ConnectionLost):
    """The status was not 200; `retry_after` is the pause that the server requests, in seconds."""

    def __init__(self, text: str, retry_after: float = 0.0) -> None:
        super().__init__(text)
        self.retry_after = retry_after


@contextlib.asynccontextmanager
async def open_response(
    url: str, headers: Mapping[str, str | bytes], settings: SourceSettings
) -> AsyncIterator[httpx.Response]:
    """The response, if its status is 200; else ConnectionLost, without secrets."""
    transport = httpx.AsyncHTTPTransport(socket_options=keepalive_options(settings))
    # `read_chunks` has the timeout for the next chunk: it knows the source's `silence`.
    timeout = httpx.Timeout(_OPEN_SECONDS, read=None)
    wanted: dict[str, str | bytes] = {"accept-encoding": "identity", **headers}
    try:
        async with httpx.AsyncClient(transport=transport, timeout=timeout) as client:
            request = client.build_request("GET", url, headers=_encoded(wanted))
            try:
                async with asyncio.timeout(_OPEN_SECONDS):
                    response = await client.send(request, stream=True, follow_redirects=True)
            except TimeoutError:
                raise ConnectionLost(f"no answer in {_OPEN_SECONDS:g} s") from None
            try:
                _check(response)
                yield response
            finally:
                await response.aclose()
    except httpx.LocalProtocolError:  # its text quotes the header
        raise ConnectionLost("a header of the source cannot be sent") from None
    except (httpx.HTTPError, httpx.InvalidURL, httpx.StreamError) as error:
        raise ConnectionLost(
            str(error).replace(url, without_secrets(url)) or type(error).__name__
        ) from None


async def read_chunks(response: httpx.Response, silence: float | None) -> AsyncIterator[bytes]:
    """The body as it arrives; ConnectionLost after `silence` seconds without any bytes.

    The time that the caller spends on a chunk does not count as silence.
    """
    body = response.aiter_raw()
    while True:
        try:
            async with asyncio.timeout(silence):
                chunk = await anext(body)
        except StopAsyncIteration:
            return
        except TimeoutError:
            raise ConnectionLost(f"no data for {silence:g} s") from None
        yield chunk


def keepalive_options(settings: SourceSettings) -> list[tuple[int, int, int]]:
    """Socket options by which the kernel detects that a silent peer's machine is gone."""
    probe = max(1, round(settings.ping_timeout / 3))
    return [
        (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
        (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, max(1, round(settings.ping_after))),
        (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, probe),
        (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
    ]


def _encoded(headers: Mapping[str, str | bytes]) -> list[tuple[bytes, bytes]]:
    return [
        (name.encode("ascii"), value if isinstance(value, bytes) else value.encode())
        for name, value in headers.items()
    ]


def _check(response: httpx.Response) -> None:
    if response.status_code != 200:
        text = f"it answers {response.status_code} {response.reason_phrase}".rstrip()
        written = response.headers.get("retry-after", "")
        wait = min(float(written), _MOST_RETRY_AFTER) if written.isdecimal() else 0.0
        raise UnexpectedStatus(text, wait)
    if (encoding := response.headers.get("content-encoding", "identity")) != "identity":
        raise ConnectionLost(f"it answers in {encoding[:20]}, though asked not to")
