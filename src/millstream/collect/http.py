"""The collector's HTTP: a bare ASGI application, since a framework would halve what it takes in."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable
from typing import Any, Protocol
from urllib.parse import parse_qsl

from millstream.app import App
from millstream.audit import SourceState
from millstream.collect import metrics
from millstream.collect.asgi import (
    Disconnected,
    Problem,
    Receive,
    Scope,
    Send,
    answer,
    answer_json,
    read_body,
)
from millstream.collect.body import UnreadableContentType, form_of, split
from millstream.collect.describe import describe_streams, openapi
from millstream.collect.intake import Batch, Intake, Overloaded
from millstream.collect.lane import Lane
from millstream.collect.settings import CollectSettings
from millstream.errors import LogError
from millstream.names import suggest
from millstream.receipt import Receipt, parse_unsigned

_STREAMS = "/v1/streams/"
_RECEIPTS = "/v1/receipts/"
_TRACEPARENT = re.compile(rb"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")
_RETRY = [(b"retry-after", b"1")]

_logger = logging.getLogger(__name__)


class Lookup(Protocol):
    """Finds the record that a receipt speaks of."""

    async def __call__(self, receipt: Receipt, lane: Lane) -> dict[str, Any]:
        """Where it is; Problem 404 if no such record was given out, 410 if retention took it."""


class CollectApp:
    """Answers every call of the collection tier."""

    def __init__(
        self,
        app: App,
        settings: CollectSettings,
        intake: Intake,
        *,
        look_up: Lookup,
        not_ready: Callable[[], str],
        sources: Callable[[], Iterable[SourceState]],
    ) -> None:
        self._settings = settings
        self._intake = intake
        self._look_up = look_up
        self._not_ready = not_ready  # why the tier is not ready; empty if it is
        self._sources = sources
        self._fixed = {
            "/v1/streams": describe_streams(app),
            "/v1/openapi.json": openapi(app),
            "/health/live": {"status": "live"},
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._route(scope, receive, send)
        except Problem as problem:
            await problem.answer(send)
        except Disconnected:
            pass
        except Exception:
            _logger.exception("cannot answer %s %s", scope.get("method"), scope.get("path"))
            await Problem(500, "the collector failed; its log says why").answer(send)

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
            await answer_json(send, self._fixed[path])
        elif path.startswith(_RECEIPTS):
            _allow(scope, "GET", "HEAD")
            await answer_json(send, await self._receipt(path[len(_RECEIPTS) :]))
        elif path == "/health/ready":
            _allow(scope, "GET", "HEAD")
            if reason := self._not_ready():
                raise Problem(503, reason, headers=_RETRY)
            await answer_json(send, {"status": "ready"})
        elif path == "/metrics":
            _allow(scope, "GET", "HEAD")
            text = metrics.render(self._intake, self._sources())
            await answer(send, 200, text.encode(), metrics.CONTENT_TYPE)
        else:
            raise Problem(
                404, f"there is nothing at {path[:200]}; /v1/openapi.json lists the calls"
            )

    async def _collect(self, lane: Lane, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["query_string"] not in (b"", b"ack=log"):
            _check_query(scope["query_string"])
        content_type, announced, traceparent = _read_headers(scope["headers"])
        try:
            form = form_of(content_type)
        except UnreadableContentType as error:
            raise Problem(415, str(error)) from None
        body = await read_body(
            receive, announced, self._settings.max_body, self._settings.body_timeout
        )
        events = split(body, form)
        if not events and not body.strip():
            raise Problem(400, "the body is empty; send a JSON object, an array of them, or lines")
        if not events:
            await answer_json(send, {"accepted": 0, "receipts": [], "rejected": []})
            return
        try:
            batch = await self._intake.take(lane, events, traceparent=traceparent)
        except Overloaded as error:
            raise Problem(
                503, f"{error}; nothing was taken in, send it again later", headers=_RETRY
            ) from None
        try:
            await self._intake.confirmed(batch)
        except LogError as error:
            raise _unconfirmed(batch, str(error)) from None
        if None in batch.deliveries:
            raise _unconfirmed(batch, "Kafka did not confirm every event")
        content = _answer(batch)
        if batch.rejections and not content["accepted"]:
            raise _all_rejected(batch, content)
        await answer_json(send, content)

    def _lane(self, name: str) -> Lane:
        lane = self._intake.lanes.get(name)
        if lane is None:
            names = list(self._intake.lanes)
            hint = suggest(name[:100], names)
            raise Problem(404, f"there is no stream {name[:100]!r}; {hint}", streams=names)
        return lane

    async def _receipt(self, text: str) -> dict[str, Any]:
        receipt = parse_unsigned(text)
        lane = self._intake.lanes.get(receipt.stream) if receipt else None
        if receipt is None or lane is None:
            raise Problem(404, f"{text[:200]!r} is no receipt of this collector's streams")
        try:
            return await self._look_up(receipt, lane)
        except LogError as error:
            raise Problem(503, str(error), headers=_RETRY) from None


def _allow(scope: Scope, *methods: str) -> None:
    if scope["method"] not in methods:
        allowed = ", ".join(methods)
        raise Problem(
            405,
            f"{scope['method']} is not possible on {scope['path'][:200]}; allowed: {allowed}",
            headers=[(b"allow", allowed.encode())],
        )


def _check_query(query: bytes) -> None:
    for name, value in parse_qsl(query.decode("latin-1"), keep_blank_values=True):
        if name != "ack":
            raise Problem(400, f"there is no parameter {name[:100]!r}; known: ack")
        if value in ("local", "none"):
            raise Problem(501, f"ack={value} is not built yet; use ack=log, or leave it out")
        if value != "log":
            raise Problem(400, f"ack={value[:100]} is unknown; use ack=log, or leave it out")


def _read_headers(headers: Iterable[tuple[bytes, bytes]]) -> tuple[bytes, int, str]:
    content_type, announced, traceparent = b"", 0, ""
    for name, value in headers:
        if name == b"content-type":
            content_type = value
        elif name == b"content-length":
            announced = int(value)  # the parser lets only digits through
        elif name == b"content-encoding" and value.strip().lower() != b"identity":
            encoding = value.decode("latin-1")[:50]
            raise Problem(
                415,
                f"content encoding {encoding!r} is not read yet; send the body as it is",
                headers=[(b"accept-encoding", b"identity")],
            )
        elif name == b"traceparent" and _TRACEPARENT.fullmatch(value):
            traceparent = value.decode()
    return content_type, announced, traceparent


def _answer(batch: Batch) -> dict[str, Any]:
    receipts, rejected = [], []
    for index, (delivery, sequence) in enumerate(
        zip(batch.deliveries, batch.sequences, strict=True)
    ):
        if delivery is None:
            continue
        invalid = batch.rejections.get(index)
        kind = "l" if invalid is None else "r"
        receipt = f"{kind}.{batch.lane.name}.{delivery.partition}.{delivery.offset}.{sequence}"
        if invalid is None:
            receipts.append(receipt)
        else:
            rejected.append(
                {
                    "index": index,
                    "error": str(invalid),
                    "field": invalid.field,
                    "receipt": receipt,
                }
            )
    return {"accepted": len(receipts), "receipts": receipts, "rejected": rejected}


def _all_rejected(batch: Batch, content: dict[str, Any]) -> Problem:
    first, count = batch.rejections[0], len(batch.rejections)
    detail = str(first) if count == 1 else f"none of the {count} events is valid; first: {first}"
    return Problem(422, detail, field=first.field, **content)


def _unconfirmed(batch: Batch, reason: str) -> Problem:
    return Problem(
        503,
        f"{reason}; those in `unconfirmed` (by their place, from 0) may still get into the log, "
        "so sending them again can store them twice",
        headers=_RETRY,
        unconfirmed=batch.unconfirmed(),
        **_answer(batch),
    )
