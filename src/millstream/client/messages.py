"""Messages and answers of a server."""

from __future__ import annotations

from decimal import Decimal
from typing import Any, Literal

import msgspec

from millstream.values.ledger_entry import LedgerEntry


class Keyed(msgspec.Struct, frozen=True):
    """A row of a snapshot; the key is None where the view or stream has none."""

    key: list[Any] | None
    row: dict[str, Any]
    rank: int | None = None  # of a query that sorts its rows: the row's place, from 1 on


class Snapshot(msgspec.Struct, frozen=True, tag_field="type", tag="snapshot"):
    """All rows at `position`. They replace the rows that you have; changes follow.

    With `pages=True` it is one page of them: page 1 replaces your rows, each other page adds to
    them, and changes follow the last page.
    """

    position: str
    rows: list[Keyed]
    watermark: str | None = None  # windows that ended by then are final
    page: int = 1
    last: bool = True
    total: int | None = None  # matching rows; None for a ledger, whose entries follow
    truncated: bool = False  # whether the limit left some of them out
    skipped: int = 0


class Change(msgspec.Struct, frozen=True, tag_field="type", tag="change"):
    """One row that was added, changed or deleted; `position` is after it."""

    op: Literal["upsert", "delete"]
    position: str
    key: list[Any] | None = None
    row: dict[str, Any] | None = None
    rank: int | None = None  # of a query that sorts its rows: the row's place, from 1 on
    more: int = 0  # of a query: changes that follow before its new result is complete
    skipped: int = 0  # changes that were left out before it, because you asked for that


class Gap(msgspec.Struct, frozen=True, tag_field="type", tag="gap"):
    """The changes after `asked` are no longer available; a snapshot at `position` follows."""

    asked: str
    position: str
    reason: str = ""
    skipped: int = 0


class Lag(msgspec.Struct, frozen=True, tag_field="type", tag="lag"):
    """You read more slowly than the view changes: `behind` changes wait for you."""

    behind: int
    position: str
    seconds: float = 0.0  # how long the oldest of them has waited
    growing: bool = False  # whether more wait than at the last report
    warning: str = ""  # what happens if that goes on
    skipped: int = 0


class Updated(msgspec.Struct, frozen=True, tag_field="type", tag="updated"):
    """The answer to an update: from here on, messages are as it asked."""

    paused: bool = False


class ErrorMessage(msgspec.Struct, frozen=True, tag_field="type", tag="error"):
    """The answer to a request that the server cannot fulfil."""

    title: str
    detail: str = ""
    final: bool = True  # False: a live query failed for now, and is tried again


class AskToken(msgspec.Struct, frozen=True, tag_field="type", tag="authenticate"):
    """The token expires soon, and a fresh one is needed."""

    expires: str


class Authenticated(msgspec.Struct, frozen=True, tag_field="type", tag="authenticated"):
    """The fresh token is in use."""

    expires: str | None = None


class Pong(msgspec.Struct, frozen=True, tag_field="type", tag="pong"):
    """The answer to a ping."""


Message = Snapshot | Change | Gap | Lag
"""Messages that `Client.changes` yields."""

ServerMessage = Message | ErrorMessage | Updated | AskToken | Authenticated | Pong


class Rows(msgspec.Struct, frozen=True):
    """The answer of `Client.snapshot`: rows, and the position after which changes follow."""

    view: str
    position: str
    rows: list[dict[str, Any]]
    watermark: str | None = None  # windows that ended by then are final
    total: int | None = None  # matching rows; None: an older server does not tell
    truncated: bool = False  # whether the limit left some of them out


class Entries(msgspec.Struct, frozen=True):
    """The answer of `Client.ledger`: entries, and the position to continue from.

    `gap` says why entries since `after` are not available; these are then all entries again.
    """

    position: str
    entries: list[LedgerEntry]
    gap: str | None = None


class LedgerChange(msgspec.Struct, frozen=True):
    """A change of a ledger; `values.ledger_entry` decodes its row exactly."""

    row: msgspec.Raw


class LedgerPage(msgspec.Struct, frozen=True):
    """A server's answer to one poll of a ledger."""

    position: str
    changes: list[LedgerChange] = []
    gap: dict[str, str] | None = None


class QueryColumn(msgspec.Struct, frozen=True):
    name: str
    type: str


class Table(msgspec.Struct, frozen=True):
    """The answer of `Client.query`."""

    columns: list[QueryColumn]
    rows: list[list[Any]]
    truncated: bool = False
    elapsed_ms: float = 0.0


decode = msgspec.json.Decoder(ServerMessage).decode
decode_exactly = msgspec.json.Decoder(ServerMessage, float_hook=Decimal).decode
decode_ledger_page = msgspec.json.Decoder(LedgerPage).decode
