"""The dashboard's files."""

from __future__ import annotations

import hashlib
from functools import lru_cache
from pathlib import Path

from millstream.serve.http import HttpRequest, Response
from millstream.web.problem import Problem

_ROOT = Path(__file__).parents[1] / "static"
_TYPES = {
    ".html": b"text/html; charset=utf-8",
    ".js": b"text/javascript; charset=utf-8",
    ".css": b"text/css; charset=utf-8",
    ".json": b"application/json",
    ".svg": b"image/svg+xml",
    ".png": b"image/png",
    ".ico": b"image/x-icon",
    ".woff2": b"font/woff2",
    ".map": b"application/json",
    ".txt": b"text/plain; charset=utf-8",
    ".webmanifest": b"application/manifest+json",
}
_POLICY = (
    b"default-src 'self'; object-src 'none'; base-uri 'none'; frame-ancestors 'none'; "
    b"form-action 'self'"
)
_HEADERS = (
    (b"content-security-policy", _POLICY),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
)
_MISSING = (
    b"<!doctype html><html lang=en><meta charset=utf-8><title>Millstream</title>"
    b"<h1>Millstream</h1><p>The server runs; its dashboard has not been built. "
    b"Run <code>make dashboard</code> and load this page again.</p></html>"
)


def serve(request: HttpRequest, root: Path = _ROOT) -> Response:
    """The file at the request's path; the dashboard itself at `/`."""
    names = [part for part in request.path if part]
    if any(part in (".", "..") or "/" in part or "\0" in part for part in names):
        raise Problem(404, f"there is nothing at {request.raw_path[:200]}")
    path = root.joinpath(*names) if names else root / "index.html"
    if not names and not path.is_file():
        return Response(_MISSING, content_type=_TYPES[".html"], headers=_HEADERS)
    if not path.is_file() or not path.resolve().is_relative_to(root.resolve()):
        raise Problem(404, f"there is nothing at {request.raw_path[:200]}")
    stat = path.stat()
    body, tag = _read(path, stat.st_mtime_ns, stat.st_size)
    # The build names files in assets/ by their hash, so they never change.
    is_immutable = names[:1] == ["assets"]
    caching = b"public, max-age=31536000, immutable" if is_immutable else b"no-cache"
    headers = (*_HEADERS, (b"etag", tag), (b"cache-control", caching))
    if request.headers.get(b"if-none-match") == tag:
        return Response(status=304, headers=headers)
    kind = _TYPES.get(path.suffix, b"application/octet-stream")
    return Response(body, content_type=kind, headers=headers)


@lru_cache(256)
def _read(path: Path, changed: int, size: int) -> tuple[bytes, bytes]:
    body = path.read_bytes()
    return body, b'"%b"' % hashlib.sha256(body).hexdigest()[:32].encode()
