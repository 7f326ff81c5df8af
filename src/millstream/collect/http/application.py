"""The collector's HTTP API: bare ASGI, because a framework would halve its throughput."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from functools import partial
from typing import Any

from millstream.collect.capacity.pressure import Pressure
from millstream.collect.capacity.wait_queue import Overloaded
from millstream.collect.dedup.dedup import Original
from millstream.collect.formats.body import check_readable
from millstream.collect.formats.unpacked import BodyRefused
from millstream.collect.http import metrics
from millstream.collect.http.admission import Admission
from millstream.collect.http.answer import Answers
from millstream.collect.http.describe import describe_streams
from millstream.collect.http.fast_path import EMPTY, no_room_problem
from millstream.collect.http.openapi import openapi
from millstream.collect.http.peers import Peers, Published
from millstream.collect.http.request import RequestHeaders, ack_of, read_headers
from millstream.collect.intake.entry import SMALL_BATCH, Entry
from millstream.collect.intake.intake import Ack, Intake
from millstream.collect.intake.stream_intake import StreamIntake
from millstream.collect.raw_message import RawMessage
from millstream.collect.settings import CollectSettings
from millstream.errors import JournalError
from millstream.pipeline.app import App
from millstream.syntax.names import suggest
from millstream.values.report import SourceState
from millstream.web.asgi import (
    Disconnected,
    Receive,
    Scope,
    Send,
    read_body,
    send_empty,
    send_json,
    send_problem,
    send_response,
)
from millstream.web.auth.caller import caller_name, check_writes
from millstream.web.auth.rate import charge
from millstream.web.auth.usage import Usage, count
from millstream.web.cors import check_origin
from millstream.web.problem import Problem

_STREAMS = "/v1/streams/"
_RECEIPTS = "/v1/receipts/"

_log = logging.getLogger(__name__)


class CollectApp:
    """Answers every HTTP request of the collect tier."""

    def __init__(
        self,
        app: App,
        settings: CollectSettings,
        intake: Intake,
        *,
        admission: Admission,
        answers: Answers,
        pressure: Pressure,
        look_up: Callable[[str, Callable[[str], None]], Awaitable[dict[str, Any]]],
        are_logged: Callable[[str, Collection[Original]], Awaitable[bool]],
        health: Callable[[], tuple[str, dict[str, Any]]],
        sources: Callable[[], Iterable[SourceState]],
        refused_requests: Callable[[], Mapping[str, int]],
        usage: Callable[[], Usage],
        peers: Peers | None = None,
    ) -> None:
        self._settings = settings
        self._intake = intake
        self._admission = admission
        self._answers = answers
        self._pressure = pressure
        self._look_up = look_up
        self._are_logged = are_logged  # waits up to `ack_timeout`
        self._health = health  # why no event can be accepted, empty if it can; and details
        self._sources = sources
        self._refused_requests = refused_requests  # requests that the server refused, by reason
        self._usage = usage  # by caller
        self._peers = peers  # the other processes on this port, if there are any
        self._fixed = {
            "/v1/streams": describe_streams(app),
            "/v1/openapi.json": openapi(app, settings),
            "/health/live": {"status": "live"},
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._route(scope, receive, send)
        except Problem as problem:
            await send_problem(send, problem)
        except Disconnected:
            pass
        except Exception:
            _log.exception("cannot answer %s %s", scope.get("method"), scope.get("path"))
            await send_problem(send, Problem(500, "the collector failed; its log says why"))

    async def _route(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise Disconnected
        path: str = scope["path"]
        if path.startswith(_STREAMS):
            stream = self._find_stream(path[len(_STREAMS) :])
            _allow(scope, "POST")
            await self._collect(stream, scope, receive, send)
        elif path in self._fixed:
            _allow(scope, "GET", "HEAD")
            await send_json(send, self._fixed[path])
        elif path.startswith(_RECEIPTS):
            _allow(scope, "GET", "HEAD")
            allowed = partial(check_writes, scope)
            await send_json(send, await self._look_up(path[len(_RECEIPTS) :], allowed))
        elif path == "/health/ready":
            _allow(scope, "GET", "HEAD")
            if self._peers is None:
                reason, details = self._health()
            else:
                reason, details = await asyncio.to_thread(self._peers.health, self.published())
            if reason:
                raise Problem(503, reason, headers=self._retry(), **details)
            await send_json(send, {"status": "ready", **details})
        elif path == "/metrics":
            _allow(scope, "GET", "HEAD")
            if self._peers is None:
                text = self._metrics()
            else:
                text = await asyncio.to_thread(self._peers.metrics, self.published())
            await send_response(send, 200, text.encode(), metrics.CONTENT_TYPE)
        else:
            raise Problem(
                404, f"there is nothing at {path[:200]}; /v1/openapi.json lists the calls"
            )

    def published(self) -> Published:
        """Health and metrics of this process alone."""
        reason, details = self._health()
        return Published(reason, details, self._metrics())

    def _metrics(self) -> str:
        return metrics.render(
            self._intake,
            self._admission,
            self._sources(),
            self._refused_requests(),
            self._usage(),
        )

    async def _collect(
        self, stream: StreamIntake, scope: Scope, receive: Receive, send: Send
    ) -> None:
        ack = ack_of(stream.declaration, scope["query_string"])
        headers = read_headers(scope["headers"])
        if headers.origin:
            check_origin(scope, headers.origin, "collect.cors_origins")
        try:
            check_readable(headers.content_type, headers.attributes)
        except BodyRefused as refused:
            raise Problem(refused.status, str(refused)) from None
        entry = await self._receive_and_append(stream, headers, ack, scope, receive)
        charge(scope, entry.size)
        count(scope, events=entry.size)
        if ack == "none":
            await send_empty(send)
            return
        is_logged = True
        if entry.originals and ack == "log":
            is_logged = await self._are_logged(stream.name, entry.originals.values())
        if entry.size <= SMALL_BATCH:
            status, content = self._answers.of(entry, ack, is_logged)
        else:  # signing many receipts takes long
            status, content = await asyncio.to_thread(self._answers.of, entry, ack, is_logged)
        await send_json(send, content, status)

    def _raw_message(
        self, stream: StreamIntake, headers: RequestHeaders, body: bytes, sender: str
    ) -> RawMessage:
        return RawMessage(
            stream.name,
            self._intake.now(),
            body,
            headers.content_type,
            headers.encoding,
            "",
            headers.traceparent,
            headers.attributes,
            headers.correlation,
            headers.idempotency_key,
            sender=sender if headers.idempotency_key else "",
        )

    async def _receive_and_append(
        self,
        stream: StreamIntake,
        headers: RequestHeaders,
        ack: Ack,
        scope: Scope,
        receive: Receive,
    ) -> Entry:
        entry = None
        try:
            with await self._admission.body_memory.reserve(headers.content_length) as reserved:
                body = await read_body(
                    receive,
                    headers.content_length,
                    self._settings.max_body,
                    self._settings.body_timeout,
                    reserved.grow,
                    "split it into several requests, or raise collect.max_body",
                )
                if not body or body.isspace():
                    raise Problem(400, EMPTY)
                count(scope, size=len(body))
                message = self._raw_message(stream, headers, body, caller_name(scope))
                entry = await self._admission.admit(stream, message, ack)
            if entry.done is not None:
                await entry.done
            return entry
        except BodyRefused as refused:
            raise Problem(refused.status, str(refused)) from None
        except (JournalError, Overloaded) as error:
            if entry is None:
                stream.refused += 1  # else it was counted when the write failed
            raise no_room_problem(error, self._pressure) from None

    def _retry(self) -> list[tuple[bytes, bytes]]:
        return [(b"retry-after", str(self._pressure.retry_after()).encode())]

    def _find_stream(self, name: str) -> StreamIntake:
        stream = self._intake.streams.get(name)
        if stream is None:
            names = list(self._intake.streams)
            hint = suggest(name[:100], names)
            raise Problem(404, f"there is no stream {name[:100]!r}; {hint}", streams=names)
        return stream


def _allow(scope: Scope, *methods: str) -> None:
    if scope["method"] not in methods:
        allowed = ", ".join(methods)
        raise Problem(
            405,
            f"{scope['method']} is not possible on {scope['path'][:200]}; allowed: {allowed}",
            headers=[(b"allow", allowed.encode())],
        )
