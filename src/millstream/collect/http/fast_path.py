"""The fast path for the most common request: a small JSON body without special headers.

The body goes from the HTTP parser straight to the intake, and the answer straight back. It skips
ASGI, whose task, scope and messages cost more than the collector's own work for an event. All other
requests go through `CollectApp`. A sender sees no difference.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from functools import lru_cache, partial
from typing import NamedTuple

import msgspec

from millstream.collect.capacity.pressure import Pressure
from millstream.collect.capacity.wait_queue import NO_ROOM, Overloaded
from millstream.collect.formats.body import BodyFormat, format_of
from millstream.collect.formats.cloudevents import PREFIX
from millstream.collect.formats.unpacked import BodyRefused
from millstream.collect.http.admission import Admission
from millstream.collect.http.answer import Answers
from millstream.collect.http.request import HEADERS, ack_of
from millstream.collect.intake.entry import Entry
from millstream.collect.intake.intake import Ack, Intake
from millstream.collect.intake.stream_intake import StreamIntake
from millstream.collect.raw_message import RawMessage
from millstream.errors import JournalError, JournalSmall
from millstream.web.fast_path import Respond
from millstream.web.problem import Problem

_STREAMS = b"/v1/streams/"
_MOST_BYTES = 64 << 10
_FORMATS = (BodyFormat.SNIFF, BodyFormat.LINES)
_READ_HERE = frozenset({b"content-type", b"content-length"})
_FRAMING = frozenset({b"transfer-encoding", b"expect", b"upgrade"})  # of the HTTP connection
# Requests with one of these headers, or with CloudEvents attributes, go through `CollectApp`.
SPECIAL_HEADERS = (frozenset(HEADERS) | _FRAMING) - _READ_HERE
EMPTY = "the body is empty; send a JSON object, an array of them, or lines"
JSON, PROBLEM = b"application/json", b"application/problem+json"

_log = logging.getLogger(__name__)


class Route(NamedTuple):
    """The stream that a request's body goes to, and what its sender waits for."""

    stream: StreamIntake
    ack: Ack
    content_type: str


class CollectFastPath:
    """The fast path of a collector that needs no login and knows no rate limits."""

    def __init__(
        self,
        intake: Intake,
        admission: Admission,
        answers: Answers,
        pressure: Pressure,
        max_body: int,
    ) -> None:
        self._intake = intake
        self._admission = admission
        self._answers = answers
        self._pressure = pressure
        self._most = min(_MOST_BYTES, max_body)
        self._route_to = lru_cache(256)(self._find_route)

    def find_route(self, url: bytes, headers: Iterable[tuple[bytes, bytes]]) -> Route | None:
        """The route of a POST; None if it must go through `CollectApp`, which reports errors."""
        length, content_type = -1, b""
        for name, value in headers:
            if name == b"content-length":
                length = int(value)
            elif name == b"content-type":
                content_type = value
            elif name in SPECIAL_HEADERS or name.startswith(PREFIX):
                return None
        if not 0 < length <= self._most:
            return None
        return self._route_to(url, content_type)

    def handle(self, route: Route, body: bytes, respond: Respond) -> None:
        """Accept a body; `respond` is called once, now or later."""
        try:
            if body.isspace():
                raise Problem(400, EMPTY)
            message = RawMessage(route.stream.name, self._intake.now(), body, route.content_type)
            self._append_or_enqueue(route, message, respond)
        except Exception as error:
            self._on_refused(route.stream, respond, error)

    def _append_or_enqueue(self, route: Route, message: RawMessage, respond: Respond) -> None:
        if self._admission.may_try(route.ack):
            try:
                self._append(route, respond, message)
                return
            except NO_ROOM:
                pass
        self._admission.enqueue(
            route.ack,
            message,
            partial(self._append, route, respond),
            partial(self._on_refused, route.stream, respond),
        )

    def _append(self, route: Route, respond: Respond, message: RawMessage) -> None:
        stream, ack, _ = route
        if ack == "none":
            self._intake.direct_sender.send(stream, message)
            respond(204, b"", b"")
        else:
            on_done = partial(self._on_done, ack, respond)
            self._intake.append_with_callback(stream, message, ack, on_done)

    def _on_done(self, ack: Ack, respond: Respond, entry: Entry, error: Exception | None) -> None:
        try:
            if error is not None:
                raise error
            respond(*self._answers.encoded(entry, ack), JSON)
        except Exception as refused:
            self._respond_error(respond, refused)

    def _on_refused(self, stream: StreamIntake, respond: Respond, error: Exception) -> None:
        stream.refused += isinstance(error, JournalError | Overloaded)
        self._respond_error(respond, error)

    def _respond_error(self, respond: Respond, error: Exception) -> None:
        match error:
            case Problem():
                problem = error
            case BodyRefused():
                problem = Problem(error.status, str(error))
            case JournalError() | Overloaded():
                problem = no_room_problem(error, self._pressure)
            case _:
                _log.error("cannot accept a request", exc_info=error)
                problem = Problem(500, "the collector failed; its log says why")
        respond(problem.status, msgspec.json.encode(problem.content), PROBLEM, problem.headers)

    def _find_route(self, url: bytes, content_type: bytes) -> Route | None:
        path, _, query = url.partition(b"?")
        try:
            stream = self._intake.streams.get(path.removeprefix(_STREAMS).decode())
            if not path.startswith(_STREAMS) or stream is None or stream.shedder is not None:
                return None
            text = content_type.decode("latin-1")
            ack = ack_of(stream.declaration, query)
            return Route(stream, ack, text) if format_of(text) in _FORMATS else None
        except (Problem, BodyRefused, UnicodeDecodeError):
            return None  # `CollectApp` reports the error


def no_room_problem(error: Exception, pressure: Pressure) -> Problem:
    """The answer if there is no room for a message now, or never will be."""
    if isinstance(error, JournalSmall):
        return Problem(413, f"{error}; nothing was accepted")
    return Problem(
        503,
        f"{error}; nothing was accepted, send it again later",
        headers=[(b"retry-after", str(pressure.retry_after()).encode())],
    )
