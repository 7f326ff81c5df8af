"""The HTTP server of the collector: authentication, CORS, and files that are reloaded."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Collection, Iterable
from functools import partial
from pathlib import Path

from millstream.collect.http.fast_path import CollectFastPath
from millstream.collect.settings import CollectSettings
from millstream.errors import SettingsError
from millstream.web.asgi import Application
from millstream.web.auth.caller import Caller
from millstream.web.auth.middleware import AuthenticationMiddleware
from millstream.web.cors import CorsMiddleware
from millstream.web.server import HttpServer
from millstream.web.tls import Certificate

_STREAMS = "/v1/streams/"
_RELOAD_SECONDS = 0.5  # between checks for changed files

_log = logging.getLogger(__name__)


class CollectServer(HttpServer):
    """The collector's server.

    SettingsError if the keys, the issuer's keys or the certificate cannot be read.
    """

    def __init__(
        self,
        application: Application,
        settings: CollectSettings,
        *,
        fast_path: CollectFastPath | None = None,
        streams: Iterable[str] = (),
        keys_file: Path = Path("keys.json"),
    ) -> None:
        # The fast path knows no callers and no origins.
        is_open = not (settings.auth or settings.rate or settings.cors_origins)
        self._authentication: AuthenticationMiddleware | None = None
        if settings.auth or settings.rate:
            path = Path(settings.keys_file) if settings.keys_file else keys_file
            names = frozenset(streams)
            application = self._authentication = AuthenticationMiddleware(
                application, settings, path, partial(_check_writes, names)
            )
        if settings.cors_origins:
            application = CorsMiddleware(application, settings.cors_origins)
        super().__init__(
            application,
            settings,
            tier="collect",
            stop_seconds=round(settings.stop_timeout) + 1,
            fast_path=fast_path if is_open else None,
            certificate=_certificate(settings),
            trusted_proxies=settings.trusted_proxies,
        )

    async def watch(self) -> None:
        """Cut off slow senders, and reload changed files; runs until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(super().watch())
            tasks.create_task(self._reload())
            if self._authentication is not None and self._authentication.jwt_verifier is not None:
                tasks.create_task(self._authentication.jwt_verifier.keys.watch())

    @property
    def refused(self) -> Counter[str]:
        return super().refused + (
            Counter() if self._authentication is None else self._authentication.refused
        )

    async def _reload(self) -> None:
        watched = {
            "keys": self._authentication.api_keys if self._authentication is not None else None,
            "certificate": self.certificate,
        }
        while True:
            await asyncio.sleep(_RELOAD_SECONDS)
            for name, each in watched.items():
                try:
                    if each is not None and each.reload():
                        _log.info("reloaded the %s", name)
                except SettingsError as error:
                    _log.error("kept the old %s: %s", name, error)


def _check_writes(streams: Collection[str], caller: Caller, path: str) -> None:
    """Refuse a request before its body is read if the caller may not write to the stream."""
    stream = path.removeprefix(_STREAMS)
    if stream != path and stream in streams:
        caller.check("write", "stream", stream)


def _certificate(settings: CollectSettings) -> Certificate | None:
    if not settings.tls_certificate:
        return None
    is_optional = "certificate" in settings.auth and len(set(settings.auth)) > 1
    return Certificate(settings, is_optional=is_optional)
