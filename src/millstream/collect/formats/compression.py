"""Decompresses bodies, within a limit that is checked while decompressing."""

from __future__ import annotations

import zlib

import zstandard

from millstream.collect.formats.unpacked import BodyRefused

# A zstd block of four bytes can become 128 KiB. So one piece becomes at most 8 MiB before the next
# check.
_ZSTD_PIECE = 256
_ZSTD_WINDOW = 8 * 1024 * 1024  # required of every decoder by RFC 8878
# Each member copies the data after its end: small pieces keep the cost of many members linear.
_GZIP_PIECE = 16 * 1024
_MOST_MEMBERS = 1000  # of gzip, or frames of zstd; each needs a decoder
_GZIP = 16 + zlib.MAX_WBITS


def encoding_of(header: str) -> str:
    """`gzip`, `zstd` or `` for a Content-Encoding; BodyRefused (415) for any other."""
    names = [name for each in header.split(",") if (name := each.strip().lower())]
    names = [name for name in names if name != "identity"]
    if not names:
        return ""
    if len(names) > 1:
        raise BodyRefused(
            f"the body has {len(names)} encodings ({header.strip()[:100]!r})",
            status=415,
            remedy="compress it once, with gzip or zstd",
        )
    name = {"x-gzip": "gzip"}.get(names[0], names[0])
    if name not in ("gzip", "zstd"):
        raise BodyRefused(
            f"content encoding {name[:50]!r} is not supported",
            status=415,
            remedy="send gzip, zstd, or the body as it is",
        )
    return name


def decompress(body: bytes, encoding: str, most: int) -> bytes:
    """The decompressed body; BodyRefused: 413 beyond `most` bytes, 400 if it is damaged."""
    if encoding == "gzip":
        return _gunzip(body, most)
    return _unzstd(body, most)


def _gunzip(body: bytes, most: int) -> bytes:
    parts: list[bytes] = []
    length, members = 0, 1
    member = zlib.decompressobj(_GZIP)
    start = 0
    while True:
        piece = member.unconsumed_tail
        if member.eof:
            # Zeros after a member are padding, as in gzip itself.
            piece = member.unused_data.lstrip(b"\0")
            while not piece and start < len(body):
                piece = body[start : start + _GZIP_PIECE].lstrip(b"\0")
                start += _GZIP_PIECE
            if not piece:
                return b"".join(parts)
            members += 1
            _check_members(members)
            member = zlib.decompressobj(_GZIP)
        if not piece:
            piece = body[start : start + _GZIP_PIECE]
            start += _GZIP_PIECE
        if not piece:
            raise _broken("gzip", "it ends too early")
        try:
            part = member.decompress(piece, most - length + 1)
        except zlib.error as error:
            raise _broken("gzip", str(error)) from None
        parts.append(part)
        length += len(part)
        _check_length(length, most)


def _unzstd(body: bytes, most: int) -> bytes:
    decoder = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW)
    parts: list[bytes] = []
    length, frames = 0, 1
    frame = decoder.decompressobj()
    start, rest = 0, b""
    while True:
        if frame.eof:
            rest = frame.unused_data
            if not rest and start >= len(body):
                return b"".join(parts)
            frames += 1
            _check_members(frames)
            frame = decoder.decompressobj()
        piece = rest or body[start : start + _ZSTD_PIECE]
        if not rest:
            start += _ZSTD_PIECE
        rest = b""
        if not piece:
            raise _broken("zstd", "it ends too early")
        try:
            part = frame.decompress(piece)
        except zstandard.ZstdError as error:
            raise _broken("zstd", str(error).removeprefix("zstd decompressor error: ")) from None
        parts.append(part)
        length += len(part)
        _check_length(length, most)


def _check_length(length: int, most: int) -> None:
    if length > most:
        raise BodyRefused(
            f"the body is larger than {most} bytes when decompressed",
            status=413,
            remedy="split it into several requests, or raise collect.max_body",
        )


def _check_members(members: int) -> None:
    if members > _MOST_MEMBERS:
        raise BodyRefused(
            f"the body is compressed in more than {_MOST_MEMBERS} pieces",
            status=413,
            remedy="compress it as one",
        )


def _broken(encoding: str, why: str) -> BodyRefused:
    return BodyRefused(
        f"the body is not valid {encoding}: {why}",
        status=400,
        remedy="send it again, or without Content-Encoding",
    )
