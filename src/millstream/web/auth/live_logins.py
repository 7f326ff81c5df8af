"""Logins of open connections: asks for fresh tokens, and ends revoked and expired ones."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Iterator
from typing import Any

from millstream.web.auth.authenticator import Authenticator
from millstream.web.auth.caller import Caller
from millstream.web.problem import Problem

# Close codes of a WebSocket: with 4000–4499 connecting again makes sense, with 4500–4999 not.
EXPIRED = 4001
REVOKED = 4503

_ASK_SECONDS = 30.0  # before a token expires
_CHECK_SECONDS = 0.1
_CHECKED_AT_ONCE = 1000
# Claims that differ between two tokens of the same login.
_OF_ONE_TOKEN = frozenset({"exp", "iat", "nbf", "jti", "auth_time", "at_hash", "nonce", "uti"})

_log = logging.getLogger(__name__)


class LiveLogin:
    """The login of one open connection, until `close`."""

    __slots__ = ("_logins", "ask", "asked", "caller", "end")

    def __init__(
        self,
        logins: LiveLogins,
        caller: Caller,
        end: Callable[[int, str], None],
        ask: Callable[[float], None] | None,
    ) -> None:
        self._logins = logins
        self.caller = caller
        self.end = end
        self.ask = ask
        self.asked = False

    def close(self) -> None:
        """The connection has ended."""
        self._logins.discard(self)


class LiveLogins:
    """The logins of all open connections of a server."""

    def __init__(self, authenticator: Authenticator) -> None:
        self._authenticator = authenticator
        self._logins: set[LiveLogin] = set()
        self._expiring: set[LiveLogin] = set()
        self._versions = authenticator.versions

    def open(
        self,
        caller: Caller,
        end: Callable[[int, str], None],
        ask: Callable[[float], None] | None = None,
    ) -> LiveLogin:
        """Watch the login of a new connection.

        `end` is called with a close code and the reason when the login ends, and `ask` before that,
        with the time when it does, if the client can send a fresh token.
        """
        login = LiveLogin(self, caller, end, ask)
        self._logins.add(login)
        if caller.expires != float("inf"):
            self._expiring.add(login)
        if not self._authenticator.is_valid(caller):  # revoked since the request was checked
            asyncio.get_running_loop().call_soon(self._end, login)
        return login

    @contextlib.contextmanager
    def watched(self, caller: Caller, end: Callable[[int, str], None]) -> Iterator[None]:
        """Watch the login of a connection within the block."""
        login = self.open(caller, end)
        try:
            yield
        finally:
            login.close()

    def discard(self, login: LiveLogin) -> None:
        """Forget a connection that has ended."""
        self._logins.discard(login)
        self._expiring.discard(login)

    async def renew(self, login: LiveLogin, token: str, address: str) -> Caller:
        """Use a fresh token of the same caller on its connection; Problem if it is refused.

        Subscriptions were checked with the old rights. If those differ, the connection ends, and
        the client connects again with the new token.
        """
        fresh = await self._authenticator.by_credential(token.encode(), address)
        if fresh.label != login.caller.label:
            raise Problem(
                403, f"the token is of {fresh.label}, but the connection is of {login.caller.label}"
            )
        if login not in self._logins:  # closed meanwhile
            return fresh
        if _access(fresh) != _access(login.caller):
            login.end(EXPIRED, "the rights or claims have changed; connect with the new token")
            return fresh
        # A token that is valid no longer than the old one was asked for in vain: once is enough.
        login.asked = login.asked and fresh.expires <= login.caller.expires
        login.caller = fresh
        if fresh.expires != float("inf"):
            self._expiring.add(login)
        else:
            self._expiring.discard(login)
        return fresh

    async def watch(self) -> None:
        """End revoked and expired logins within a second; runs until cancelled."""
        while True:
            await asyncio.sleep(_CHECK_SECONDS)
            now = time.time()
            for login in [
                each for each in self._expiring if each.caller.expires - _ASK_SECONDS <= now
            ]:
                self._check_expiry(login, now)
            if (versions := self._authenticator.versions) != self._versions:
                self._versions = versions
                await self._check_all()

    def _check_expiry(self, login: LiveLogin, now: float) -> None:
        left = login.caller.expires - now
        if left <= 0:
            self._end(login)
        elif left <= _ASK_SECONDS and login.ask is not None and not login.asked:
            login.asked = True
            login.ask(login.caller.expires)

    async def _check_all(self) -> None:
        for number, login in enumerate(list(self._logins), 1):
            if not self._authenticator.is_valid(login.caller):
                self._end(login)
            if number % _CHECKED_AT_ONCE == 0:
                await asyncio.sleep(0)

    def _end(self, login: LiveLogin) -> None:
        if login not in self._logins:
            return
        if login.caller.expires <= time.time():
            code, reason = EXPIRED, "the login has expired; connect with a fresh token"
        else:
            code, reason = REVOKED, "the key or token was revoked, or its rights were changed"
        try:
            login.end(code, reason)
        except Exception:
            _log.exception("cannot end a connection of %s", login.caller.label)
        self.discard(login)


def _access(caller: Caller) -> tuple[tuple[str, ...], dict[str, Any]]:
    claims = {name: caller.claims[name] for name in caller.claims if name not in _OF_ONE_TOKEN}
    return tuple(sorted(caller.rights.words)), claims
