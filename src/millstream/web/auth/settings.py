"""Settings of access to a server: logins, TLS, CORS, rate limits."""

from __future__ import annotations

from ipaddress import ip_network
from typing import Literal
from urllib.parse import urlsplit

from pydantic import Field, field_validator, model_validator

from millstream.web.auth.rights import Rights
from millstream.web.settings import LOOPBACK, HttpSettings, TlsSettings

Login = Literal["key", "jwt", "certificate"]


class AccessSettings(HttpSettings, TlsSettings):
    """Who may call a server, and how often."""

    auth: list[Login] = Field(
        default_factory=list,
        description="Accepted logins: key (`millstream keys`), jwt, certificate; empty: no login "
        "is needed.",
    )
    keys_file: str = Field(
        "", description="The file of API keys; empty: keys.json in the home. Read when it changes."
    )
    jwt_jwks: str = Field(
        "", description="The issuer's public keys (JWKS): a file, or an https:// URL."
    )
    jwt_issuer: str = Field("", description="The `iss` that a token must have.")
    jwt_audience: str = Field("", description="The `aud` that a token must have.")
    jwt_claim: str = Field(
        "streams",
        description="The claim that lists the streams a token may write to, as an array or as "
        "words; `*` means any characters. A dot separates the names of nested claims.",
    )
    jwt_claim_prefix: str = Field(
        "",
        description="Only words of the claim with this prefix count, and the prefix is removed; "
        "such as `millstream:write:` with jwt_claim = `scope`.",
    )
    jwt_rights_claim: str = Field(
        "rights",
        description="The claim that lists what a token may do, as an array or as words: "
        "`read:orders query:* admin`. Other words in it are ignored. A dot separates the names of "
        "nested claims.",
    )
    jwt_rights_prefix: str = Field(
        "",
        description="Only words of jwt_rights_claim with this prefix count, and the prefix is "
        "removed; such as `millstream:` with jwt_rights_claim = `scope`.",
    )
    jwt_leeway: float = Field(
        30.0, ge=0, le=600, description="Maximum difference to the issuer's clock, in seconds."
    )
    jwt_refresh: float = Field(
        300.0, gt=0, description="Seconds after which the issuer's keys are read again."
    )
    jwt_refresh_least: float = Field(
        10.0,
        gt=0,
        description="Minimum seconds between reads that an unknown key causes.",
    )
    tls_client_streams: dict[str, list[str]] = Field(
        default_factory=dict,
        description="Streams that a client certificate may write to, by its name (common or "
        "alternative; `*` is allowed); empty: each may write to all.",
    )
    tls_client_rights: dict[str, list[str]] = Field(
        default_factory=dict,
        description="What a client certificate may do, by its name as above: `read:orders`, "
        "`query:*`, `write:clicks_*`, `admin`.",
    )
    cors_origins: list[str] = Field(
        default_factory=list,
        description="Origins whose pages may call, such as https://shop.example; `*`: any.",
    )
    trusted_proxies: list[str] = Field(
        default_factory=list,
        description="Addresses or networks (10.0.0.0/8) of proxies whose Forwarded or "
        "X-Forwarded-For header names the client.",
    )
    rate: float = Field(
        0.0,
        ge=0,
        description="Events a second for each login (or address, without logins); beyond it, 429. "
        "Each worker counts separately, so a client with connections to several may send as much "
        "to each. 0: no limit. A key may have its own.",
    )
    rate_burst: float = Field(10.0, ge=1, description="Seconds of `rate` that may come at once.")

    @field_validator("auth", mode="before")
    @classmethod
    def _split_logins(cls, value: object) -> object:
        return value.replace(",", " ").split() if isinstance(value, str) else value

    @field_validator("jwt_jwks")
    @classmethod
    def _is_authentic(cls, value: str) -> str:
        parts = urlsplit(value)
        if parts.scheme == "http" and parts.hostname not in LOOPBACK:
            raise ValueError("keys over plain http:// could be replaced on the way; use https://")
        return value

    @field_validator("cors_origins")
    @classmethod
    def _are_origins(cls, value: list[str]) -> list[str]:
        for origin in value:
            parts = urlsplit(origin)
            bare = (
                parts.scheme in ("http", "https") and origin == f"{parts.scheme}://{parts.netloc}"
            )
            if origin != "*" and not bare:
                raise ValueError(f"{origin!r} is no origin; write scheme://host[:port], or *")
        return value

    @field_validator("trusted_proxies")
    @classmethod
    def _are_networks(cls, value: list[str]) -> list[str]:
        for each in value:
            try:
                ip_network(each)
            except ValueError:
                raise ValueError(
                    f"{each!r} is no address of a proxy; write 10.0.0.5 or 10.0.0.0/8"
                ) from None
        return value

    @field_validator("tls_client_rights")
    @classmethod
    def _are_rights(cls, value: dict[str, list[str]]) -> dict[str, list[str]]:
        for words in value.values():
            Rights(words)
        return value

    @model_validator(mode="after")
    def _logins_are_complete(self) -> AccessSettings:
        missing = {
            "jwt": [
                name
                for name in ("jwt_jwks", "jwt_issuer", "jwt_audience")
                if not getattr(self, name)
            ],
            "certificate": [] if self.tls_client_ca else ["tls_client_ca"],
        }
        for login in self.auth:
            if names := missing.get(login):
                raise ValueError(f"auth has {login!r}, but {' and '.join(names)} is not set")
        return self

    @model_validator(mode="after")
    def _certificates_have_rights(self) -> AccessSettings:
        for name in ("tls_client_streams", "tls_client_rights"):
            if getattr(self, name) and "certificate" not in self.auth:
                raise ValueError(f"{name} needs 'certificate' in auth")
        return self
