"""Changes over HTTP: server-sent events, or a long poll for clients that cannot read a stream."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

import msgspec

from millstream.errors import QueryError
from millstream.serve.api.snapshots import SELECTION_PARAMETERS, read_selection
from millstream.serve.connections import SERVICE_RESTART, SubscriptionReport, Traffic
from millstream.serve.context import Context
from millstream.serve.http import HttpRequest, Response, send_head
from millstream.serve.queries.live_subscription import LiveSubscriber, LiveSubscription
from millstream.serve.queries.parameters import values_from_texts
from millstream.serve.subscriptions.pace import Pace, SlowPolicy
from millstream.serve.subscriptions.subscription import Subscription
from millstream.serve.transports.follow_query import follow_named_query
from millstream.serve.views.encoding import (
    EventStreamFormat,
    MessageFormat,
    SnapshotPage,
    encode,
)
from millstream.serve.views.replay import Start, read_start
from millstream.serve.views.served_view import ServedView
from millstream.web.asgi import Send
from millstream.web.problem import Problem

_MAX_WAIT = 60.0
_KEEP_ALIVE_SECONDS = 15.0
_SLOW_SECONDS = 1.0
_MOVE_MS = 100  # before a client connects to another server
_PAGE_BYTES = 1 << 20  # of changes in the answer to a poll, about
_MAX_POLL_BYTES = 16 << 20  # of rows in the answer to a poll, about
# A client over HTTP ends its own request; nobody needs to disconnect it.
_WHEN_SLOW: dict[str, SlowPolicy] = {
    "buffer": "buffer",
    "conflate": "conflate",
    "sample": "sample",
    "catch_up": "buffer",
}
_QUERY_PARAMETERS = ("after", "named", "wait")
_RATES = ("sample", "max_rate", "max_rate_per_key")
_TRUNCATED = (
    "these rows are not all: the answer would be too large; send the header "
    "Accept: text/event-stream to get them in pages, open a WebSocket, or use where"
)
_HINT = (
    "this is a long poll: ask again with after=<position>; for a stream of events send the header "
    "Accept: text/event-stream (curl -N -H 'Accept: text/event-stream' …), or open a WebSocket to "
    "/v1/connect"
)
_EVENTS_LINK = b'<%b>; rel="alternate"; type="text/event-stream"'
_HEADERS = ((b"cache-control", b"no-store"), (b"vary", b"accept, authorization"))


def wants_events(request: HttpRequest) -> bool:
    return b"text/event-stream" in request.headers.get(b"accept", b"")


def _after(request: HttpRequest) -> str | None:
    """The position that EventSource sends when it reconnects, or `after`."""
    position = request.headers.get(b"last-event-id", b"").decode("latin-1")
    return position or request.query.get("after") or None


def _start(request: HttpRequest) -> Start | None:
    """Where to continue."""
    return read_start(_after(request))


def _pace(request: HttpRequest) -> Pace:
    """How fast the client wants changes."""
    given = request.query.get("when_slow", "buffer")
    when_slow = _WHEN_SLOW.get(given)
    if when_slow is None:
        names = ", ".join(name for name in _WHEN_SLOW if name != "catch_up")
        raise Problem(400, f"when_slow={given[:40]!r} is unknown here", remedy=f"use {names}")
    rates = {name: request.number(name, None, 0, 1e9) for name in _RATES}
    return Pace(when_slow, **rates)


class HttpSubscription:
    """An HTTP client's subscription; `wake_event` is set on news and when it ends."""

    def __init__(
        self,
        context: Context,
        subscription: Subscription | LiveSubscription,
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

    @property
    def must_answer(self) -> bool:
        """Whether a long poll must be answered now, because the server is about to end."""
        return self.ended or self._context.draining

    def end(self, code: int = 0, reason: str = "") -> None:
        """Send nothing more. An answer to a poll has no place for a code."""
        self._is_ended = True
        self.wake_event.set()

    def close(self) -> None:
        self._disconnected.cancel()
        self.subscription.close()


class EventConnection:
    """A client of server-sent events, as one of the server's connections."""

    transport = "sse"

    def __init__(self, context: Context, client: HttpSubscription, request: HttpRequest) -> None:
        self.caller = request.caller
        self.address = request.address
        self.traffic = Traffic(context.connections.usage.of(request.caller))
        self.farewell = b""  # the last event
        self._client = client
        self._named = request.flag("named", default=True)

    def subscriptions(self) -> list[SubscriptionReport]:
        return [self._client.subscription.report]

    def close(self, code: int, reason: str) -> None:
        if not self._client.ended:
            closed = encode({"type": "closed", "code": code, "reason": reason})
            name = b"event: closed\n" if self._named else b""
            # EventSource connects again after `retry`; the next server sets it back.
            retry = b"retry: %d\n\n" % _MOVE_MS if code == SERVICE_RESTART else b""
            self.farewell = b"%b%bdata: %b\n\n" % (retry, name, closed)
            self._client.end()

    def send_positions(self) -> None:
        """Nothing: `_send_messages` does so, because only it may write."""


@contextlib.asynccontextmanager
async def _subscribe(
    context: Context, request: HttpRequest, message_format: MessageFormat, kind: str, name: str
) -> AsyncIterator[HttpSubscription]:
    """A subscription as the request describes it, within the block."""
    with context.wake_event() as wake_event:
        opening = _follow(context, request, message_format, wake_event.set, kind, name)
        async with opening as subscription:
            client = HttpSubscription(context, subscription, wake_event, request)
            try:
                yield client
            finally:
                client.close()


@contextlib.asynccontextmanager
async def _follow(
    context: Context,
    request: HttpRequest,
    message_format: MessageFormat,
    wake: Callable[[], None],
    kind: str,
    name: str,
) -> AsyncIterator[Subscription | LiveSubscription]:
    if kind == "query":
        query = context.queries.find(name, request.caller)
        values = values_from_texts(query.declared, request.query, _QUERY_PARAMETERS)
        subscriber = LiveSubscriber(request.caller, message_format, wake, _after(request))
        yield follow_named_query(context, query, values, subscriber)
        return
    after, pace = _start(request), _pace(request)
    async with _open(context, request, kind, name) as served:
        visibility = context.visibility(kind, name, request.caller)
        selection = read_selection(request, visibility)
        yield Subscription(
            served, selection, message_format, wake, context.replay, after=after, pace=pace
        )


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
    if kind != "query":  # it has parameters of its own
        request.refuse_unknown((*SELECTION_PARAMETERS, "after", "named", "when_slow", *_RATES))
    context.connections.check_caller(request.caller)
    message_format = EventStreamFormat(named=request.flag("named", default=True))
    async with _subscribe(context, request, message_format, kind, name) as client:
        connection = EventConnection(context, client, request)
        context.connections.add(connection)
        try:
            headers = [*_HEADERS, (b"x-accel-buffering", b"no")]
            await send_head(send, 200, b"text/event-stream", headers)
            await _write(send, b"retry: 1000\n\n")
            with context.logins.watched(request.caller, connection.close):
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
        self._pages: list[bytes] = []  # of rows
        self._head = b""
        self.gap: bytes | None = None
        self.error: bytes | None = None  # why there are no rows
        self.is_cut = False  # there are more rows than an answer may have
        self.has_rows = False  # all pages are here, or as many as an answer may have
        self.position = ""  # of the rows
        self.watermark = b"null"  # then

    @property
    def rows(self) -> bytes:
        """The rows and their counts, as members of the answer."""
        head = self._head.replace(b'"truncated":false', b'"truncated":true', int(self.is_cut))
        counts = b"%b," % head if head else b""  # a ledger's snapshot has none
        return b'%b"rows":[%b]' % (counts, b",".join(page for page in self._pages if page))

    def change(self, body: bytes, position: bytes) -> bytes:
        return b'{%b%b"}' % (body, position)

    def message(self, kind: str, position: str, fields: bytes) -> bytes:
        if kind == "gap":
            self.gap = b'{"position":"%b",%b}' % (position.encode(), fields)
        elif kind == "error":
            self.error = b"{%b}" % fields
        return b""

    def snapshot(self, position: str, page: SnapshotPage) -> bytes:
        if self._skips_start and self.gap is None:
            return b""
        self.position, self.watermark = position, page.watermark
        self._head = page.head.partition(b",")[2]  # without the name
        self._pages.append(page.rows[1:-1])
        self.is_cut = not page.is_last and sum(map(len, self._pages)) >= _MAX_POLL_BYTES
        self.has_rows = page.is_last or self.is_cut
        return b""


async def poll(context: Context, request: HttpRequest, kind: str, name: str) -> Response:
    """The changes since `after`, as soon as there is one; all rows if the log lacks some."""
    if kind != "query":
        request.refuse_unknown((*SELECTION_PARAMETERS, "after", "wait", "when_slow"))
    wait = request.number("wait", 30.0, 0, _MAX_WAIT) or 0.0
    answer = PollFormat(skips_start=kind == "ledger" and "limit" not in request.query)
    async with _subscribe(context, request, answer, kind, name) as client:
        with context.logins.watched(request.caller, client.end):
            changes = await _collect(client, answer, wait)
        position = str(client.subscription.position)
        watermark = client.subscription.watermark_json
    if answer.error is not None:
        raise QueryError(msgspec.json.decode(answer.error)["detail"])
    link = _EVENTS_LINK % request.raw_path.encode("latin-1")
    gap, content = b"", b'"changes":[%b]' % b",".join(changes)
    if answer.has_rows:
        # Changes after these rows come with the next poll, from the rows' position on.
        gap = b"" if answer.gap is None else b'"gap":%b,' % answer.gap
        position, watermark, content = answer.position, answer.watermark, answer.rows
    place = b'"position":"%b","watermark":%b' % (position.encode(), watermark)
    body = b"{%b%b,%b%b}" % (gap, place, content, _hint(request, answer))
    return Response(body, headers=(*_HEADERS, (b"link", link)))


def _hint(request: HttpRequest, answer: PollFormat) -> bytes:
    """A member with advice for people, whose requests have neither Accept nor a position."""
    if answer.is_cut:
        return b',"hint":%b' % encode(_TRUNCATED)
    if b"json" in request.headers.get(b"accept", b"") or _after(request) is not None:
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
            answer.has_rows
            or answer.error is not None
            or client.must_answer
            or sum(map(len, changes)) >= _PAGE_BYTES
        ):
            return changes
        if not subscription.is_busy and (changes or left <= 0):
            return changes
        with contextlib.suppress(TimeoutError):
            # Wait for a snapshot or a replay that has begun, even beyond the requested time.
            await asyncio.wait_for(client.wake_event.wait(), left if left > 0 else _MAX_WAIT)
