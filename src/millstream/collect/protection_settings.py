"""Settings of the collector's protection: logins, TLS, limits."""

from __future__ import annotations

from typing import Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})

Login = Literal["key", "jwt", "certificate"]


class ProtectionSettings(BaseModel):
    """Who may send, over what, and how much."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    auth: list[Login] = Field(
        default_factory=list,
        description="The logins that are accepted: key (`millstream keys`), jwt, certificate; "
        "empty: nobody has to log in.",
    )
    insecure: bool = Field(
        False,
        description="Listen on a public address although nobody has to log in; `--insecure`.",
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
        "words; `*` stands for any characters. A dot leads into a nested claim.",
    )
    jwt_claim_prefix: str = Field(
        "",
        description="Only words of the claim that begin so count, without it; as in "
        "`millstream:write:` with jwt_claim = `scope`.",
    )
    jwt_leeway: float = Field(
        30.0, ge=0, le=600, description="Seconds that the issuer's clock may be wrong."
    )
    jwt_refresh: float = Field(
        300.0, gt=0, description="Seconds after which the issuer's keys are read again."
    )
    jwt_refresh_least: float = Field(
        10.0,
        gt=0,
        description="Seconds that must pass before an unknown key makes us read them earlier.",
    )
    tls_certificate: str = Field(
        "",
        description="The server's certificate chain (PEM); empty: plain HTTP. Read when changed.",
    )
    tls_key: str = Field("", description="The certificate's private key (PEM).")
    tls_client_ca: str = Field(
        "",
        description="Authorities (PEM) whose client certificates are accepted. Each client must "
        "show one, unless auth has certificate beside other logins: then any of them will do.",
    )
    tls_client_streams: dict[str, list[str]] = Field(
        default_factory=dict,
        description="A client certificate's name (common or alternative; `*` is allowed) and the "
        "streams it may write to; empty: each may write to all.",
    )
    cors_origins: list[str] = Field(
        default_factory=list,
        description="Origins whose pages may send, as in https://shop.example; `*`: any.",
    )
    trusted_proxies: list[str] = Field(
        default_factory=list,
        description="Addresses of proxies whose X-Forwarded-For says who sends.",
    )
    rate: float = Field(
        0.0,
        ge=0,
        description="Events a second that each login (or address, without logins) may send; beyond "
        "it, 429. Each worker counts by itself: a sender with connections to several may send as "
        "much to each. 0: no limit. A key may have its own.",
    )
    rate_burst: float = Field(
        10.0, ge=1, description="Seconds' worth of `rate` that may come at once."
    )
    max_connections: int = Field(
        8192,
        ge=1,
        description="Connections in all, per worker; beyond, new ones are closed with a 503.",
    )
    max_connections_per_address: int = Field(
        2048, ge=1, description="Connections of one address (IPv6: one /64), likewise."
    )
    max_header_bytes: int = Field(
        16 * 1024, ge=1024, description="Bytes of a request's line and headers; beyond, 431."
    )
    max_headers: int = Field(100, ge=10, description="Headers of a request; beyond, 431.")
    header_timeout: float = Field(
        10.0,
        gt=0,
        description="Seconds in which a request's headers must be complete, and a TLS handshake.",
    )
    idle_timeout: float = Field(
        65.0,
        gt=0,
        description="Seconds that a connection may wait between requests; longer than senders' "
        "own pools keep it, so that they close first.",
    )
    min_body_rate: float = Field(
        240.0,
        gt=0,
        description="Bytes a second that a body must come with on average, after 5 s; else 408.",
    )
    write_timeout: float = Field(
        20.0, gt=0, description="Seconds in which a sender must read something of its answer."
    )

    @field_validator("auth", mode="before")
    @classmethod
    def _one_login_or_more(cls, value: object) -> object:
        return value.replace(",", " ").split() if isinstance(value, str) else value

    @field_validator("jwt_jwks")
    @classmethod
    def _cannot_be_replaced_on_the_way(cls, value: str) -> str:
        parts = urlsplit(value)
        if parts.scheme == "http" and parts.hostname not in LOOPBACK:
            raise ValueError("keys that come over plain http:// could be anybody's; use https://")
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

    @model_validator(mode="after")
    def _logins_are_complete(self) -> ProtectionSettings:
        missing = {
            "jwt": [
                name for name in ("jwt_jwks", "jwt_issuer", "jwt_audience") if not self.of(name)
            ],
            "certificate": [] if self.tls_client_ca else ["tls_client_ca"],
        }
        for login in self.auth:
            if names := missing.get(login):
                raise ValueError(f"auth has {login!r}, but {' and '.join(names)} is not set")
        return self

    @model_validator(mode="after")
    def _tls_is_complete(self) -> ProtectionSettings:
        if bool(self.tls_certificate) != bool(self.tls_key):
            raise ValueError("tls_certificate and tls_key are only of use together; set both")
        if self.tls_client_ca and not self.tls_certificate:
            raise ValueError("tls_client_ca needs TLS; set tls_certificate and tls_key too")
        if self.tls_client_streams and "certificate" not in self.auth:
            raise ValueError("tls_client_streams is only heeded if auth has 'certificate'")
        return self

    def of(self, name: str) -> str:
        """The text setting of that name."""
        return str(getattr(self, name))
