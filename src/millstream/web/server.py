"""An HTTP server: uvicorn with our limits, TLS and fast path."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import socket
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, cast

import uvicorn

from millstream.web.allowed_hosts import AllowedHosts
from millstream.web.asgi import Application
from millstream.web.client_address import TrustedProxies
from millstream.web.connections import AdmitWebSocket, ConnectionLimits
from millstream.web.fast_path import FastPath
from millstream.web.http_protocol import LimitedHttpProtocol
from millstream.web.settings import HttpSettings
from millstream.web.tls import Certificate, TlsListener


class HttpServer(uvicorn.Server):
    """uvicorn without its signal handling, which would raise the signal again after shutdown."""

    def __init__(
        self,
        application: Application,
        settings: HttpSettings,
        *,
        tier: str,
        stop_seconds: int,
        fast_path: FastPath | None = None,
        websocket: type[Any] | None = None,
        certificate: Certificate | None = None,
        trusted_proxies: Sequence[str] = (),
        admit_websocket: AdmitWebSocket | None = None,
    ) -> None:
        self._started = asyncio.Event()
        self.certificate = certificate
        hosts = AllowedHosts(settings.host, settings.allowed_hosts)
        self.limits = ConnectionLimits(
            settings,
            tier=tier,
            hosts=hosts,
            fast_path=fast_path,
            proxies=TrustedProxies(trusted_proxies),
            admit_websocket=admit_websocket,
        )
        super().__init__(
            uvicorn.Config(
                cast(Any, application),
                loop="none",
                http=cast(Any, partial(LimitedHttpProtocol, limits=self.limits)),
                ws=websocket or "none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,  # `TrustedProxies` reads them
                timeout_keep_alive=math.ceil(settings.idle_timeout),
                timeout_graceful_shutdown=stop_seconds,
            )
        )
        # Its warnings are about invalid requests. These are counted; a log could fill the disk.
        logging.getLogger("uvicorn.error").setLevel(logging.ERROR)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        if self.certificate is None:
            await super().startup(sockets)
        else:
            self.servers = []
            self._start_tls(self.certificate, sockets or [])
        self._started.set()

    async def ready(self) -> None:
        """Wait until the server listens."""
        await self._started.wait()

    async def watch(self) -> None:
        """Close connections of slow peers; runs until cancelled."""
        await self.limits.watch(self.server_state)

    @property
    def refused(self) -> Counter[str]:
        """Connections and requests that were refused before the application saw them, by reason."""
        return self.limits.refused

    def url(self, listener: socket.socket) -> str:
        """The server's URL."""
        host, port = listener.getsockname()[:2]
        scheme = "http" if self.certificate is None else "https"
        return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    def _start_tls(self, certificate: Certificate, sockets: list[socket.socket]) -> None:
        def inner(network: str) -> LimitedHttpProtocol:
            state: dict[str, Any] = {}
            return LimitedHttpProtocol(
                self.config, self.server_state, state, limits=self.limits, counted=network
            )

        for each in sockets:
            listener = TlsListener(each, certificate, self.limits, inner)
            listener.start(self.config.backlog)
            self.servers.append(cast(asyncio.Server, listener))
        self.started = True
