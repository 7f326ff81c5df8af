"""Messages that a client sends on a WebSocket."""

from __future__ import annotations

from typing import Literal

import msgspec


class Subscribe(msgspec.Struct, tag_field="type", tag="subscribe", forbid_unknown_fields=True):
    """Subscribes to a view, stream or ledger: a snapshot and changes, or changes since `after`."""

    id: str
    view: str | None = None
    stream: str | None = None
    ledger: str | None = None  # the name of its view
    where: str | None = None
    select: list[str] | None = None
    after: str | None = None
    limit: int | None = None
    lineage: bool = False
    when_slow: Literal["catch_up", "disconnect"] = "catch_up"


class Unsubscribe(msgspec.Struct, tag_field="type", tag="unsubscribe"):
    """Ends a subscription."""

    id: str


class Ping(msgspec.Struct, tag_field="type", tag="ping"):
    """Asks for a pong: browsers cannot send the WebSocket's own pings."""


class Ack(msgspec.Struct, tag_field="type", tag="ack"):
    """Accepted and ignored: a client keeps its position itself."""


class Authenticate(msgspec.Struct, tag_field="type", tag="authenticate"):
    """Replaces the token of this connection by a fresh one of the same caller."""

    token: str

    def __repr__(self) -> str:  # errors and logs must not show the token
        return "Authenticate()"


RECEIVED = (Subscribe, Unsubscribe, Ping, Ack, Authenticate)
"""Messages that a client may send."""

decode = msgspec.json.Decoder(Subscribe | Unsubscribe | Ping | Ack | Authenticate).decode
"""The message in a JSON text."""


class _Identified(msgspec.Struct):
    id: str | None = None


def read_identifier(message: bytes) -> str | None:
    """The id in an invalid message, so that the client knows which message it was."""
    try:
        return msgspec.json.decode(message, type=_Identified).id
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return None
