"""Changes over HTTP: server-sent events, or a long poll for those who can do no more."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from millstream.position import Position
from millstream.serve.answer import Answer, Request, Send, start
from millstream.serve.live import Live
from millstream.serve.shape import EventFrame
from millstream.serve.state import State
from millstream.serve.subscription import Subscription
from millstream.serve.views import ASKED, asked

_MAX_WAIT = 60.0
_ALIVE_SECONDS = 15.0
_SLOW_SECONDS = 1.0


def wants_events(request: Request) -> bool:
    return b"text/event-stream" in request.headers.get(b"accept", b"")


@contextlib.asynccontextmanager
async def opened(state: State, kind: str, name: str) -> AsyncIterator[Live]:
    """The view or stream of that name, kept up to date while it is used."""
    if kind == "view":
        yield state.view(name)
        return
    async with state.streams.use(state.stream(name)) as live:
        yield live


def resume_from(request: Request) -> Position | None:
    text = request.query.get("after") or request.headers.get(b"last-event-id", b"").decode(
        "latin-1"
    )
    return Position.parse(text) if text else None


async def send_events(state: State, request: Request, send: Send, kind: str, name: str) -> None:
    """Server-sent events until the client leaves. What it does not read, we do not produce."""
    request.refuse_unknown((*ASKED, "after"))
    wanted, after = asked(request), resume_from(request)
    awake = asyncio.Event()
    async with opened(state, kind, name) as live:
        subscription = Subscription(
            live, wanted, EventFrame(), awake.set, state.replay, after=after
        )
        state.event_clients += 1
        gone = asyncio.ensure_future(_disconnected(request))
        gone.add_done_callback(lambda _: awake.set())
        try:
            headers = ((b"cache-control", b"no-store"), (b"x-accel-buffering", b"no"))
            await start(send, 200, b"text/event-stream", headers)
            await _pump(subscription, send, awake, gone)
        finally:
            gone.cancel()
            state.event_clients -= 1
            subscription.close()


async def _pump(
    subscription: Subscription, send: Send, awake: asyncio.Event, gone: asyncio.Future[None]
) -> None:
    clock = asyncio.get_running_loop().time
    await send({"type": "http.response.body", "body": b"retry: 1000\n\n", "more_body": True})
    while not gone.done():
        awake.clear()
        if messages := subscription.take():
            began = clock()
            body = b"".join(messages)
            await send({"type": "http.response.body", "body": body, "more_body": True})
            if clock() - began > _SLOW_SECONDS:
                subscription.stall()
            awake.set()
        try:
            await asyncio.wait_for(awake.wait(), _ALIVE_SECONDS)
        except TimeoutError:
            # Tells a dead connection from a quiet view, and a filter's client how far it has come.
            alive = subscription.heartbeat()
            await send({"type": "http.response.body", "body": alive, "more_body": True})


async def _disconnected(request: Request) -> None:
    assert request.receive is not None
    while (await request.receive())["type"] != "http.disconnect":
        pass


class PollFrame:
    """A long poll's answer is put together at its end; until then messages are JSON parts."""

    def __init__(self) -> None:
        self.gap: bytes | None = None
        self.rows: bytes | None = None

    def change(self, body: bytes, position: bytes) -> bytes:
        return b'{%b%b"}' % (body, position)

    def message(self, kind: str, position: str, fields: bytes) -> bytes:
        if kind == "gap":
            self.gap = b'{"position":"%b",%b}' % (position.encode(), fields)
        elif kind == "snapshot":
            self.rows = fields[fields.index(b',"rows":') + 1 :]
        return b""


async def poll(state: State, request: Request, kind: str, name: str) -> Answer:
    """The changes since `after`, as soon as there is one; the rows if that is not held."""
    request.refuse_unknown((*ASKED, "after", "wait"))
    wanted, after = asked(request), resume_from(request)
    wait = request.number("wait", 30.0, 0, _MAX_WAIT) or 0.0
    frame, awake = PollFrame(), asyncio.Event()
    async with opened(state, kind, name) as live:
        subscription = Subscription(live, wanted, frame, awake.set, state.replay, after=after)
        gone = asyncio.ensure_future(_disconnected(request))
        gone.add_done_callback(lambda _: awake.set())
        try:
            changes = await _collect(subscription, frame, awake, gone, wait)
        finally:
            gone.cancel()
            subscription.close()
        position = b'"position":"%b"' % str(subscription.position).encode()
    headers = ((b"cache-control", b"no-store"),)
    if frame.rows is not None:
        gap = b"" if frame.gap is None else b'"gap":%b,' % frame.gap
        return Answer(b"{%b%b,%b}" % (gap, position, frame.rows), headers=headers)
    return Answer(b'{%b,"changes":[%b]}' % (position, b",".join(changes)), headers=headers)


async def _collect(
    subscription: Subscription,
    frame: PollFrame,
    awake: asyncio.Event,
    gone: asyncio.Future[None],
    wait: float,
) -> list[bytes]:
    deadline = asyncio.get_running_loop().time() + wait
    while True:
        awake.clear()
        changes = [message for message in subscription.take(1 << 20) if message]
        left = deadline - asyncio.get_running_loop().time()
        if changes or frame.rows is not None or gone.done():
            return changes
        if left <= 0 and not subscription.is_busy:
            return changes
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(awake.wait(), max(left, 0.05))
