"""Open connections end with their logins, and fresh tokens keep them open."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.wait_until import until
from tests.web.auth.token_issuer import AUDIENCE, ISSUER, jwk, jwks, private_key, token

from millstream.collect.settings import CollectSettings
from millstream.web.auth.authenticator import Authenticator
from millstream.web.auth.caller import Caller
from millstream.web.auth.live_logins import EXPIRED, REVOKED, LiveLogins
from millstream.web.problem import Problem


class Peer:
    """A connection that notes what it is told."""

    def __init__(self) -> None:
        self.ended: list[int] = []
        self.asked: list[float] = []

    def end(self, code: int, reason: str) -> None:
        self.ended.append(code)


@pytest.fixture
def authenticator(tmp_path: Path) -> Authenticator:
    (tmp_path / "jwks.json").write_bytes(jwks(jwk(private_key("ES256"), "ES256")))
    settings = CollectSettings(
        auth=["jwt"],
        jwt_jwks=str(tmp_path / "jwks.json"),
        jwt_issuer=ISSUER,
        jwt_audience=AUDIENCE,
        jwt_leeway=0.0,
    )
    return Authenticator(settings, tmp_path / "keys.json")


@pytest.fixture
async def logins(authenticator: Authenticator) -> AsyncIterator[LiveLogins]:
    live = LiveLogins(authenticator)
    watching = asyncio.create_task(live.watch())
    yield live
    watching.cancel()


async def caller_of(authenticator: Authenticator, seconds: int = 300, **more: Any) -> Caller:
    text = token(exp=int(time.time()) + seconds, **more)
    return await authenticator.by_credential(text.encode(), "1.2.3.4")


async def test_the_client_is_asked_once_and_ended_at_expiry(
    authenticator: Authenticator, logins: LiveLogins
) -> None:
    peer, silent = Peer(), Peer()
    caller = await caller_of(authenticator, seconds=2)
    logins.open(caller, peer.end, peer.asked.append)
    logins.open(caller, silent.end)
    await until(lambda: peer.ended and silent.ended, 10.0)
    assert (peer.ended, peer.asked) == ([EXPIRED], [caller.expires])
    assert time.time() >= caller.expires


async def test_who_has_time_is_not_asked(authenticator: Authenticator, logins: LiveLogins) -> None:
    early, late = Peer(), Peer()
    logins.open(await caller_of(authenticator, seconds=300), early.end, early.asked.append)
    logins.open(await caller_of(authenticator, seconds=29), late.end, late.asked.append)
    await until(lambda: late.asked, 5.0)
    assert (early.asked, early.ended, late.ended) == ([], [], [])


async def test_a_fresh_token_of_the_same_caller_is_used(
    authenticator: Authenticator, logins: LiveLogins
) -> None:
    peer = Peer()
    login = logins.open(await caller_of(authenticator, seconds=2), peer.end, peer.asked.append)
    fresh = token(exp=int(time.time()) + 600, jti="2")
    renewed = await logins.renew(login, fresh, "1.2.3.4")
    assert login.caller is renewed
    for wrong, status in ((token(sub="other"), 403), ("no token", 401), ("a.b.c", 401)):
        with pytest.raises(Problem) as refused:
            await logins.renew(login, wrong, "1.2.3.4")
        assert refused.value.status == status
        assert login.caller is renewed
    assert peer.ended == []
    await logins.renew(login, token(exp=int(time.time()) + 600, tenant="other"), "1.2.3.4")
    assert peer.ended == [EXPIRED]


async def test_a_connection_whose_key_goes_while_it_opens_ends(
    authenticator: Authenticator, logins: LiveLogins, tmp_path: Path
) -> None:
    peer, closed = Peer(), Peer()
    caller = await caller_of(authenticator)
    assert authenticator.jwt_verifier is not None
    (tmp_path / "jwks.json").write_bytes(jwks(jwk(private_key("ES256", 1), "other")))
    await authenticator.jwt_verifier.keys.fetch_again(5.0)
    logins.open(caller, closed.end).close()
    logins.open(caller, peer.end)
    await until(lambda: peer.ended, 5.0)
    assert (peer.ended, closed.ended) == ([REVOKED], [])


async def test_one_connection_that_fails_does_not_save_the_others(
    authenticator: Authenticator, logins: LiveLogins
) -> None:
    def fail(code: int, reason: str) -> None:
        raise RuntimeError("broken")

    peer, caller = Peer(), await caller_of(authenticator, seconds=1)
    logins.open(caller, fail)
    logins.open(caller, peer.end)
    await until(lambda: peer.ended, 10.0)
    assert peer.ended == [EXPIRED]
