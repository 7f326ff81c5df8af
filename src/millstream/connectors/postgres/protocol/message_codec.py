"""Encodes and decodes PostgreSQL's messages (protocol 3.0)."""

from __future__ import annotations

import struct
from dataclasses import dataclass

from millstream.connectors.reading.reconnecting_reader import ConnectionLost

PROTOCOL = 196608  # 3.0
SSL_REQUEST = struct.pack("!ii", 8, 80877103)

_HEAD = struct.Struct("!ci")
_LENGTH = struct.Struct("!i")
_COUNT = struct.Struct("!h")


class ServerError(ConnectionLost):
    """The server answered with an error; `code` is its SQLSTATE."""

    def __init__(self, message: str, code: str = "") -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True, slots=True)
class ResultColumn:
    """A column of a result."""

    name: str
    type: int


def packet(kind: bytes, payload: bytes = b"") -> bytes:
    """A message with its type and length."""
    return _HEAD.pack(kind, len(payload) + 4) + payload


def startup(parameters: dict[str, str]) -> bytes:
    """The startup message, the only one without a type."""
    body = b"".join(cstring(text) for pair in parameters.items() for text in pair) + b"\0"
    return struct.pack("!ii", len(body) + 8, PROTOCOL) + body


def cstring(text: str) -> bytes:
    """A text with its terminating zero."""
    return text.encode() + b"\0"


def error(payload: bytes) -> ServerError:
    """The error of an ErrorResponse: its message, with detail and hint if there are any."""
    fields = {part[:1]: part[1:].decode(errors="replace") for part in payload.split(b"\0") if part}
    texts = (fields.get(name, "") for name in (b"M", b"D", b"H"))
    message = "; ".join(text.rstrip(".") for text in texts if text)
    return ServerError(message or "the server gave no reason", fields.get(b"C", ""))


def columns(payload: bytes) -> list[ResultColumn]:
    """The columns of a RowDescription."""
    found, at = [], 2
    for _ in range(_COUNT.unpack_from(payload)[0]):
        end = payload.index(b"\0", at)
        name = payload[at:end].decode()
        found.append(ResultColumn(name, struct.unpack_from("!I", payload, end + 7)[0]))
        at = end + 19
    return found


def values(payload: bytes) -> list[bytes | None]:
    """The values of a DataRow, as text."""
    found: list[bytes | None] = []
    at = 2
    for _ in range(_COUNT.unpack_from(payload)[0]):
        length = _LENGTH.unpack_from(payload, at)[0]
        at += 4
        if length < 0:
            found.append(None)
        else:
            found.append(payload[at : at + length])
            at += length
    return found


def lsn_text(lsn: int) -> str:
    """An LSN as PostgreSQL writes it."""
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"


def lsn_number(text: str) -> int:
    """An LSN as a number."""
    high, _, low = text.partition("/")
    return (int(high, 16) << 32) | int(low, 16)


def quoted(name: str) -> str:
    """A quoted SQL identifier."""
    return '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    """A quoted SQL literal (the session sets standard_conforming_strings)."""
    return "'" + text.replace("'", "''") + "'"
