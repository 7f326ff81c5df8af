"""An HTTP server with logins, TLS and CORS, which reloads keys and certificates that change."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from millstream.errors import SettingsError
from millstream.web.asgi import Application, Scope
from millstream.web.auth.authenticator import Authenticator
from millstream.web.auth.caller import Caller, caller_of
from millstream.web.auth.live_logins import LiveLogins
from millstream.web.auth.middleware import AuthenticationMiddleware
from millstream.web.auth.rights import EVERYTHING, Rights
from millstream.web.auth.settings import AccessSettings
from millstream.web.auth.tickets import Tickets
from millstream.web.auth.usage import Usage
from millstream.web.connections import AdmitWebSocket
from millstream.web.cors import CorsMiddleware
from millstream.web.fast_path import FastPath
from millstream.web.server import HttpServer
from millstream.web.tls import Certificate

_RELOAD_SECONDS = 0.25  # between checks for changed files

_log = logging.getLogger(__name__)


def is_health(path: str) -> bool:
    """Whether a path tells everybody how the server is."""
    return path.startswith("/health/")


class AccessServer(HttpServer):
    """A server that knows its callers.

    `authorize(caller, path)` refuses a request before its body is read. `check_websocket(scope)`
    refuses a WebSocket before its caller is known, and `check_caller(caller)` after that.
    `operator` is the hash of the key of commands on this machine, `certified` what a client
    certificate may do if the settings do not say it. SettingsError if the keys, the issuer's keys
    or the certificate cannot be read.
    """

    def __init__(
        self,
        application: Application,
        settings: AccessSettings,
        *,
        tier: str,
        stop_seconds: int,
        keys_file: Path,
        is_open: Callable[[str], bool] = is_health,
        authorize: Callable[[Caller, str], None] | None = None,
        unit: str = "events",
        operator: bytes = b"",
        certified: Rights = EVERYTHING,
        tickets: Tickets | None = None,
        usage: Usage | None = None,
        fast_path: FastPath | None = None,
        websocket: type[Any] | None = None,
        check_websocket: Callable[[Scope], None] | None = None,
        check_caller: Callable[[Caller], None] | None = None,
    ) -> None:
        self.authenticator = Authenticator(
            settings,
            Path(settings.keys_file) if settings.keys_file else keys_file,
            operator=operator,
            certified=certified,
            tickets=tickets,
        )
        self.logins = LiveLogins(self.authenticator)
        self._authentication = AuthenticationMiddleware(
            application,
            settings,
            self.authenticator,
            is_open=is_open,
            authorize=authorize,
            unit=unit,
            usage=usage,
        )
        # The fast path knows no callers and no origins, and without it every request has a caller.
        if fast_path is None or settings.auth or settings.rate:
            application = self._authentication
        if settings.cors_origins:
            application = CorsMiddleware(application, settings.cors_origins)
        is_plain = not (settings.auth or settings.rate or settings.cors_origins)
        super().__init__(
            application,
            settings,
            tier=tier,
            stop_seconds=stop_seconds,
            fast_path=fast_path if is_plain else None,
            websocket=websocket,
            certificate=_certificate(settings, has_operator=bool(operator)),
            trusted_proxies=settings.trusted_proxies,
            admit_websocket=self._admit_websocket(check_websocket, check_caller),
        )

    async def watch(self) -> None:
        """Cut off slow peers, reload changed files, end revoked logins; runs until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(super().watch())
            tasks.create_task(self._reload())
            tasks.create_task(self.logins.watch())
            if self.authenticator.jwt_verifier is not None:
                tasks.create_task(self.authenticator.jwt_verifier.keys.watch())

    @property
    def usage(self) -> Usage:
        """What each caller has used; nothing where callers are not known."""
        return self._authentication.usage

    @property
    def refused(self) -> Counter[str]:
        return super().refused + self._authentication.refused

    def _admit_websocket(
        self,
        check: Callable[[Scope], None] | None,
        check_caller: Callable[[Caller], None] | None,
    ) -> AdmitWebSocket:
        async def admit(scope: Scope) -> None:
            if check is not None:
                check(scope)
            await self._authentication.admit(scope, takes_ticket=True)
            if check_caller is not None:
                check_caller(caller_of(scope))

        return admit

    async def _reload(self) -> None:
        watched = {"keys": self.authenticator.api_keys, "certificate": self.certificate}
        while True:
            await asyncio.sleep(_RELOAD_SECONDS)
            for name, each in watched.items():
                try:
                    if each is not None and each.reload():
                        _log.info("reloaded the %s", name)
                except SettingsError as error:
                    _log.error("kept the old %s: %s", name, error)


def _certificate(settings: AccessSettings, *, has_operator: bool) -> Certificate | None:
    if not settings.tls_certificate:
        return None
    logins = {*settings.auth, *(["operator"] if has_operator else [])}
    return Certificate(settings, is_optional="certificate" in settings.auth and len(logins) > 1)
