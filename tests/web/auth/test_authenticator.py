"""Who a caller is, by key, token, certificate or ticket; and whether it still is."""

from __future__ import annotations

import json
import math
import time
from pathlib import Path
from typing import Any

import pytest
from tests.web.auth.token_issuer import AUDIENCE, ISSUER, jwk, jwks, private_key, token

from millstream.collect.settings import CollectSettings
from millstream.web.auth.api_keys import ApiKeyFile, digest
from millstream.web.auth.authenticator import Authenticator
from millstream.web.auth.caller import Caller
from millstream.web.auth.rights import Rights
from millstream.web.auth.tickets import Tickets
from millstream.web.problem import Problem


def authenticator(folder: Path, *auth: str, **more: Any) -> Authenticator:
    issuer = folder / "jwks.json"
    issuer.write_bytes(jwks(jwk(private_key("ES256"), "ES256")))
    jwt = {"jwt_jwks": str(issuer), "jwt_issuer": ISSUER, "jwt_audience": AUDIENCE}
    tls = {"tls_certificate": "x", "tls_key": "x", "tls_client_ca": "x"}
    wanted = {**(jwt if "jwt" in auth else {}), **(tls if "certificate" in auth else {})}
    options = {
        name: more.pop(name) for name in ("operator", "certified", "tickets") if name in more
    }
    settings = CollectSettings(auth=list(auth), **wanted, **more)
    return Authenticator(settings, folder / "keys.json", **options)


def bearer(key: str) -> list[tuple[bytes, bytes]]:
    return [(b"authorization", b"Bearer " + key.encode())]


async def test_a_key_has_rights_and_claims(tmp_path: Path) -> None:
    key = ApiKeyFile(tmp_path / "keys.json").create(
        "page", read=["by_*"], query=["*"], admin=True, claims={"tenant": "acme", "vip": True}
    )
    for headers in (bearer(key), [(b"x-api-key", key.encode())]):
        caller = await authenticator(tmp_path, "key").authenticate(headers, "1.2.3.4")
        assert (caller.kind, caller.name) == ("key", "page")
        assert caller.rights.words == ("read:by_*", "query:*", "admin")
        assert caller.claims == {"tenant": "acme", "vip": True}
        assert (caller.expires, caller.credential) == (math.inf, digest(key.encode()))


async def test_old_files_of_keys_still_open(tmp_path: Path) -> None:
    old = {
        "name": "shop",
        "sha256": digest(b"msk_old").hex(),
        "write": ["orders"],
        "created": "2026-01-01T00:00:00Z",
    }
    (tmp_path / "keys.json").write_text(json.dumps({"version": 1, "keys": [old]}))
    caller = await authenticator(tmp_path, "key").authenticate(bearer("msk_old"), "1.2.3.4")
    assert caller.rights.words == ("write:orders",)


async def test_without_logins_a_caller_is_its_address(tmp_path: Path) -> None:
    found = await authenticator(tmp_path).authenticate(bearer("anything"), "1.2.3.4")
    assert (found.label, found.rights.allows("admin")) == ("address 1.2.3.4", True)


@pytest.mark.parametrize(
    ("granted", "words"),
    [
        ({}, ("read:*",)),
        ({"tls_client_streams": {"desk-*": ["orders"]}}, ("write:orders",)),
        ({"tls_client_rights": {"*": ["read:a"], "desk-1": ["admin"]}}, ("read:a", "admin")),
        ({"tls_client_rights": {"other": ["read:a"]}}, ()),
        (
            {"tls_client_streams": {"*": ["b"]}, "tls_client_rights": {"*": ["query:c"]}},
            ("write:b", "query:c"),
        ),
    ],
)
async def test_a_certificate_has_the_rights_in_the_settings(
    tmp_path: Path, granted: dict[str, Any], words: tuple[str, ...]
) -> None:
    known = authenticator(tmp_path, "certificate", certified=Rights(["read:*"]), **granted)
    caller = await known.authenticate([], "1.2.3.4", ("desk-1", "desk.example"))
    assert (caller.label, caller.rights.words) == ("certificate desk-1", words)


async def test_the_operator_may_do_everything(tmp_path: Path) -> None:
    for auth in ("key", "jwt"):
        known = authenticator(tmp_path, auth, operator=digest(b"mso_1"))
        caller = await known.authenticate(bearer("mso_1"), "1.2.3.4")
        assert (caller.label, caller.rights.allows("admin")) == ("operator operator", True)
        assert known.is_valid(caller)
        with pytest.raises(Problem, match="unknown, revoked or expired"):
            await known.authenticate(bearer("mso_2"), "1.2.3.4")
    other = authenticator(tmp_path, "key", operator=digest(b"mso_3"))
    assert not other.is_valid(caller)
    assert not authenticator(tmp_path, "key").is_valid(caller)


async def test_a_caller_is_valid_as_long_as_its_key_gives_the_same(tmp_path: Path) -> None:
    file = ApiKeyFile(tmp_path / "keys.json")
    known, key = authenticator(tmp_path, "key"), file.create("page", read=["a"])
    assert known.api_keys is not None
    known.api_keys.reload()
    caller = await known.authenticate(bearer(key), "1.2.3.4")
    assert known.is_valid(caller)
    file.create("other")
    before = known.versions
    known.api_keys.reload()
    assert known.versions != before
    assert known.is_valid(caller)
    file.revoke("page")
    known.api_keys.reload()
    assert not known.is_valid(caller)


async def test_a_caller_is_valid_as_long_as_the_issuer_has_the_key(tmp_path: Path) -> None:
    known = authenticator(tmp_path, "jwt")
    assert known.jwt_verifier is not None
    text = token(rights=["read:a", "profile"], streams=["b"])
    caller = await known.authenticate(bearer(text), "1.2.3.4")
    assert caller.rights.words == ("write:b", "read:a")
    assert known.is_valid(caller)
    (tmp_path / "jwks.json").write_bytes(
        jwks(jwk(private_key("ES256"), "renamed"), jwk(private_key("ES256", 1), "new"))
    )
    await known.jwt_verifier.keys.fetch_again(5.0)
    assert known.is_valid(caller)
    (tmp_path / "jwks.json").write_bytes(jwks(jwk(private_key("ES256", 1), "new")))
    known.jwt_verifier.keys._read_at = -math.inf
    await known.jwt_verifier.keys.fetch_again(5.0)
    assert not known.is_valid(caller)


async def test_an_expired_caller_is_not_valid(tmp_path: Path) -> None:
    known = authenticator(tmp_path, "certificate")
    soon = Caller("certificate", "a", Rights([]), expires=time.time() + 60)
    past = Caller("certificate", "a", Rights([]), expires=time.time() - 1)
    assert (known.is_valid(soon), known.is_valid(past)) == (True, False)


async def test_a_ticket_stands_for_its_caller_only_while_that_is_valid(tmp_path: Path) -> None:
    tickets = Tickets()
    tickets.use_key(b"k" * 32)
    file = ApiKeyFile(tmp_path / "keys.json")
    key = file.create("page", read=["a"])
    known = authenticator(tmp_path, "key", tickets=tickets)
    caller = await known.authenticate(bearer(key), "1.2.3.4")
    first, second = (tickets.issue(caller)[0].encode() for _ in range(2))
    found = await known.authenticate([], "1.2.3.4", ticket=first)
    assert (found.label, found.rights.words) == ("key page", ("read:a",))
    anybody = tickets.issue(Caller("address", "1.2.3.4", Rights(["admin"])))[0].encode()
    file.revoke("page")
    assert known.api_keys is not None
    known.api_keys.reload()
    for ticket in (second, anybody):
        with pytest.raises(Problem, match="not valid any more"):
            await known.authenticate([], "1.2.3.4", ticket=ticket)
    with pytest.raises(Problem, match="issues none"):
        await authenticator(tmp_path, "key").authenticate([], "1.2.3.4", ticket=first)
