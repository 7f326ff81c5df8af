"""Changes over HTTP: server-sent events, or a long poll for clients that cannot read a stream."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import msgspec

from millstream.errors import QueryError
from millstream.serve.answer import Answer, Request, Send, start
from millstream.serve.api.snapshots import ASKED, asked
from millstream.serve.context import State
from millstream.serve.views.encoding import EventFrame, Frame, encode
from millstream.serve.views.served_view import Live
from millstream.serve.views.subscription import Subscription
from millstream.values.position import Position

_MAX_WAIT = 60.0
_ALIVE_SECONDS = 15.0
_SLOW_SECONDS = 1.0
_PAGE_BYTES = 1 << 20  # of changes in the answer to a poll, about
_HINT = (
    "this is a long poll: ask again with after=<position>; for a stream of events send the header "
    "Accept: text/event-stream (curl -N -H 'Accept: text/event-stream' …), or open a WebSocket to "
    "/v1/connect"
)


_EVENTS_LINK = b'<%b>; rel="alternate"; type="text/event-stream"'
_VARIED = ((b"cache-control", b"no-store"), (b"vary", b"accept"))


def wants_events(request: Request) -> bool:
    return b"text/event-stream" in request.headers.get(b"accept", b"")


@contextlib.asynccontextmanager
async def opened(state: State, kind: str, name: str) -> AsyncIterator[Live]:
    """The view, stream or ledger of that name, kept up to date while it is used."""
    if kind == "view":
        yield state.view(name)
        return
    async with state.read_on_demand(kind, name) as live:
        yield live


def resume_from(request: Request) -> Position | None:
    text = request.query.get("after") or request.headers.get(b"last-event-id", b"").decode(
        "latin-1"
    )
    return Position.parse(text) if text else None


class Listening:
    """An HTTP client's subscription, and what wakes or ends its answer."""

    def __init__(
        self, state: State, subscription: Subscription, awake: asyncio.Event, request: Request
    ) -> None:
        self.subscription = subscription
        self.awake = awake
        self._state = state
        self._gone = asyncio.ensure_future(_disconnected(request))
        self._gone.add_done_callback(lambda _: awake.set())

    @property
    def ended(self) -> bool:
        return self._gone.done() or self._state.closing

    def close(self) -> None:
        self._gone.cancel()
        self.subscription.close()


@contextlib.asynccontextmanager
async def listening(
    state: State, request: Request, frame: Frame, kind: str, name: str
) -> AsyncIterator[Listening]:
    """The subscription that a request asks for, as long as it lasts."""
    wanted, after = asked(request), resume_from(request)
    with state.awake() as awake:
        async with opened(state, kind, name) as live:
            subscription = Subscription(live, wanted, frame, awake.set, state.replay, after=after)
            client = Listening(state, subscription, awake, request)
            try:
                yield client
            finally:
                client.close()


async def send_events(state: State, request: Request, send: Send, kind: str, name: str) -> None:
    """Server-sent events until the client leaves. What it does not read, we do not produce."""
    request.refuse_unknown((*ASKED, "after", "named"))
    frame = EventFrame(named=request.flag("named", default=True))
    async with listening(state, request, frame, kind, name) as client:
        state.event_clients += 1
        try:
            headers = (*_VARIED, (b"x-accel-buffering", b"no"))
            await start(send, 200, b"text/event-stream", headers)
            await _write(send, b"retry: 1000\n\n")
            await _pump(client, send)
            await send({"type": "http.response.body", "body": b""})
        finally:
            state.event_clients -= 1


async def _pump(client: Listening, send: Send) -> None:
    clock, awake = asyncio.get_running_loop().time, client.awake
    while not client.ended:
        awake.clear()
        if messages := client.subscription.take():
            began = clock()
            await _write(send, b"".join(messages))  # returns when the client has taken most of it
            if clock() - began > _SLOW_SECONDS:
                client.subscription.stall()
            if client.subscription.has_more:
                await asyncio.sleep(0)
            continue
        try:
            await asyncio.wait_for(awake.wait(), _ALIVE_SECONDS)
        except TimeoutError:
            # A write tells a dead connection from a quiet view.
            await _write(send, client.subscription.refresh() or b": alive\n\n")


async def _write(send: Send, body: bytes) -> None:
    await send({"type": "http.response.body", "body": body, "more_body": True})


async def _disconnected(request: Request) -> None:
    assert request.receive is not None
    while (await request.receive())["type"] != "http.disconnect":
        pass


class PollFrame:
    """A long poll's answer is put together at its end; until then messages are JSON parts.

    `skips_start`: where all rows come as changes, the snapshot before them is no answer by itself,
    unless it tells to begin anew.
    """

    def __init__(self, *, skips_start: bool = False) -> None:
        self._skips_start = skips_start
        self.gap: bytes | None = None
        self.error: bytes | None = None  # why there are no rows
        self.rows: bytes | None = None
        self.position = ""  # of the rows
        self.watermark = b"null"  # then

    def change(self, body: bytes, position: bytes) -> bytes:
        return b'{%b%b"}' % (body, position)

    def message(self, kind: str, position: str, fields: bytes) -> bytes:
        if kind == "gap":
            self.gap = b'{"position":"%b",%b}' % (position.encode(), fields)
        elif kind == "error":
            self.error = b"{%b}" % fields
        elif kind == "snapshot" and not (self._skips_start and self.gap is None):
            watermark, _, self.rows = fields.split(b",", 2)  # the second one is the name
            self.watermark = watermark.removeprefix(b'"watermark":')
            self.position = position
        return b""


async def poll(state: State, request: Request, kind: str, name: str) -> Answer:
    """The changes since `after`, as soon as there is one; the rows if that is not held."""
    request.refuse_unknown((*ASKED, "after", "wait"))
    wait = request.number("wait", 30.0, 0, _MAX_WAIT) or 0.0
    frame = PollFrame(skips_start=kind == "ledger" and "limit" not in request.query)
    async with listening(state, request, frame, kind, name) as client:
        changes = await _collect(client, frame, wait)
        position = str(client.subscription.position)
        watermark = client.subscription.live.watermark_json
    if frame.error is not None:
        raise QueryError(msgspec.json.decode(frame.error)["detail"])
    headers = (*_VARIED, (b"link", _EVENTS_LINK % request.raw_path.encode("latin-1")))
    hint = _hint(request)
    if frame.rows is not None:
        # What changed since these rows comes with the next poll, from their position on.
        gap = b"" if frame.gap is None else b'"gap":%b,' % frame.gap
        body = b'{%b"position":"%b","watermark":%b,%b%b}' % (
            *(gap, frame.position.encode(), frame.watermark),
            *(frame.rows, hint),
        )
        return Answer(body, headers=headers)
    body = b'{"position":"%b","watermark":%b,"changes":[%b]%b}' % (
        *(position.encode(), watermark),
        *(b",".join(changes), hint),
    )
    return Answer(body, headers=headers)


def _hint(request: Request) -> bytes:
    """A member for people who try it out: they say neither what they accept nor where they are."""
    if b"json" in request.headers.get(b"accept", b"") or resume_from(request) is not None:
        return b""
    return b',"hint":%b' % encode(_HINT)


async def _collect(client: Listening, frame: PollFrame, wait: float) -> list[bytes]:
    clock, subscription = asyncio.get_running_loop().time, client.subscription
    deadline = clock() + wait
    changes: list[bytes] = []
    while True:
        client.awake.clear()
        messages = subscription.take(_PAGE_BYTES)
        while subscription.has_ready:  # the position of the answer is after them
            messages += subscription.take(_PAGE_BYTES)
        changes += [message for message in messages if message]
        left = deadline - clock()
        if (
            frame.rows is not None
            or frame.error is not None
            or client.ended
            or sum(map(len, changes)) >= _PAGE_BYTES
        ):
            return changes
        if not subscription.is_busy and (changes or left <= 0):
            return changes
        with contextlib.suppress(TimeoutError):
            # A snapshot or a replay that is under way is waited for, whatever was asked.
            await asyncio.wait_for(client.awake.wait(), left if left > 0 else _MAX_WAIT)
