"""Settings that every HTTP server has: where it listens, its limits, and TLS."""

from __future__ import annotations

import re

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})


class HttpSettings(BaseModel):
    """Where a server listens, under which names, and its limits for connections."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    host: str = Field("127.0.0.1", description="The address to listen on.")
    insecure: bool = Field(
        False,
        description="Listen on a public address although no login is needed; `--insecure`.",
    )
    allowed_hosts: list[str] = Field(
        default_factory=list,
        description="Names by which clients reach this server, such as views.example or *.example: "
        "the Host header, without its port. localhost, the address that a request was sent to, and "
        "`host` are always allowed; other names are refused with 421. `*`: any, without protection "
        "from DNS rebinding.",
    )
    max_connections: int = Field(
        8192,
        ge=1,
        description="Maximum connections of a worker; more are closed with a 503.",
    )
    max_connections_per_address: int = Field(
        2048, ge=1, description="Maximum connections of one address (IPv6: one /64)."
    )
    max_header_bytes: int = Field(
        16 * 1024, ge=1024, description="Maximum bytes of a request's line and headers; more: 431."
    )
    max_headers: int = Field(100, ge=10, description="Maximum headers of a request; more: 431.")
    header_timeout: float = Field(
        10.0,
        gt=0,
        description="Seconds in which a request's headers must be complete, and a TLS handshake.",
    )
    idle_timeout: float = Field(
        65.0,
        gt=0,
        description="Seconds that a connection may be idle between requests; longer than in "
        "clients' connection pools, so that they close first.",
    )
    min_body_rate: float = Field(
        240.0,
        gt=0,
        description="Minimum bytes a second of a body on average, after 5 s; less: 408.",
    )
    write_timeout: float = Field(
        20.0, gt=0, description="Seconds in which a client must read something of its answer."
    )
    max_buffer_memory: int = Field(
        256 * 1024 * 1024,
        ge=1024 * 1024,
        description="Maximum bytes, over all connections, of answers that clients have not read "
        "and of requests that wait behind another; beyond, the connections that wait longest are "
        "closed.",
    )

    @field_validator("allowed_hosts")
    @classmethod
    def _are_names(cls, value: list[str]) -> list[str]:
        for name in value:
            if not re.fullmatch(r"\[?[0-9A-Fa-f:]+\]?|[^\s:/@]+", name):
                raise ValueError(f"{name!r} is not a host name; write it without scheme and port")
        return value


class TlsSettings(BaseModel):
    """The files that TLS needs."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    tls_certificate: str = Field(
        "",
        description="The server's certificate chain (PEM); empty: plain HTTP. Read when changed.",
    )
    tls_key: str = Field("", description="The certificate's private key (PEM).")
    tls_client_ca: str = Field(
        "",
        description="Authorities (PEM) whose client certificates are accepted. Each client needs "
        "one, unless auth lists other logins beside certificate: then any login is enough.",
    )

    @model_validator(mode="after")
    def _tls_is_complete(self) -> TlsSettings:
        if bool(self.tls_certificate) != bool(self.tls_key):
            raise ValueError("tls_certificate and tls_key belong together; set both")
        if self.tls_client_ca and not self.tls_certificate:
            raise ValueError("tls_client_ca needs TLS; set tls_certificate and tls_key too")
        return self
