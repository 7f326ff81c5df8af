"""The short way of the most common request: a small body of JSON, and nothing special about it.

It goes from the connection's parser straight to the intake, and its answer straight back: no ASGI,
so no task, scope or message for each step, which together cost more than all that the collector
does with an event. Whatever else is asked for goes the long way, `http.CollectApp`. A sender cannot
tell which way its request went.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from functools import lru_cache, partial
from typing import NamedTuple

import msgspec

from millstream.collect.arrival import Arrival
from millstream.collect.capacity.pressure import Pressure
from millstream.collect.capacity.wait_queue import NO_ROOM, Overloaded
from millstream.collect.formats.body import Form, form_of
from millstream.collect.formats.unpacked import BodyRefused
from millstream.collect.http.admission import Admission
from millstream.collect.http.answer import Answers
from millstream.collect.http.request import ack_of
from millstream.collect.intake.entry import Entry
from millstream.collect.intake.intake import Ack, Intake
from millstream.collect.intake.lane import Lane
from millstream.errors import JournalError, JournalSmall
from millstream.web.fast_path import Respond
from millstream.web.problem import Problem

_STREAMS = b"/v1/streams/"
_MOST_BYTES = 64 << 10
_FORMS = (Form.SNIFF, Form.LINES)
# What the long way heeds. A sender's own CloudEvents attributes begin with `ce-`.
_SPECIAL = frozenset(
    {
        *(b"content-encoding", b"transfer-encoding", b"expect", b"upgrade"),
        *(b"traceparent", b"correlation-id", b"idempotency-key", b"origin"),
    }
)
EMPTY = "the body is empty; send a JSON object, an array of them, or lines"
JSON, PROBLEM = b"application/json", b"application/problem+json"

_log = logging.getLogger(__name__)


class Route(NamedTuple):
    """Where a request's body goes, and what its sender waits for."""

    lane: Lane
    ack: Ack
    content_type: str


class ShortWay:
    """Takes requests in for one collector that lets everybody send everything."""

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
        self._target = lru_cache(256)(self._find)

    def find_route(self, url: bytes, headers: Iterable[tuple[bytes, bytes]]) -> Route | None:
        """The route of a POST, if it may go this way; what is wrong with it is not said here."""
        announced, content_type = -1, b""
        for name, value in headers:
            if name == b"content-length":
                announced = int(value)
            elif name == b"content-type":
                content_type = value
            elif name in _SPECIAL or name.startswith(b"ce-"):
                return None
        if not 0 < announced <= self._most:
            return None
        return self._target(url, content_type)

    def handle(self, route: Route, body: bytes, respond: Respond) -> None:
        """Take a body in; `respond` is called once, now or later."""
        try:
            if body.isspace():
                raise Problem(400, EMPTY)
            arrival = Arrival(route.lane.name, self._intake.now(), body, route.content_type)
            self._take_in_turn(route, arrival, respond)
        except Exception as error:
            self._not_taken(route.lane, respond, error)

    def _take_in_turn(self, route: Route, arrival: Arrival, respond: Respond) -> None:
        if self._admission.is_next(route.ack):
            try:
                self._take(route, respond, arrival)
                return
            except NO_ROOM:
                pass
        self._admission.take_later(
            route.ack,
            arrival,
            partial(self._take, route, respond),
            partial(self._not_taken, route.lane, respond),
        )

    def _take(self, route: Route, respond: Respond, arrival: Arrival) -> None:
        lane, ack, _ = route
        if ack == "none":
            self._intake.bypass.take(lane, arrival)
            respond(204, b"", b"")
        else:
            self._intake.take_calling(lane, arrival, ack, partial(self._taken, ack, respond))

    def _taken(self, ack: Ack, respond: Respond, entry: Entry, error: Exception | None) -> None:
        try:
            if error is not None:
                raise error
            respond(*self._answers.encoded(entry, ack), JSON)
        except Exception as refused:
            self._refuse(respond, refused)

    def _not_taken(self, lane: Lane, respond: Respond, error: Exception) -> None:
        lane.refused += isinstance(error, JournalError | Overloaded)
        self._refuse(respond, error)

    def _refuse(self, respond: Respond, error: Exception) -> None:
        match error:
            case Problem():
                problem = error
            case BodyRefused():
                problem = Problem(error.status, str(error))
            case JournalError() | Overloaded():
                problem = not_taken(error, self._pressure)
            case _:
                _log.error("cannot take a request in", exc_info=error)
                problem = Problem(500, "the collector failed; its log says why")
        respond(problem.status, msgspec.json.encode(problem.content), PROBLEM, problem.headers)

    def _find(self, url: bytes, content_type: bytes) -> Route | None:
        path, _, query = url.partition(b"?")
        try:
            lane = self._intake.lanes.get(path.removeprefix(_STREAMS).decode())
            if not path.startswith(_STREAMS) or lane is None or lane.shedder is not None:
                return None
            text = content_type.decode("latin-1")
            ack = ack_of(lane.stream, query)
            return Route(lane, ack, text) if form_of(text) in _FORMS else None
        except (Problem, BodyRefused, UnicodeDecodeError):
            return None  # the long way says what is wrong


def not_taken(error: Exception, pressure: Pressure) -> Problem:
    """The answer when there is no room now, or never will be."""
    if isinstance(error, JournalSmall):
        return Problem(413, f"{error}; nothing was taken in")
    return Problem(
        503,
        f"{error}; nothing was taken in, send it again later",
        headers=[(b"retry-after", str(pressure.retry_after()).encode())],
    )
