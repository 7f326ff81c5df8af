"""Messages that a client sends on a WebSocket."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

WhenSlow = Literal["buffer", "conflate", "sample", "disconnect", "catch_up"]


class Subscribe(msgspec.Struct, tag_field="type", tag="subscribe", forbid_unknown_fields=True):
    """Subscribes to rows or to a query: a snapshot and changes, or changes since `after`."""

    id: str
    view: str | None = None
    stream: str | None = None
    ledger: str | None = None  # the name of its view
    query: str | None = None  # a named query
    sql: str | None = None  # the client's own query
    params: dict[str, Any] | None = None  # of the named query
    where: str | None = None
    select: list[str] | None = None
    after: str | None = None  # a position, or a time (RFC 3339)
    limit: int | None = None
    lineage: bool = False
    when_slow: WhenSlow = "buffer"  # catch_up is the old name of buffer
    sample: float | None = None  # changes per second, with when_slow=sample
    max_rate: float | None = None  # changes per second
    max_rate_per_key: float | None = None  # changes per second of one key
    max_bytes: int | None = None  # per second, of the whole connection
    group: str | None = None  # share the messages with the group's other members
    ack: bool | None = None  # whether messages are acknowledged by `ack`; else when written
    ack_timeout: float | None = None  # seconds
    max_attempts: int | None = None
    max_pending: int | None = None  # messages that this member has at once


class Update(msgspec.Struct, tag_field="type", tag="update", forbid_unknown_fields=True):
    """Changes a subscription. Fields that are missing stay as they are; null is the default.

    Without an id, only `max_bytes` can be changed: it belongs to the connection.
    """

    id: str | None = None
    where: str | UnsetType | None = UNSET
    select: list[str] | UnsetType | None = UNSET
    when_slow: WhenSlow | UnsetType = UNSET
    sample: float | UnsetType | None = UNSET
    max_rate: float | UnsetType | None = UNSET
    max_rate_per_key: float | UnsetType | None = UNSET
    max_bytes: int | UnsetType | None = UNSET

    @property
    def changed(self) -> dict[str, object]:
        """The fields of the subscription that the message has, without the connection's."""
        names = (name for name in self.__struct_fields__ if name not in ("id", "max_bytes"))
        given = {name: getattr(self, name) for name in names}
        return {name: value for name, value in given.items() if value is not UNSET}


class Pause(msgspec.Struct, tag_field="type", tag="pause", forbid_unknown_fields=True):
    """Stops the messages of a subscription until `resume`."""

    id: str


class Resume(msgspec.Struct, tag_field="type", tag="resume", forbid_unknown_fields=True):
    """Continues a paused subscription where it stopped."""

    id: str


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


class Authenticate(msgspec.Struct, tag_field="type", tag="authenticate"):
    """Replaces the token of this connection by a fresh one of the same caller."""

    token: str

    def __repr__(self) -> str:  # errors and logs must not show the token
        return "Authenticate()"


RECEIVED = (Subscribe, Update, Pause, Resume, Unsubscribe, Ping, Ack, Nack, Authenticate)
"""Messages that a client may send."""

decode = msgspec.json.Decoder(
    Subscribe | Update | Pause | Resume | Unsubscribe | Ping | Ack | Nack | Authenticate
).decode
"""The message in a JSON text."""


class _Identified(msgspec.Struct):
    id: str | None = None


def read_identifier(message: bytes) -> str | None:
    """The id in an invalid message, so that the client knows which message it was."""
    try:
        return msgspec.json.decode(message, type=_Identified).id
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return None
