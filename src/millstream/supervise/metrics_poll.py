"""Polls the metrics of the running system, in the background."""

from __future__ import annotations

import contextlib
import json
import ssl
import threading
import urllib.request
from collections.abc import Callable
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError, URLError

from millstream.client.credentials import Credentials
from millstream.errors import MillstreamError


def fetch_system(
    url: str, access: Credentials | None = None, seconds: float = 2.0
) -> dict[str, Any]:
    """`GET /v1/system` of a server; MillstreamError if it does not answer in time."""
    access = access or Credentials()
    address = f"{url}/v1/system"
    request = urllib.request.Request(address, headers=access.fixed_headers())
    try:
        with _direct(access.ssl_context()).open(request, timeout=seconds) as answer:
            found: dict[str, Any] = json.load(answer)
            return found
    except (URLError, OSError, ValueError, HTTPException) as error:
        raise MillstreamError(
            f"cannot read {address}: {getattr(error, 'reason', error)}",
            remedy="check that the serve tier runs: millstream status",
        ) from error


def why_not_ready(url: str, trusted: ssl.SSLContext, seconds: float = 2.0) -> str:
    """The reason in `GET /health/ready` of a tier; empty if it is ready.

    MillstreamError if the tier does not answer.
    """
    address = f"{url}/health/ready"
    try:
        with (
            _direct(trusted).open(address, timeout=seconds) as answer,
            contextlib.suppress(ValueError),
        ):
            workers = json.load(answer).get("workers", ())
            return "; ".join(
                f"process {w['worker']}: {w['reason']}" for w in workers if "reason" in w
            )
        return ""
    except HTTPError as answer:
        with answer, contextlib.suppress(ValueError):
            content = json.load(answer)
            if isinstance(content, dict):
                return str(content.get("detail", ""))
        return f"{address} answers {answer.status}"
    except (OSError, ValueError, HTTPException) as error:
        why = getattr(error, "reason", error)
        remedy = ""
        if isinstance(why, ssl.SSLCertVerificationError):
            remedy = "name the certificates that sign its own: --ca FILE, or MILLSTREAM_CA"
        raise MillstreamError(f"cannot read {address}: {why}", remedy=remedy) from None


def _direct(trusted: ssl.SSLContext | None) -> urllib.request.OpenerDirector:
    """Calls our own server directly: a proxy in the environment is for other hosts."""
    return urllib.request.build_opener(
        urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=trusted)
    )


class MetricsPoll:
    """The newest metrics of a server; a thread fetches them every second.

    `access` is called for each attempt, because a server may start later than this.
    """

    def __init__(
        self, url: str, access: Callable[[], Credentials] = Credentials, every: float = 1.0
    ) -> None:
        self._url = url
        self._access = access
        self._every = every
        self._newest: dict[str, Any] | None = None
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._poll, name="metrics", daemon=True)
        self._thread.start()

    def newest(self) -> dict[str, Any] | None:
        """None before the first answer, and while the server does not answer."""
        return self._newest

    def close(self) -> None:
        self._closed.set()

    def _poll(self) -> None:
        while not self._closed.wait(self._every):
            newest = None
            with contextlib.suppress(MillstreamError):
                newest = fetch_system(self._url, self._access())
            self._newest = newest
