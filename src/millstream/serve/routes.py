"""HTTP: which address is answered by what. Bare ASGI: a framework costs half the throughput."""

from __future__ import annotations

import logging

from millstream.errors import MillstreamError
from millstream.serve.answer import Answer, Problem, Receive, Request, Scope, Send, problem
from millstream.serve.api import assets, metrics, query, snapshots
from millstream.serve.context import State
from millstream.serve.description import asyncapi, openapi
from millstream.serve.transports import changes
from millstream.serve.views.encoding import encode
from millstream.syntax.names import suggest
from millstream.web.problem import RETRY

_log = logging.getLogger(__name__)
_PLACES = ("views", "streams", "query", "system", "connect", "openapi.json", "asyncapi.json")


class Http:
    """The ASGI application."""

    def __init__(self, state: State) -> None:
        self._state = state

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        head = scope["method"] == "HEAD"
        began = False

        async def watched(message: dict[str, object]) -> None:
            nonlocal began
            began = True
            await send(message)

        try:
            request = Request.of(scope, receive)
            answer = await self._answer(request, watched)  # type: ignore[arg-type]
        except MillstreamError as error:
            answer = problem(error)
        except TimeoutError:
            answer = problem(Problem(503, "Kafka does not answer", headers=[RETRY]))
        except Exception:
            _log.exception("%s %s failed", scope["method"], scope["path"])
            answer = problem(Problem(500, "this is a mistake of ours; the server's log has it"))
        if answer is not None and not began:
            await answer.send(send, head=head)

    async def _answer(self, request: Request, send: Send) -> Answer | None:
        state = self._state
        if request.method == "HEAD":
            request = Request("GET", request.path, request.query, request.headers, request.raw_path)
        match (request.method, *request.path):
            case ("GET", "v1", "views"):
                return await snapshots.list_views(state, request)
            case ("GET", "v1", "views", name):
                return await snapshots.show_view(state, request, name)
            case ("GET", "v1", "views", name, "changes"):
                return await self._changes(request, send, "view", name)
            case ("GET", "v1", "views", name, "ledger"):
                return await self._changes(request, send, "ledger", name)
            case ("GET", "v1", "views", name, key):
                return await snapshots.show_row(state, request, name, key)
            case ("GET", "v1", "streams", name, "events"):
                return await self._changes(request, send, "stream", name)
            case ("POST", "v1", "query"):
                return await query.run_query(state, request)
            case ("GET", "v1", "system"):
                return Answer(encode(state.system.describe()), headers=_FRESH)
            case ("GET", "v1", "openapi.json"):
                return Answer(encode(openapi.describe(state)))
            case ("GET", "v1", "asyncapi.json"):
                return Answer(encode(asyncapi.describe(state)))
            case ("GET", "health", "live"):
                return Answer(b'{"live":true}')
            case ("GET", "health", "ready"):
                state.check_ready()
                return Answer(b'{"ready":true}')
            case ("GET", "metrics"):
                return Answer(metrics.write(state).encode(), content_type=metrics.CONTENT_TYPE)
            case ("GET", first, *_) if first not in ("v1", "health", "metrics"):
                return assets.serve(request)
        raise _unknown(request)

    async def _changes(self, request: Request, send: Send, kind: str, name: str) -> Answer | None:
        if changes.wants_events(request):
            await changes.send_events(self._state, request, send, kind, name)
            return None
        return await changes.poll(self._state, request, kind, name)


_FRESH = ((b"cache-control", b"no-store"),)
_METHODS: dict[tuple[str, ...], bytes] = {("v1", "query"): b"POST"}


def _unknown(request: Request) -> Problem:
    path = request.raw_path[:200]
    if request.path == ("v1", "connect"):
        return Problem(
            426,
            "this is a WebSocket",
            remedy="connect with ws://",
            headers=[(b"upgrade", b"websocket")],
        )
    allowed = _METHODS.get(request.path, b"GET, HEAD")
    known = request.path[:1] == ("v1",) and len(request.path) > 1 and request.path[1] in _PLACES
    if (known or request.path[:1] != ("v1",)) and request.method not in allowed.decode():
        return Problem(405, f"{path} does not take {request.method}", headers=[(b"allow", allowed)])
    name = request.path[1] if len(request.path) > 1 else ""
    return Problem(404, f"there is nothing at {path}", remedy=suggest(name, _PLACES))
