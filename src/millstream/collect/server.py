"""The HTTP server around the collector's application: uvicorn, TLS, and everything that guards."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import socket
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, cast

import uvicorn

from millstream.collect.connections import Door, GuardedProtocol
from millstream.collect.cors import Cors
from millstream.collect.gate import Application, Gate
from millstream.collect.settings import CollectSettings
from millstream.collect.short_way import ShortWay
from millstream.collect.tls import Certificate, TlsListener
from millstream.errors import SettingsError

_LOOK_SECONDS = 0.5  # between looks at files that may have changed

_logger = logging.getLogger(__name__)


class Server(uvicorn.Server):
    """uvicorn, whose end we decide: it would raise the signal again after its own shutdown.

    SettingsError if the keys, the issuer's keys or the certificate cannot be read.
    """

    def __init__(
        self,
        application: Application,
        settings: CollectSettings,
        *,
        short_way: ShortWay | None = None,
        streams: Iterable[str] = (),
        keys_file: Path = Path("keys.json"),
    ) -> None:
        self._started = asyncio.Event()
        self._settings = settings
        # It asks nobody who they are, and where they come from: with either, all go the long way.
        is_open = not (settings.auth or settings.rate or settings.cors_origins)
        self.door = Door(settings, short_way if is_open else None)
        self._certificate = Certificate(settings) if settings.tls_certificate else None
        self._gate: Gate | None = None
        if settings.auth or settings.rate:
            path = Path(settings.keys_file) if settings.keys_file else keys_file
            application = self._gate = Gate(application, settings, streams, path)
        if settings.cors_origins:
            application = Cors(application, settings.cors_origins)
        super().__init__(
            uvicorn.Config(
                cast(Any, application),
                loop="uvloop",
                http=cast(Any, partial(GuardedProtocol, door=self.door)),
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                # Anybody could write X-Forwarded-For: it counts only from where the settings say.
                proxy_headers=bool(settings.trusted_proxies),
                forwarded_allow_ips=settings.trusted_proxies,
                timeout_keep_alive=math.ceil(settings.idle_timeout),
                timeout_graceful_shutdown=round(settings.stop_timeout) + 1,
            )
        )
        # Its warnings are about what strangers send: those are counted, they must not fill a disk.
        logging.getLogger("uvicorn.error").setLevel(logging.ERROR)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        if self._certificate is None:
            await super().startup(sockets)
        else:
            self.servers = []
            self._start_tls(self._certificate, sockets or [])
        self._started.set()

    async def ready(self) -> None:
        """Wait until it listens."""
        await self._started.wait()

    async def watch(self) -> None:
        """Cut off slow senders, and heed changed files; runs until it is cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.door.watch(self.server_state))
            tasks.create_task(self._reload())
            if self._gate is not None and self._gate.bearers is not None:
                tasks.create_task(self._gate.bearers.keys.watch())

    @property
    def refused(self) -> Counter[str]:
        """By reason, how many were turned away or cut off before anybody looked for events."""
        return self.door.refused + (Counter() if self._gate is None else self._gate.refused)

    def url(self, listener: socket.socket) -> str:
        """Where senders find it."""
        host, port = listener.getsockname()[:2]
        scheme = "http" if self._certificate is None else "https"
        return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    def _start_tls(self, certificate: Certificate, sockets: list[socket.socket]) -> None:
        def inner(network: str) -> GuardedProtocol:
            state: dict[str, Any] = {}
            return GuardedProtocol(
                self.config, self.server_state, state, door=self.door, counted=network
            )

        for each in sockets:
            listener = TlsListener(each, certificate, self.door, inner)
            listener.start(self.config.backlog)
            self.servers.append(cast(asyncio.Server, listener))
        self.started = True

    async def _reload(self) -> None:
        watched = {
            "keys": self._gate.keys if self._gate is not None else None,
            "certificate": self._certificate,
        }
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            for name, each in watched.items():
                try:
                    if each is not None and each.reload():
                        _logger.info("took the changed %s", name)
                except SettingsError as error:
                    _logger.error("kept the %s of before: %s", name, error)
