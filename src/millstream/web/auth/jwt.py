"""Authentication by JWT: tokens that an issuer signed, verified with its public keys."""

from __future__ import annotations

import math
import re
from typing import Any

import jwt

from millstream.web.auth.caller import Caller
from millstream.web.auth.jwks import ALGORITHMS, IssuerKeys, fingerprint
from millstream.web.auth.rights import Rights, is_right
from millstream.web.auth.settings import AccessSettings

_MAX_BYTES = 8 * 1024
_MAX_TIME = 250_000_000_000  # in the year 9892
_FETCH_SECONDS = 2.0  # that a caller waits for keys which have to be fetched


class TokenRefused(Exception):
    """A token is not accepted; the message says why, without the token's content."""


class IssuerKeysUnavailable(Exception):
    """The issuer's keys could not be read yet, so the token cannot be checked."""


class JwtVerifier:
    """Authenticates callers by JWT."""

    def __init__(self, settings: AccessSettings) -> None:
        self._settings = settings
        self.keys = IssuerKeys(
            settings.jwt_jwks,
            refresh=settings.jwt_refresh,
            refresh_least=settings.jwt_refresh_least,
        )

    async def verify(self, token: bytes) -> Caller:
        """The token's caller; TokenRefused, IssuerKeysUnavailable."""
        if len(token) > _MAX_BYTES:
            raise TokenRefused("it is too long")
        text = token.decode("latin-1")
        kid, algorithm = _read_header(text)
        keys = self.keys.find(kid, algorithm)
        if not keys and await self.keys.fetch_again(_FETCH_SECONDS):
            keys = self.keys.find(kid, algorithm)
        if not keys and self.keys.is_empty:
            raise IssuerKeysUnavailable
        if not keys:
            raise TokenRefused("no key of the issuer signed it")
        claims, signer = self._decode(text, keys, algorithm)
        settings = self._settings
        streams = _words(claims, settings.jwt_claim, settings.jwt_claim_prefix)
        words = _words(claims, settings.jwt_rights_claim, settings.jwt_rights_prefix)
        rights = Rights([*(f"write:{each}" for each in streams), *filter(is_right, words)])
        name = str(claims.get("sub") or claims.get("client_id") or "")[:200]
        # An issuer may write a number for "never" that no date or float can hold.
        expires = int(claims["exp"])
        until = math.inf if expires > _MAX_TIME else expires + settings.jwt_leeway
        return Caller("jwt", name, rights, claims=claims, expires=until, signer=fingerprint(signer))

    def _decode(self, token: str, keys: list[Any], algorithm: str) -> tuple[dict[str, Any], Any]:
        """The claims, and the key that signed them."""
        error: Exception = TokenRefused("no key of the issuer signed it")
        for key in keys[:8]:  # there are several only if the token names none
            try:
                claims = jwt.decode(
                    token,
                    key,
                    algorithms=[algorithm],
                    audience=self._settings.jwt_audience,
                    issuer=self._settings.jwt_issuer,
                    leeway=self._settings.jwt_leeway,
                    options={"require": ["exp", "iss", "aud"]},
                )
                return claims, key
            except jwt.InvalidSignatureError:
                continue
            except jwt.PyJWTError as refused:
                error = TokenRefused(_reason(refused))
            except (ValueError, TypeError, OverflowError, RecursionError):
                error = TokenRefused("it is not a JSON Web Token")
        raise error


def _words(claims: dict[str, Any], name: str, prefix: str) -> list[str]:
    """The words of a claim, an array or text, that begin with the prefix, without it."""
    value = claims.get(name)
    if value is None:
        value = claims
        for part in name.split("."):
            value = value.get(part) if isinstance(value, dict) else None
    words = value.split() if isinstance(value, str) else value
    return [
        word.removeprefix(prefix)
        for word in (words if isinstance(words, list) else ())
        if isinstance(word, str) and word.startswith(prefix) and word != prefix
        if not re.search(r"\s", word)
    ]


def is_token(credential: bytes) -> bool:
    """Whether a credential has the form of a JWT; API keys do not."""
    return credential.count(b".") == 2


def _read_header(token: str) -> tuple[str | None, str]:
    try:
        header = jwt.get_unverified_header(token)
    except (jwt.PyJWTError, ValueError, TypeError, RecursionError):
        raise TokenRefused("it is not a JSON Web Token") from None
    algorithm, kid = header.get("alg"), header.get("kid")
    if algorithm not in ALGORITHMS:
        raise TokenRefused(f"its algorithm is none of {', '.join(ALGORITHMS)}")
    if "crit" in header:
        raise TokenRefused("it has critical extensions")
    return kid if isinstance(kid, str) else None, str(algorithm)


def _reason(error: jwt.PyJWTError) -> str:
    """The reason in our words: the library's message may repeat the token's content."""
    match error:
        case jwt.ExpiredSignatureError():
            return "it has expired"
        case jwt.InvalidAudienceError():
            return "it is for another audience"
        case jwt.InvalidIssuerError():
            return "it is from another issuer"
        case jwt.ImmatureSignatureError():
            return "it is not valid yet"
        case jwt.MissingRequiredClaimError():
            return "it lacks exp, iss or aud"
    return "it is not a JSON Web Token"
