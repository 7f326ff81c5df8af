"""Types of the answers and messages that clients get, for OpenAPI and AsyncAPI.

The server writes most of them byte by byte, because it sends one row to many clients. So these
types only describe them. `test_messages.py` decodes a running server's messages with these types.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from millstream.serve.connections import ConnectionReport
from millstream.values.report import MemberCounts

Identifier = Annotated[str, Meta(description="The id of the subscription.")]
PositionText = Annotated[
    str, Meta(description="A position, <epoch>:<partition>=<offset>,…: send it back as `after`.")
]
Watermark = Annotated[
    str | None,
    Meta(description="Windows that end by then are final (RFC 3339); null if it is unknown."),
]
Key = Annotated[
    list[Any] | None,
    Meta(description="The values of the key columns; null if there is no key."),
]
Row = Annotated[dict[str, Any], Meta(description="The columns and their values.")]
Name = Annotated[str, Meta(description="The name in the subscription.")]
Total = Annotated[int, Meta(description="How many rows satisfy the filter.")]
Truncated = Annotated[bool, Meta(description="Whether the limit left some of them out.")]
Skipped = Annotated[
    int, Meta(description="Changes that were left out since the last message; missing: none.")
]
Rank = Annotated[
    int, Meta(description="Of a query that sorts its rows: the row's place, from 1 on.")
]
More = Annotated[
    int, Meta(description="Of a query: changes that follow before its new result is complete.")
]
_STALE = "Why the rows may be out of date; missing if there is no known reason."


class KeyedRow(msgspec.Struct):
    """A row with its key."""

    key: Key
    row: Row
    rank: Rank | UnsetType = UNSET


class Snapshot(msgspec.Struct, tag_field="type", tag="snapshot", kw_only=True):
    """A page of the rows at `position`. Page 1 replaces all rows; changes follow the last page."""

    id: Identifier | UnsetType = UNSET
    position: PositionText
    watermark: Watermark
    view: Name | UnsetType = UNSET
    stream: Name | UnsetType = UNSET
    ledger: Name | UnsetType = UNSET
    query: (
        Annotated[
            str | None, Meta(description="The name of the query; null for SQL of the client.")
        ]
        | UnsetType
    ) = UNSET
    total: Total | UnsetType = UNSET
    truncated: Truncated | UnsetType = UNSET
    page: Annotated[int, Meta(description="The number of this page, from 1 on.")]
    last: Annotated[bool, Meta(description="Whether the snapshot is complete with this page.")]
    skipped: Skipped | UnsetType = UNSET
    rows: list[KeyedRow]


class Change(msgspec.Struct, tag_field="type", tag="change", kw_only=True):
    """One row that was added, changed or deleted; `position` is after it."""

    id: Identifier | UnsetType = UNSET
    op: Literal["upsert", "delete"]
    key: Key
    row: Annotated[dict[str, Any] | None, Meta(description="The new row; null for a delete.")]
    rank: Rank | UnsetType = UNSET
    more: More | UnsetType = UNSET
    position: PositionText
    skipped: Skipped | UnsetType = UNSET


class Gap(msgspec.Struct, tag_field="type", tag="gap", kw_only=True):
    """The changes after `asked` are not available any more. A snapshot follows."""

    id: Identifier | UnsetType = UNSET
    position: PositionText
    asked: Annotated[str, Meta(description="The position of the client.")]
    reason: Annotated[str, Meta(description="Why it cannot continue from there.")]
    skipped: Skipped | UnsetType = UNSET


class Lag(msgspec.Struct, tag_field="type", tag="lag", kw_only=True):
    """The client reads too slowly, or its filter matched nothing for 15 seconds (`behind` is 0)."""

    id: Identifier | UnsetType = UNSET
    position: PositionText
    behind: Annotated[int, Meta(description="Changes that wait for the client.")]
    seconds: Annotated[float, Meta(description="How long the oldest of them has waited.")]
    growing: Annotated[bool, Meta(description="Whether more wait than at the last report.")]
    warning: Annotated[str, Meta(description="What happens if that goes on.")] | UnsetType = UNSET
    skipped: Skipped | UnsetType = UNSET


class Updated(msgspec.Struct, tag_field="type", tag="updated", kw_only=True):
    """The answer to `update`, `pause` and `resume`: from here on, they are in effect."""

    id: Annotated[str | None, Meta(description="The subscription; null: the connection.")]
    paused: Annotated[bool, Meta(description="Whether the subscription is paused.")]
    position: PositionText | UnsetType = UNSET


class Error(msgspec.Struct, tag_field="type", tag="error", kw_only=True):
    """Why a message cannot be fulfilled, or a subscription not continue; the connection stays."""

    id: Annotated[str | None, Meta(description="The id in that message; null if it has none.")]
    title: Annotated[str, Meta(description="The words of an HTTP status, such as Bad Request.")]
    detail: Annotated[str, Meta(description="What is wrong, and what to do.")]
    position: PositionText | UnsetType = UNSET
    final: (
        Annotated[bool, Meta(description="Of a query: whether its subscription has ended.")]
        | UnsetType
    ) = UNSET


class Closed(msgspec.Struct, tag_field="type", tag="closed"):
    """The server ends this stream of events. A WebSocket has a close frame instead."""

    code: Annotated[int, Meta(description="The close code; from 4500 on, do not connect again.")]
    reason: str


class GroupMessage(msgspec.Struct, tag_field="type", tag="message", kw_only=True):
    """A message for this member of a group; answer it with `ack` or `nack`."""

    id: Identifier
    message: Annotated[str, Meta(description="The message's own id, for `ack` and `nack`.")]
    attempt: Annotated[int, Meta(description="1 for the first delivery.")]
    position: PositionText
    op: Literal["upsert", "delete"]
    key: Key
    row: Annotated[dict[str, Any] | None, Meta(description="The new row; null for a delete.")]


class Redirect(msgspec.Struct, tag_field="type", tag="redirect", kw_only=True):
    """The membership in the group has ended here: subscribe again elsewhere."""

    id: Identifier
    url: Annotated[
        str | None, Meta(description="The server to connect to; null: any server, or this one.")
    ]


class GroupPartition(msgspec.Struct):
    """How far a group has come in one partition."""

    partition: int
    position: Annotated[int, Meta(description="Everything below this offset is handled.")]
    end: Annotated[int, Meta(description="The offset of the next record.")]
    lag: int
    passed: int
    acknowledged: int
    set_aside: int
    filtered: int
    absent: int
    server: Annotated[str | None, Meta(description="Who delivers its messages; null: nobody.")]


class GroupServer(msgspec.Struct):
    """A server with members of a group."""

    url: str
    partitions: list[int]
    member_count: int
    members: Annotated[list[MemberCounts], Meta(description="The first hundred.")]
    in_flight: int
    pending: int
    redelivered: int


class Group(msgspec.Struct, kw_only=True):
    """A group: its definition, members, position and counts."""

    name: str
    view: str | UnsetType = UNSET
    stream: str | UnsetType = UNSET
    ledger: str | UnsetType = UNSET
    where: str | None
    select: list[str] | None
    ack: bool
    ack_timeout: Annotated[float, Meta(description="Seconds.")]
    max_attempts: int
    creator: Annotated[str, Meta(description="Whose rows and columns all members see.")]
    created_at: str
    position: PositionText
    members: int
    in_flight: Annotated[int, Meta(description="Messages that members have not acknowledged.")]
    pending: Annotated[int, Meta(description="Messages that were read and are not handled yet.")]
    redelivered: Annotated[int, Meta(description="Further attempts since the servers started.")]
    passed: Annotated[
        int,
        Meta(
            description="Records from the group's start to its position: acknowledged + set_aside "
            "+ filtered + absent."
        ),
    ]
    acknowledged: int
    set_aside: int
    filtered: Annotated[int, Meta(description="Records that are no message for this group.")]
    absent: Annotated[int, Meta(description="Offsets without a record: Kafka compacted them.")]
    lag: Annotated[int, Meta(description="Records from the position to the end.")]
    partitions: list[GroupPartition]
    servers: list[GroupServer]
    warning: Annotated[str, Meta(description="Why it has no messages.")] | UnsetType = UNSET


class GroupList(msgspec.Struct):
    """All groups."""

    groups: list[Group]


class ResetDone(msgspec.Struct):
    """Where a group continues."""

    name: str
    position: PositionText


class DroppedGroup(msgspec.Struct):
    """The group that was removed."""

    dropped: str


class ConnectionList(msgspec.Struct):
    """The connections of this server's clients."""

    connections: list[ConnectionReport]


class ClosedConnection(msgspec.Struct):
    """The connection that was closed."""

    closed: Annotated[str, Meta(description="Its id.")]


class Unsubscribed(msgspec.Struct, tag_field="type", tag="unsubscribed"):
    """The subscription has ended; no message with this id follows."""

    id: Identifier


class AskToken(msgspec.Struct, tag_field="type", tag="authenticate"):
    """The token expires soon: send a fresh one, or the connection is closed then with 4001."""

    expires: Annotated[str, Meta(description="When the token expires (RFC 3339).")]


class Authenticated(msgspec.Struct, tag_field="type", tag="authenticated"):
    """The answer to a fresh token, which is used from now on."""

    expires: Annotated[
        str | None, Meta(description="When it expires (RFC 3339); null if it does not.")
    ]


class Pong(msgspec.Struct, tag_field="type", tag="pong"):
    """The answer to a ping."""


SENT = (
    Snapshot,
    Change,
    Gap,
    Lag,
    Updated,
    GroupMessage,
    Redirect,
    Error,
    Unsubscribed,
    AskToken,
    Authenticated,
    Pong,
)
"""Messages that a server sends on a WebSocket."""

EVENTS = (Snapshot, Change, Gap, Lag, Closed)
"""Server-sent events; they are named after `type`, and have no `id` in their data."""


class PollChange(msgspec.Struct, kw_only=True):
    """A change in the answer to a long poll."""

    op: Literal["upsert", "delete"]
    key: Key
    row: Annotated[dict[str, Any] | None, Meta(description="The new row; null for a delete.")]
    rank: Rank | UnsetType = UNSET
    more: More | UnsetType = UNSET
    position: PositionText
    skipped: Skipped | UnsetType = UNSET


class PollGap(msgspec.Struct):
    """Why the answer has rows although the request had a position."""

    position: PositionText
    asked: str
    reason: str


class Poll(msgspec.Struct, kw_only=True):
    """The answer to a long poll: `changes` since `after`, or `rows`, which replace all rows."""

    gap: PollGap | UnsetType = UNSET
    position: PositionText
    watermark: Watermark
    changes: list[PollChange] | UnsetType = UNSET
    total: Total | UnsetType = UNSET
    truncated: Truncated | UnsetType = UNSET
    rows: list[KeyedRow] | UnsetType = UNSET
    hint: Annotated[str, Meta(description="Other ways to get changes.")] | UnsetType = UNSET


class ViewRows(msgspec.Struct):
    """The rows of a view."""

    view: str
    position: PositionText
    watermark: Watermark
    total: Total
    truncated: Truncated
    rows: list[Row]
    hint: Annotated[str, Meta(description="How to get the rest.")] | UnsetType = UNSET
    warning: Annotated[str, Meta(description=_STALE)] | UnsetType = UNSET


class ViewRow(msgspec.Struct):
    """One row of a view."""

    view: str
    position: PositionText
    watermark: Watermark
    key: Key
    row: Row
    warning: Annotated[str, Meta(description=_STALE)] | UnsetType = UNSET


class SqlColumn(msgspec.Struct):
    """A column of an answer to SQL."""

    name: str
    type: Annotated[str, Meta(description="DuckDB's type, in lower case.")]


class Table(msgspec.Struct):
    """The answer to SQL."""

    columns: list[SqlColumn]
    rows: list[list[Any]]
    truncated: Annotated[bool, Meta(description="Whether the query finds more than `limit` rows.")]
    elapsed_ms: float


class Views(msgspec.Struct):
    """All views, each with its columns, key, query mode, position and watermark."""

    views: list[dict[str, Any]]


class Ticket(msgspec.Struct):
    """A ticket for one WebSocket or EventSource connection: `?ticket=`."""

    ticket: str
    expires: Annotated[str, Meta(description="It must be used before then (RFC 3339).")]


class UsageOfCaller(msgspec.Struct):
    """What a caller has used of this server since it started."""

    caller: Annotated[str, Meta(description="Kind and name; `address`: without a login.")]
    requests: int
    events: Annotated[int, Meta(description="Messages that it was sent on open connections.")]
    bytes: Annotated[int, Meta(description="Bytes that it was sent.")]
    connections: Annotated[int, Meta(description="Open now.")]
    query_seconds: Annotated[float, Meta(description="The time of its SQL and named queries.")]


class UsageList(msgspec.Struct):
    """The usage of all callers, for administrators; else of the caller alone."""

    callers: list[UsageOfCaller]


class Parameter(msgspec.Struct):
    """A parameter of a named query."""

    name: str
    type: Literal["string", "integer", "number", "boolean"]
    default: Annotated[Any, Meta(description="Its value if a caller gives none; null is NULL.")]


class Query(msgspec.Struct):
    """A named query."""

    name: str
    description: str
    sql: Annotated[
        str | None,
        Meta(
            description="In DuckDB's SQL, with parameters as $name; null, as `key` and `columns`, "
            "for a caller from whom a view under the query hides columns."
        ),
    ]
    parameters: list[Parameter]
    key: Annotated[
        list[str] | None,
        Meta(description="Columns that identify a row in its changes; null if it declares none."),
    ]
    views: Annotated[list[str], Meta(description="The views that it reads.")]
    columns: Annotated[
        list[SqlColumn] | None, Meta(description="Empty until DuckDB has checked it.")
    ]
    error: Annotated[str | None, Meta(description="Why it cannot be answered now.")]


class Queries(msgspec.Struct):
    """The named queries that the caller may call."""

    queries: list[Query]


class ProblemDetails(msgspec.Struct):
    """An error, in the format of RFC 9457."""

    type: str
    title: Annotated[str, Meta(description="The status in words.")]
    status: int
    detail: Annotated[str, Meta(description="What is wrong, and what to do.")]


RESPONSES = (
    Poll,
    ViewRows,
    ViewRow,
    Table,
    Views,
    Ticket,
    UsageList,
    Queries,
    ConnectionList,
    ClosedConnection,
    Group,
    GroupList,
    ResetDone,
    DroppedGroup,
    ProblemDetails,
)
