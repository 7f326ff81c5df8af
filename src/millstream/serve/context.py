"""What every request of this server needs: the pipeline, its views, and the parts that answer."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field

from millstream.pipeline.app import App
from millstream.serve.access.visibility import Visibility
from millstream.serve.connections import Connections
from millstream.serve.groups.groups import Groups
from millstream.serve.queries.live_query import LiveQueries
from millstream.serve.queries.named_query import NamedQueries
from millstream.serve.settings import ServeSettings
from millstream.serve.system import System
from millstream.serve.views.on_demand import OnDemandViews
from millstream.serve.views.replay import Replay
from millstream.serve.views.served_view import ServedView
from millstream.store.sql.service import SqlService
from millstream.syntax.names import suggest
from millstream.web.auth.caller import Caller
from millstream.web.auth.live_logins import LiveLogins
from millstream.web.auth.rights import Kind
from millstream.web.auth.tickets import Tickets
from millstream.web.problem import CLOSE, RETRY, Problem


@dataclass(slots=True)
class Context:
    """The shared parts of one server process."""

    app: App
    settings: ServeSettings
    views: Mapping[str, ServedView]
    streams: OnDemandViews
    ledgers: OnDemandViews
    replay: Replay
    system: System
    sql: SqlService
    groups: Groups
    queries: NamedQueries
    live: LiveQueries
    logins: LiveLogins = field(init=False)  # of open connections
    tickets: Tickets = field(default_factory=Tickets)
    connections: Connections = field(default_factory=Connections)
    ready: bool = False  # every view has caught up with the log once
    refused: Callable[[], Mapping[str, int]] = dict  # connections and requests, by reason
    draining: bool = False  # the server is about to end
    closing: bool = False
    _wake_events: set[asyncio.Event] = field(default_factory=set)

    def start_draining(self) -> None:
        """Refuse new requests, and answer the long polls that wait."""
        self.draining = True
        for event in self._wake_events:
            event.set()

    def check_draining(self) -> None:
        """Problem 503 if the server is about to end."""
        if self.draining:
            raise Problem(
                503, "the server is ending", remedy="ask another one", headers=[RETRY, CLOSE]
            )

    def close(self) -> None:
        """End the HTTP responses that would go on."""
        self.closing = True
        for event in self._wake_events:
            event.set()

    @contextlib.contextmanager
    def wake_event(self) -> Iterator[asyncio.Event]:
        """An event for one HTTP client; set when there may be new messages or the server stops."""
        event = asyncio.Event()
        self._wake_events.add(event)
        try:
            yield event
        finally:
            self._wake_events.discard(event)

    def view(self, name: str, caller: Caller) -> ServedView:
        """The view of that name; Problem if there is none, it is not the caller's to read, or the
        server is not ready.
        """
        view = self._find_view(name)
        caller.check("read", "view", name)
        self.check_ready()
        return view

    def read_on_demand(
        self, kind: str, name: str, caller: Caller
    ) -> AbstractAsyncContextManager[ServedView]:
        """The stream of that name, or the ledger of that view; read within the block."""
        if kind == "ledger":
            self._check_ledger(name)
            caller.check("read", "ledger", name)
            self.check_ready()
            return self.ledgers.use(name)
        self._check_stream(name)
        caller.check("read", "stream", name)
        return self.streams.use(name)

    def check_source(self, kind: Kind, name: str, caller: Caller) -> None:
        """Problem unless there is such a view, stream or ledger, and the caller may read it."""
        match kind:
            case "view":
                self._find_view(name)
            case "ledger":
                self._check_ledger(name)
            case _:
                self._check_stream(name)
        caller.check("read", kind, name)
        self.check_ready()

    def _check_stream(self, name: str) -> None:
        known = self.streams.served
        if name not in known:
            raise Problem(404, f"there is no stream {name[:100]!r}", remedy=suggest(name, known))

    def visibility(self, kind: str, name: str, caller: Caller) -> Visibility:
        """What the caller sees of a view, stream or ledger that exists."""
        served = {"view": self.views, "stream": self.streams.served, "ledger": self.ledgers.served}
        return served[kind][name].policy.visibility(caller.claims)

    def visible_to(self, views: Iterable[str], caller: Caller) -> dict[str, Visibility]:
        """What the caller sees of these views."""
        return {name: self.visibility("view", name, caller) for name in views}

    def queryable(self, caller: Caller) -> dict[str, Visibility]:
        """The views that the caller's own SQL may read, and what it sees of them."""
        allowed = [name for name in self.views if caller.rights.allows("query", "view", name)]
        return self.visible_to(allowed, caller)

    def _find_view(self, name: str) -> ServedView:
        view = self.views.get(name)
        if view is None:
            raise Problem(404, f"there is no view {name[:100]!r}", remedy=suggest(name, self.views))
        return view

    def _check_ledger(self, name: str) -> None:
        self._find_view(name)
        if name not in self.ledgers.served:
            others = ", ".join(self.ledgers.served) or "none"
            raise Problem(
                404,
                f"view {name} has no ledger; views with one: {others}",
                remedy="declare it with ledger=['amount column'], for amounts that can be added up",
            )

    def check_ready(self) -> None:
        # In a view that is half read, numbers would be lower than clients have seen them before.
        if not self.ready:
            raise Problem(
                503, "the server is still reading the log", remedy="try again", headers=[RETRY]
            )
