"""Checks of a request's head: one Host, and one way to find the body's end."""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import urlsplit

from millstream.web.asgi import HeaderList
from millstream.web.problem import Problem

CHUNKED = -1


class RequestHead(NamedTuple):
    """A request's host and the length of its body."""

    host: bytes | None  # only HTTP/1.0 may lack it
    length: int  # of the body, or CHUNKED


def read_request_head(url: bytes, headers: HeaderList, version: str) -> RequestHead:
    """Read a request's head; Problem if another server could read it differently."""
    host, coding, length = None, None, 0
    for name, value in headers:
        if name == b"host":
            if host is not None:
                raise Problem(400, "there are two Host headers; send one")
            host = value
        elif name == b"content-length":
            length = int(value)
        elif name == b"transfer-encoding":
            coding = value if coding is None else b"%b, %b" % (coding, value)
    if coding is not None:
        _check_coding(coding.lower(), version)
        length = CHUNKED
    if version == "1.1":
        if host is None:
            raise Problem(400, "the Host header is missing; send one")
    elif version != "1.0":
        raise Problem(400, f"this is HTTP/{version}; send HTTP/1.1")
    if not url.startswith(b"/") and url != b"*":
        host = _authority(url)  # a complete URL takes precedence over the header
    return RequestHead(host, length)


def _authority(url: bytes) -> bytes:
    try:
        parts = urlsplit(url.decode("latin-1"))
    except ValueError:
        parts = urlsplit("")
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise Problem(400, "the request's target is neither a path nor a URL")
    return parts.netloc.encode("latin-1")


def _check_coding(coding: bytes, version: str) -> None:
    codings = [each.strip() for each in coding.split(b",")]
    if codings == [b"chunked"] and version == "1.1":
        return
    if codings[-1] == b"chunked" and codings.count(b"chunked") == 1 and version == "1.1":
        raise Problem(
            501,
            "a Transfer-Encoding other than chunked is not supported; compress the body and set "
            "Content-Encoding",
        )
    raise Problem(400, "the Transfer-Encoding does not define the body's end; send `chunked` alone")
