"""Changes over HTTP: server-sent events, or a long poll for clients that cannot read a stream."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import msgspec

from millstream.errors import QueryError
from millstream.serve.api.snapshots import SELECTION_PARAMETERS, read_selection
from millstream.serve.connections import SubscriptionReport, Traffic
from millstream.serve.context import Context
from millstream.serve.http import HttpRequest, Response, send_head
from millstream.serve.views.encoding import EventStreamFormat, MessageFormat, encode
from millstream.serve.views.served_view import ServedView
from millstream.serve.views.subscription import Subscription
from millstream.values.position import Position
from millstream.web.asgi import Send

_MAX_WAIT = 60.0
_KEEP_ALIVE_SECONDS = 15.0
_SLOW_SECONDS = 1.0
_PAGE_BYTES = 1 << 20  # of changes in the answer to a poll, about
_HINT = (
    "this is a long poll: ask again with after=<position>; for a stream of events send the header "
    "Accept: text/event-stream (curl -N -H 'Accept: text/event-stream' …), or open a WebSocket to "
    "/v1/connect"
)
_EVENTS_LINK = b'<%b>; rel="alternate"; type="text/event-stream"'
_HEADERS = ((b"cache-control", b"no-store"), (b"vary", b"accept, authorization"))


def wants_events(request: HttpRequest) -> bool:
    return b"text/event-stream" in request.headers.get(b"accept", b"")


def _position(request: HttpRequest) -> Position | None:
    """The position to continue from, as `after` or as EventSource sends it."""
    text = request.query.get("after")
    text = text or request.headers.get(b"last-event-id", b"").decode("latin-1")
    return Position.parse(text) if text else None


class HttpSubscription:
    """An HTTP client's subscription; `wake_event` is set on news and when it ends."""

    def __init__(
        self,
        context: Context,
        subscription: Subscription,
        wake_event: asyncio.Event,
        request: HttpRequest,
    ) -> None:
        self.subscription = subscription
        self.wake_event = wake_event
        self._context = context
        self._disconnected = asyncio.ensure_future(_wait_for_disconnect(request))
        self._disconnected.add_done_callback(lambda _: wake_event.set())
        self._is_ended = False

    @property
    def ended(self) -> bool:
        return self._is_ended or self._disconnected.done() or self._context.closing

    def end(self) -> None:
        """Send nothing more."""
        self._is_ended = True
        self.wake_event.set()

    def close(self) -> None:
        self._disconnected.cancel()
        self.subscription.close()


class EventConnection:
    """A client of server-sent events, as one of the server's connections."""

    transport = "sse"

    def __init__(self, client: HttpSubscription, request: HttpRequest) -> None:
        self.caller = request.caller
        self.address = request.address
        self.traffic = Traffic()
        self.farewell = b""  # the last event
        self._client = client
        self._where = request.query.get("where") or None
        self._named = request.flag("named", default=True)

    def subscriptions(self) -> list[SubscriptionReport]:
        subscription = self._client.subscription
        served = subscription.served
        return [SubscriptionReport(served.kind, served.name, self._where, subscription.behind)]

    def close(self, code: int, reason: str) -> None:
        if not self._client.ended:
            closed = encode({"type": "closed", "code": code, "reason": reason})
            name = b"event: closed\n" if self._named else b""
            self.farewell = b"%bdata: %b\n\n" % (name, closed)
            self._client.end()

    def send_positions(self) -> None:
        """Nothing: `_send_messages` does so, because only it may write."""


@contextlib.asynccontextmanager
async def _subscribe(
    context: Context, request: HttpRequest, message_format: MessageFormat, kind: str, name: str
) -> AsyncIterator[HttpSubscription]:
    """A subscription as the request describes it, within the block."""
    after = _position(request)
    with context.wake_event() as wake_event:
        async with _open(context, request, kind, name) as served:
            visibility = context.visibility(kind, name, request.caller)
            selection = read_selection(request, visibility)
            subscription = Subscription(
                served, selection, message_format, wake_event.set, context.replay, after=after
            )
            client = HttpSubscription(context, subscription, wake_event, request)
            try:
                yield client
            finally:
                client.close()


@contextlib.asynccontextmanager
async def _open(
    context: Context, request: HttpRequest, kind: str, name: str
) -> AsyncIterator[ServedView]:
    """The view, stream or ledger of that name, up to date within the block."""
    if kind == "view":
        yield context.view(name, request.caller)
        return
    async with context.read_on_demand(kind, name, request.caller) as served:
        yield served


async def send_events(
    context: Context, request: HttpRequest, send: Send, kind: str, name: str
) -> None:
    """Send server-sent events until the client disconnects, as fast as it reads them."""
    request.refuse_unknown((*SELECTION_PARAMETERS, "after", "named"))
    context.connections.check_caller(request.caller)
    message_format = EventStreamFormat(named=request.flag("named", default=True))
    async with _subscribe(context, request, message_format, kind, name) as client:
        connection = EventConnection(client, request)
        context.connections.add(connection)
        try:
            headers = [*_HEADERS, (b"x-accel-buffering", b"no")]
            await send_head(send, 200, b"text/event-stream", headers)
            await _write(send, b"retry: 1000\n\n")
            await _send_messages(client, connection.traffic, send)
            await send({"type": "http.response.body", "body": connection.farewell})
        finally:
            context.connections.discard(connection)


async def _send_messages(client: HttpSubscription, traffic: Traffic, send: Send) -> None:
    clock, wake_event = asyncio.get_running_loop().time, client.wake_event
    while not client.ended:
        wake_event.clear()
        if messages := client.subscription.next_messages():
            began = clock()
            traffic.add(messages)
            await _write(send, b"".join(messages))  # returns when the client has read most of it
            if clock() - began > _SLOW_SECONDS:
                client.subscription.mark_slow()
            if client.subscription.has_more:
                await asyncio.sleep(0)
            continue
        try:
            await asyncio.wait_for(wake_event.wait(), _KEEP_ALIVE_SECONDS)
        except TimeoutError:
            # Only a write shows whether the connection still exists.
            await _write(send, client.subscription.refresh() or b": alive\n\n")


async def _write(send: Send, body: bytes) -> None:
    await send({"type": "http.response.body", "body": body, "more_body": True})


async def _wait_for_disconnect(request: HttpRequest) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


class PollFormat:
    """Collects the messages for one answer to a long poll.

    `skips_start`: all rows come as changes. The empty snapshot before them is then no answer,
    unless it follows a gap.
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


async def poll(context: Context, request: HttpRequest, kind: str, name: str) -> Response:
    """The changes since `after`, as soon as there is one; all rows if the log lacks some."""
    request.refuse_unknown((*SELECTION_PARAMETERS, "after", "wait"))
    wait = request.number("wait", 30.0, 0, _MAX_WAIT) or 0.0
    answer = PollFormat(skips_start=kind == "ledger" and "limit" not in request.query)
    async with _subscribe(context, request, answer, kind, name) as client:
        changes = await _collect(client, answer, wait)
        position = str(client.subscription.position)
        watermark = client.subscription.served.watermark_json
    if answer.error is not None:
        raise QueryError(msgspec.json.decode(answer.error)["detail"])
    link = _EVENTS_LINK % request.raw_path.encode("latin-1")
    gap, content = b"", b'"changes":[%b]' % b",".join(changes)
    if answer.rows is not None:
        # Changes after these rows come with the next poll, from the rows' position on.
        gap = b"" if answer.gap is None else b'"gap":%b,' % answer.gap
        position, watermark, content = answer.position, answer.watermark, answer.rows
    place = b'"position":"%b","watermark":%b' % (position.encode(), watermark)
    body = b"{%b%b,%b%b}" % (gap, place, content, _hint(request))
    return Response(body, headers=(*_HEADERS, (b"link", link)))


def _hint(request: HttpRequest) -> bytes:
    """A member with advice for people, whose requests have neither Accept nor a position."""
    if b"json" in request.headers.get(b"accept", b"") or _position(request) is not None:
        return b""
    return b',"hint":%b' % encode(_HINT)


async def _collect(client: HttpSubscription, answer: PollFormat, wait: float) -> list[bytes]:
    clock, subscription = asyncio.get_running_loop().time, client.subscription
    deadline = clock() + wait
    changes: list[bytes] = []
    while True:
        client.wake_event.clear()
        messages = subscription.next_messages(_PAGE_BYTES)
        while subscription.has_pending:  # the position of the answer is after them
            messages += subscription.next_messages(_PAGE_BYTES)
        changes += [message for message in messages if message]
        left = deadline - clock()
        if (
            answer.rows is not None
            or answer.error is not None
            or client.ended
            or sum(map(len, changes)) >= _PAGE_BYTES
        ):
            return changes
        if not subscription.is_busy and (changes or left <= 0):
            return changes
        with contextlib.suppress(TimeoutError):
            # Wait for a snapshot or a replay that has begun, even beyond the requested time.
            await asyncio.wait_for(client.wake_event.wait(), left if left > 0 else _MAX_WAIT)
