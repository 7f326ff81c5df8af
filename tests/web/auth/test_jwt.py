"""Tokens: valid ones are accepted, and each known forgery is refused."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from tests.wait_until import until
from tests.web.auth.token_issuer import (
    AUDIENCE,
    ISSUER,
    Web,
    claims,
    jwk,
    jwks,
    private_key,
    public_pem,
    token,
    unsigned,
)
from tests.web.echo_server import STREAMS, echo_server

from millstream.collect.settings import CollectSettings
from millstream.errors import SettingsError
from millstream.web.auth.caller import Caller
from millstream.web.auth.jwt import IssuerKeysUnavailable, JwtVerifier, TokenRefused

ALGORITHMS = ("RS256", "ES256", "EdDSA")


def settings(place: str | Path, **more: Any) -> dict[str, Any]:
    return {
        "auth": ["jwt"],
        "jwt_jwks": str(place),
        "jwt_issuer": ISSUER,
        "jwt_audience": AUDIENCE,
        "jwt_leeway": 1.0,
        **more,
    }


def bearers(place: str | Path, **more: Any) -> JwtVerifier:
    return JwtVerifier(CollectSettings(**settings(place, **more)))


def writable(caller: Caller) -> set[str]:
    return {name for name in STREAMS if caller.rights.allows("write", "stream", name)}


def login(text: str) -> dict[str, str]:
    return {"authorization": f"Bearer {text}"}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "jwks.json"
    path.write_bytes(jwks(*(jwk(private_key(name), name) for name in ALGORITHMS)))
    return path


@pytest.fixture
async def web() -> AsyncIterator[Web]:
    web = Web()
    await web.start()
    yield web
    await web.stop()


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("names_its_key", [True, False])
async def test_a_token_allows_the_streams_in_its_claim(
    file: Path, algorithm: str, names_its_key: bool
) -> None:
    text = token(algorithm, kid="" if names_its_key else None)
    caller = await bearers(file).verify(text.encode())
    assert (caller.kind, caller.name, writable(caller)) == ("jwt", "shop", {"clicks", "names"})
    assert 290 < caller.expires - time.time() <= 301


@pytest.mark.parametrize(
    ("more", "said", "streams"),
    [
        ({}, {"streams": "clicks notes"}, {"clicks", "notes"}),
        ({}, {"streams": None}, set()),
        ({}, {"streams": 7}, set()),
        ({}, {"streams": {"clicks": True}}, set()),
        ({}, {"streams": [["clicks"], None, "n.tes"]}, set()),
        ({}, {"streams": "*"}, set(STREAMS)),
        (
            {"jwt_claim": "scope", "jwt_claim_prefix": "millstream:write:"},
            {"scope": "openid millstream:write:cl* notes"},
            {"clicks"},
        ),
        ({"jwt_claim": "a.b"}, {"a": {"b": ["notes"]}, "streams": "*"}, {"notes"}),
        ({"jwt_claim": "https://x.example/s"}, {"https://x.example/s": ["notes"]}, {"notes"}),
    ],
)
async def test_rights_come_from_one_claim_alone(
    file: Path, more: dict[str, Any], said: dict[str, Any], streams: set[str]
) -> None:
    caller = await bearers(file, **more).verify(token(**said).encode())
    assert writable(caller) == streams


NOW = int(time.time())


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ({"exp": NOW - 60}, "expired"),
        ({"nbf": NOW + 86_400}, "not valid yet"),
        ({"iat": NOW + 86_400}, "not valid yet"),
        ({"aud": "someone-else"}, "another audience"),
        ({"aud": ["a", "b"]}, "another audience"),
        ({"aud": []}, "another audience|lacks"),
        ({"iss": "https://evil.example"}, "another issuer"),
        ({"iss": ISSUER + "/"}, "another issuer"),
        ({"exp": None}, "lacks"),
        ({"aud": None}, "lacks"),
        ({"iss": None}, "lacks"),
        ({"exp": "soon"}, "not a JSON Web Token"),
        ({"exp": 1e400}, "not a JSON Web Token"),
    ],
)
async def test_a_token_for_another_audience_or_time_is_refused(
    file: Path, said: dict[str, Any], why: str
) -> None:
    with pytest.raises(TokenRefused, match=why):
        await bearers(file).verify(token(**said).encode())


async def test_an_expiry_beyond_all_dates_never_expires(file: Path) -> None:
    caller = await bearers(file).verify(token(exp=10**400).encode())
    assert caller.expires > time.time()


def confused(public: bytes) -> str:
    """HS256, signed with the public key as the secret."""
    head, payload, _ = unsigned({"alg": "HS256", "kid": "RS256"}, claims()).split(".")
    signed = hmac.new(public, f"{head}.{payload}".encode(), hashlib.sha256).digest()
    return unsigned({"alg": "HS256", "kid": "RS256"}, claims(), signed)


def with_other_claims() -> str:
    head, _, signature = token().split(".")
    return f"{head}.{unsigned({}, claims(streams='*')).split('.')[1]}.{signature}"


def by_another(**headers: Any) -> str:
    return token("RS256", key=private_key("RS256", 1), headers=headers)


FORGED: dict[str, Callable[[], str]] = {
    "none": lambda: unsigned({"alg": "none"}, claims()),
    "none with a kid": lambda: unsigned({"alg": "None", "kid": "ES256"}, claims()),
    "no alg": lambda: unsigned({"kid": "ES256"}, claims()),
    "no signature": lambda: token().rpartition(".")[0] + ".",
    "other claims": with_other_claims,
    "zero signature": lambda: unsigned({"alg": "ES256", "kid": "ES256"}, claims(), b"\0" * 64),
    "HS256 by the public PEM": lambda: confused(public_pem(private_key("RS256"))),
    "HS256 by the public JWK": lambda: confused(
        json.dumps(jwk(private_key("RS256"), "RS256")).encode()
    ),
    "unknown kid": lambda: token(kid="other"),
    "another's key": by_another,
    "another's key in the token": lambda: by_another(jwk=jwk(private_key("RS256", 1), "RS256")),
    "another's key by URL": lambda: by_another(jku="http://127.0.0.1:1/", x5u="file:///etc"),
    "another algorithm's key": lambda: token("ES256", kid="RS256"),
    "another hash": lambda: token("RS512", key=private_key("RS256"), kid="RS256"),
    "another padding": lambda: token("PS256", key=private_key("RS256"), kid="RS256"),
    "another curve": lambda: token("ES384", kid="ES256"),
    "critical extension": lambda: token(headers={"crit": ["exp"]}),
    "unencoded payload": lambda: token(headers={"b64": False, "crit": ["b64"]}),
    "long": lambda: token(more="x" * 9000),
    "an array": lambda: unsigned([], claims()),
    "deep": lambda: unsigned({"alg": "ES256"}, json.loads("[" * 500 + "]" * 500)),
    "kid a path": lambda: token(kid="../../../../dev/null"),
    "kid a number": lambda: unsigned({"alg": "ES256", "kid": 7}, claims(), b"x"),
    "alg a list": lambda: unsigned({"alg": ["ES256"]}, claims(), b"x"),
    "dots": lambda: "..",
    "no base64": lambda: "\xff.\xff.\xff",
    "with a line": lambda: token().replace(".", "\n.", 1),
    "key of no use": lambda: token(kid="encryption"),
    "weak key": lambda: token("RS256", key=private_key("RS256-weak"), kid="weak"),
    "curve of the set": lambda: token("ES384", kid="P-384"),
    "secret of the set": lambda: token("HS256", key="k" * 32, kid="oct"),
}


@pytest.mark.parametrize("name", FORGED)
async def test_the_error_for_a_forged_token_does_not_repeat_it(tmp_path: Path, name: str) -> None:
    path = tmp_path / "jwks.json"
    secret = {"kty": "oct", "k": "a2tra2tra2tra2tra2tra2tra2tra2tra2tra2tra2s", "kid": "oct"}
    path.write_bytes(
        jwks(
            *(jwk(private_key(each), each) for each in ALGORITHMS),
            jwk(private_key("ES256"), "encryption", use="enc"),
            jwk(private_key("RS256-weak"), "weak"),
            jwk(private_key("ES384"), "P-384"),
            secret,
        )
    )
    checked = bearers(path)
    with pytest.raises(TokenRefused) as refused:
        await checked.verify(FORGED[name]().encode("latin-1"))
    assert len(str(refused.value)) < 80
    await checked.verify(token().encode())  # and the good one is taken by the same set


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "no JSON Web Key Set"),
        (b"[]", "no JSON Web Key Set"),
        (b'{"keys": [1]}', "no JSON Web Key Set"),
        (b'{"keys": []}', "has no usable key"),
        (b'{"keys": [{"kty": "oct", "k": "eA"}, {"kty": "RSA", "n": "AQ"}]}', "has no usable key"),
        (b" " * 300_000, "larger than"),
        (None, "No such file"),
    ],
)
def test_a_file_that_is_no_key_set_is_refused_at_start(
    tmp_path: Path, content: bytes | None, why: str
) -> None:
    path = tmp_path / "jwks.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(SettingsError, match=why):
        bearers(path)


async def test_keys_from_a_url_that_comes_up_later_and_goes_away_again(
    web: Web, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    quick = settings(web.url, jwt_refresh=60, jwt_refresh_least=0.05)
    async with echo_server(tmp_path, **quick) as server:
        good = login(token())
        answer = await server.ask(headers=good)  # it fails: nothing is known of the token
        assert (answer.status, answer.headers["retry-after"]) == (503, "2")
        assert server.echo.bodies == []
        web.content = jwks(jwk(private_key("ES256"), "ES256"))

        async def opens() -> bool:
            return (await server.ask(headers=good)).status == 200

        await until(opens)
        await web.stop()
        assert await opens()
        assert (await server.ask(headers=login(token(sub="new")))).status == 200
        assert (await server.ask(headers=login(token(kid="unknown")))).status == 401
        await until(lambda: "the old keys stay in use" in caplog.text)
        # A new key, and the old one withdrawn: what it signed opens nothing, remembered or not.
        fresh = private_key("ES256", 1)
        web.content = jwks(jwk(fresh, "next"))
        await web.start()

        async def opens_with_the_next() -> bool:
            text = token(key=fresh, kid="next")
            return (await server.ask(headers=login(text))).status == 200

        await until(opens_with_the_next)
        assert (await server.ask(headers=good)).status == 401
        assert "hidden" not in caplog.text


@pytest.mark.parametrize("status", ["302 Found\r\nlocation: /other", "404 Not Found"])
async def test_a_url_that_answers_with_something_else_gives_no_keys(web: Web, status: str) -> None:
    web.content, web.status = jwks(jwk(private_key("ES256"), "ES256")), status
    with pytest.raises(IssuerKeysUnavailable):
        await bearers(web.url).verify(token().encode())
    assert web.asked == 1


async def test_unknown_keys_do_not_make_us_ask_the_issuer_each_time(web: Web) -> None:
    web.content = jwks(jwk(private_key("ES256"), "ES256"))
    checked = bearers(web.url, jwt_refresh_least=60)
    await checked.verify(token().encode())
    for number in range(20):
        with pytest.raises(TokenRefused):
            await checked.verify(token(kid=f"k{number}").encode())
    assert web.asked == 1


async def test_tokens_have_rights_and_wrong_tokens_are_limited(file: Path, tmp_path: Path) -> None:
    async with echo_server(tmp_path, **settings(file)) as server:
        good = login(token())
        assert (await server.ask(headers=good)).status == 200
        assert (await server.ask("/v1/streams/notes", headers=good)).status == 403
        short = login(token(exp=int(time.time()) + 2))
        assert (await server.ask(headers=short)).status == 200

        async def has_expired() -> bool:  # although it is remembered
            return (await server.ask(headers=short)).status == 401

        await until(has_expired, seconds=10)
        refused = await server.ask(headers=login(token(iss="https://evil.example")))
        assert 'error="invalid_token"' in refused.headers["www-authenticate"]
        assert "evil" not in refused.problem()["detail"]

        wrong = login(FORGED["other claims"]())
        answers = await asyncio.gather(*(server.ask(headers=wrong) for _ in range(200)))
        assert {answer.status for answer in answers} == {401, 429}
        assert (await server.ask(headers=good)).status == 200  # which is known already
        assert (await server.ask(headers=login("msk_no-token"))).status == 401


@pytest.mark.parametrize("missing", ["jwt_jwks", "jwt_issuer", "jwt_audience"])
def test_an_incomplete_login_is_refused(missing: str) -> None:
    with pytest.raises(ValueError, match=missing):
        CollectSettings(**settings("x.json", **{missing: ""}))


def test_keys_over_plain_http_are_refused() -> None:
    with pytest.raises(ValueError, match="use https"):
        CollectSettings(**settings("http://login.example/keys"))
    assert CollectSettings(**settings("http://127.0.0.1:1/keys")).jwt_jwks
