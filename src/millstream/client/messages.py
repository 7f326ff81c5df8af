"""What a server tells a client."""

from __future__ import annotations

from decimal import Decimal
from typing import Any, Literal

import msgspec

from millstream.values.ledger_entry import LedgerEntry


class Keyed(msgspec.Struct, frozen=True):
    """A row of a snapshot; the key is None where the view or stream has none."""

    key: list[Any] | None
    row: dict[str, Any]


class Snapshot(msgspec.Struct, frozen=True, tag_field="type", tag="snapshot"):
    """All rows at `position`: forget what you held before. Changes follow from there."""

    position: str
    rows: list[Keyed]
    watermark: str | None = None  # windows that ended by then are final, as `_state` says


class Change(msgspec.Struct, frozen=True, tag_field="type", tag="change"):
    """One row that came, changed or went; `position` is the place after it."""

    op: Literal["upsert", "delete"]
    position: str
    key: list[Any] | None = None
    row: dict[str, Any] | None = None


class Gap(msgspec.Struct, frozen=True, tag_field="type", tag="gap"):
    """The changes after `asked` are no longer held; a snapshot at `position` follows."""

    asked: str
    position: str
    reason: str = ""


class Lag(msgspec.Struct, frozen=True, tag_field="type", tag="lag"):
    """You read more slowly than the view changes: `behind` changes are waiting for you."""

    behind: int
    position: str


class Refused(msgspec.Struct, frozen=True, tag_field="type", tag="error"):
    """A request on the socket that the server cannot fulfil."""

    title: str
    detail: str = ""


class Pong(msgspec.Struct, frozen=True, tag_field="type", tag="pong"):
    """The answer to a ping."""


Message = Snapshot | Change | Gap | Lag
"""What `Client.changes` yields."""

FromServer = Message | Refused | Pong


class Rows(msgspec.Struct, frozen=True):
    """The answer of `Client.snapshot`: plain rows, and the position to follow the changes from."""

    view: str
    position: str
    rows: list[dict[str, Any]]
    watermark: str | None = None  # windows that ended by then are final, as `_state` says
    total: int | None = None  # rows that there are; None: an older server did not say
    truncated: bool = False  # whether some of them are not in `rows`: ask with a greater limit


class Entries(msgspec.Struct, frozen=True):
    """The answer of `Client.ledger`: what was entered, and the position to go on from.

    With `gap`, the reason, what was asked for is no longer held: these are all entries, anew.
    """

    position: str
    entries: list[LedgerEntry]
    gap: str | None = None


class Entered(msgspec.Struct, frozen=True):
    """A change of a ledger; `values.ledger_entry` decodes its row exactly."""

    row: msgspec.Raw


class Page(msgspec.Struct, frozen=True):
    """A server's answer to one poll of a ledger."""

    position: str
    changes: list[Entered] = []
    gap: dict[str, str] | None = None


class Column(msgspec.Struct, frozen=True):
    name: str
    type: str


class Table(msgspec.Struct, frozen=True):
    """The answer of `Client.query`."""

    columns: list[Column]
    rows: list[list[Any]]
    truncated: bool = False
    elapsed_ms: float = 0.0


decode = msgspec.json.Decoder(FromServer).decode
decode_exactly = msgspec.json.Decoder(FromServer, float_hook=Decimal).decode
decode_page = msgspec.json.Decoder(Page).decode
