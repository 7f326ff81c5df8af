"""Authentication by JWT: tokens that an issuer signed, verified with its public keys."""

from __future__ import annotations

import re
from typing import Any

import jwt

from millstream.web.auth.caller import Caller
from millstream.web.auth.jwks import ALGORITHMS, IssuerKeys
from millstream.web.auth.rights import Rights
from millstream.web.auth.settings import AccessSettings

_MAX_BYTES = 8 * 1024
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

    async def verify(self, token: bytes) -> tuple[Caller, float]:
        """The token's caller, and when the token expires (as time.time()).

        TokenRefused, IssuerKeysUnavailable.
        """
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
        claims = self._decode(text, keys, algorithm)
        rights = Rights.of({"write": self._patterns(claims)})
        name = str(claims.get("sub") or claims.get("client_id") or "")[:200]
        # Limited, because an issuer may write a number for "never" that no float can hold.
        until = float(min(int(claims["exp"]), 1 << 60)) + self._settings.jwt_leeway
        return Caller("jwt", name, rights, claims=claims, expires=until), until

    def _decode(self, token: str, keys: list[Any], algorithm: str) -> dict[str, Any]:
        error: Exception = TokenRefused("no key of the issuer signed it")
        for key in keys[:8]:  # there are several only if the token names none
            try:
                return jwt.decode(
                    token,
                    key,
                    algorithms=[algorithm],
                    audience=self._settings.jwt_audience,
                    issuer=self._settings.jwt_issuer,
                    leeway=self._settings.jwt_leeway,
                    options={"require": ["exp", "iss", "aud"]},
                )
            except jwt.InvalidSignatureError:
                continue
            except jwt.PyJWTError as refused:
                error = TokenRefused(_reason(refused))
            except (ValueError, TypeError, OverflowError, RecursionError):
                error = TokenRefused("it is not a JSON Web Token")
        raise error

    def _patterns(self, claims: dict[str, Any]) -> list[str]:
        value = claims.get(self._settings.jwt_claim)
        if value is None:
            value = claims
            for part in self._settings.jwt_claim.split("."):
                value = value.get(part) if isinstance(value, dict) else None
        words = value.split() if isinstance(value, str) else value
        prefix = self._settings.jwt_claim_prefix
        return [
            word.removeprefix(prefix)
            for word in (words if isinstance(words, list) else ())
            if isinstance(word, str) and word.startswith(prefix) and not re.search(r"\s", word)
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
