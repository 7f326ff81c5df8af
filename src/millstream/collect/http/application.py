"""The collector's HTTP: a bare ASGI application, since a framework would halve what it takes in."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from functools import partial
from typing import Any

from millstream.collect.arrival import Arrival
from millstream.collect.capacity.pressure import Pressure
from millstream.collect.capacity.wait_queue import Overloaded
from millstream.collect.dedup.dedup import First
from millstream.collect.formats.body import check_readable
from millstream.collect.formats.unpacked import BodyRefused
from millstream.collect.http import metrics
from millstream.collect.http.admission import Admission
from millstream.collect.http.answer import Answers
from millstream.collect.http.describe import describe_streams
from millstream.collect.http.fast_path import EMPTY, not_taken
from millstream.collect.http.openapi import openapi
from millstream.collect.http.peers import Peers, Published
from millstream.collect.http.request import Request, ack_of, read_request
from millstream.collect.intake.entry import SMALL_BATCH, Entry
from millstream.collect.intake.intake import Ack, Intake
from millstream.collect.intake.lane import Lane
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
from millstream.web.cors import check_origin
from millstream.web.problem import Problem

_STREAMS = "/v1/streams/"
_RECEIPTS = "/v1/receipts/"

_log = logging.getLogger(__name__)


class CollectApp:
    """Answers every call of the collection tier."""

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
        are_logged: Callable[[str, Collection[First]], Awaitable[bool]],
        health: Callable[[], tuple[str, dict[str, Any]]],
        sources: Callable[[], Iterable[SourceState]],
        turned_away: Callable[[], Mapping[str, int]],
        peers: Peers | None = None,
    ) -> None:
        self._settings = settings
        self._intake = intake
        self._admission = admission
        self._answers = answers
        self._pressure = pressure
        self._look_up = look_up
        self._are_logged = are_logged  # waits for it, as long as a request may wait for Kafka
        self._health = health  # why nothing can be taken in, empty if it can; and more
        self._sources = sources
        self._turned_away = turned_away  # by reason, before they came here
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
            lane = self._lane(path[len(_STREAMS) :])
            _allow(scope, "POST")
            await self._collect(lane, scope, receive, send)
        elif path in self._fixed:
            _allow(scope, "GET", "HEAD")
            await send_json(send, self._fixed[path])
        elif path.startswith(_RECEIPTS):
            _allow(scope, "GET", "HEAD")
            allowed = partial(check_writes, scope)
            await send_json(send, await self._look_up(path[len(_RECEIPTS) :], allowed))
        elif path == "/health/ready":
            _allow(scope, "GET", "HEAD")
            reason, details = self._health()
            if peers := self._peers:
                reason, details = await asyncio.to_thread(peers.health, self.published())
            if reason:
                raise Problem(503, reason, headers=self._retry(), **details)
            await send_json(send, {"status": "ready", **details})
        elif path == "/metrics":
            _allow(scope, "GET", "HEAD")
            text = self._metrics()
            if peers := self._peers:
                text = await asyncio.to_thread(peers.metrics, self.published())
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
        return metrics.render(self._intake, self._admission, self._sources(), self._turned_away())

    async def _collect(self, lane: Lane, scope: Scope, receive: Receive, send: Send) -> None:
        ack = ack_of(lane.stream, scope["query_string"])
        request = read_request(scope["headers"])
        if request.origin:
            check_origin(scope, request.origin, "collect.cors_origins")
        try:
            check_readable(request.content_type, request.attributes)
        except BodyRefused as refused:
            raise Problem(refused.status, str(refused)) from None
        entry = await self._take(lane, request, ack, scope, receive)
        charge(scope, entry.size)
        if ack == "none":
            await send_empty(send)
            return
        is_logged = True
        if entry.firsts and ack == "log":
            is_logged = await self._are_logged(lane.name, entry.firsts.values())
        if entry.size <= SMALL_BATCH:
            status, content = self._answers.of(entry, ack, is_logged)
        else:  # many receipts take long to sign
            status, content = await asyncio.to_thread(self._answers.of, entry, ack, is_logged)
        await send_json(send, content, status)

    def _arrival(self, lane: Lane, request: Request, body: bytes, sender: str) -> Arrival:
        return Arrival(
            lane.name,
            self._intake.now(),
            body,
            request.content_type,
            request.encoding,
            "",
            request.traceparent,
            request.attributes,
            request.correlation,
            request.idempotency_key,
            sender=sender if request.idempotency_key else "",
        )

    async def _take(
        self, lane: Lane, request: Request, ack: Ack, scope: Scope, receive: Receive
    ) -> Entry:
        entry = None
        try:
            with await self._admission.bodies.expect(request.announced) as held:
                body = await read_body(
                    receive,
                    request.announced,
                    self._settings.max_body,
                    self._settings.body_timeout,
                    held.grow,
                    "split it into several requests, or raise collect.max_body",
                )
                if not body or body.isspace():
                    raise Problem(400, EMPTY)
                arrival = self._arrival(lane, request, body, caller_name(scope))
                entry = await self._admission.take(lane, arrival, ack)
            if entry.done is not None:
                await entry.done
            return entry
        except BodyRefused as refused:
            raise Problem(refused.status, str(refused)) from None
        except (JournalError, Overloaded) as error:
            if entry is None:
                lane.refused += 1  # else it was counted when it did not get onto the disk
            raise not_taken(error, self._pressure) from None

    def _retry(self) -> list[tuple[bytes, bytes]]:
        return [(b"retry-after", str(self._pressure.retry_after()).encode())]

    def _lane(self, name: str) -> Lane:
        lane = self._intake.lanes.get(name)
        if lane is None:
            names = list(self._intake.lanes)
            hint = suggest(name[:100], names)
            raise Problem(404, f"there is no stream {name[:100]!r}; {hint}", streams=names)
        return lane


def _allow(scope: Scope, *methods: str) -> None:
    if scope["method"] not in methods:
        allowed = ", ".join(methods)
        raise Problem(
            405,
            f"{scope['method']} is not possible on {scope['path'][:200]}; allowed: {allowed}",
            headers=[(b"allow", allowed.encode())],
        )
