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
    group: str | None = None  # share the messages with the group's other members
    ack: bool | None = None  # whether messages are acknowledged by `ack`; else when written
    ack_timeout: float | None = None  # seconds
    max_attempts: int | None = None
    max_pending: int | None = None  # messages that this member has at once


class Unsubscribe(msgspec.Struct, tag_field="type", tag="unsubscribe"):
    """Ends a subscription."""

    id: str


class Ping(msgspec.Struct, tag_field="type", tag="ping"):
    """Asks for a pong: browsers cannot send the WebSocket's own pings."""


class Ack(msgspec.Struct, tag_field="type", tag="ack"):
    """The client has handled a group's message; without a group it is ignored."""

    id: str | None = None
    message: str | None = None


class Nack(msgspec.Struct, tag_field="type", tag="nack", forbid_unknown_fields=True):
    """The client could not handle a group's message."""

    id: str
    message: str
    reason: str = ""


RECEIVED = (Subscribe, Unsubscribe, Ping, Ack, Nack)
"""Messages that a client may send."""

decode = msgspec.json.Decoder(Subscribe | Unsubscribe | Ping | Ack | Nack).decode
"""The message in a JSON text."""


class _Identified(msgspec.Struct):
    id: str | None = None


def read_identifier(message: bytes) -> str | None:
    """The id in an invalid message, so that the client knows which message it was."""
    try:
        return msgspec.json.decode(message, type=_Identified).id
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return None
