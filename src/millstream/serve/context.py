"""What every request works with: the pipeline, its views, and the parts that answer."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from millstream.pipeline.app import App
from millstream.serve.answer import Problem
from millstream.serve.settings import ServeSettings
from millstream.serve.system import System
from millstream.serve.views.on_demand import Streams
from millstream.serve.views.replay import Replay
from millstream.serve.views.served_view import Live
from millstream.store.sql.sql import Sql
from millstream.syntax.names import suggest
from millstream.web.problem import RETRY

if TYPE_CHECKING:
    from millstream.serve.transports.websocket import Connection


@dataclass(slots=True)
class State:
    """One server process."""

    app: App
    settings: ServeSettings
    views: Mapping[str, Live]
    streams: Streams
    ledgers: Streams
    replay: Replay
    system: System
    sql: Sql
    ready: bool = False  # every view has caught up with the log once
    event_clients: int = 0
    refused: Mapping[str, int] = field(default_factory=dict)  # connections cut off, by reason
    connections: set[Connection] = field(default_factory=set)
    closing: bool = False
    waiting: set[asyncio.Event] = field(default_factory=set)  # what wakes each HTTP client's answer

    @property
    def clients(self) -> int:
        return self.event_clients + len(self.connections)

    def close(self) -> None:
        """Let the answers end that would go on."""
        self.closing = True
        for awake in self.waiting:
            awake.set()

    @contextlib.contextmanager
    def awake(self) -> Iterator[asyncio.Event]:
        """An event that is set when an answer should look at what is new, or end."""
        event = asyncio.Event()
        self.waiting.add(event)
        try:
            yield event
        finally:
            self.waiting.discard(event)

    def view(self, name: str) -> Live:
        """The view of that name, when it can be answered for."""
        live = self.views.get(name)
        if live is None:
            raise Problem(404, f"there is no view {name[:100]!r}", remedy=suggest(name, self.views))
        self.check_ready()
        return live

    def read_on_demand(self, kind: str, name: str) -> AbstractAsyncContextManager[Live]:
        """The stream, or the ledger of the view, of that name, read while it is used."""
        if kind == "ledger":
            self._check_ledger(name)
            return self.ledgers.use(name)
        known = self.streams.lives
        if name not in known:
            raise Problem(404, f"there is no stream {name[:100]!r}", remedy=suggest(name, known))
        return self.streams.use(name)

    def _check_ledger(self, name: str) -> None:
        self.view(name)
        if name not in self.ledgers.lives:
            others = ", ".join(self.ledgers.lives) or "none"
            raise Problem(
                404,
                f"view {name} has no ledger; views with one: {others}",
                remedy="declare it with ledger=['amount column'], for amounts that can be added up",
            )

    def check_ready(self) -> None:
        # A half-read view would show numbers that clients have seen greater.
        if not self.ready:
            raise Problem(
                503, "the server is still reading the log", remedy="try again", headers=[RETRY]
            )
