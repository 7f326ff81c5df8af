"""JSON of rows and changes, encoded once for all clients with the same filter and columns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, NamedTuple, Protocol

import msgspec

from millstream.expression.condition import Predicate
from millstream.serve.views.filter import Projection
from millstream.store.views.equality_index import ConcernedChanges, Equality
from millstream.store.views.ring import ViewChange
from millstream.values.clock import to_iso
from millstream.values.view_description import ViewColumn

encode = msgspec.json.Encoder(decimal_format="number").encode
_MAX_SNAPSHOTS, _MAX_SNAPSHOT_BYTES = 100, 32 << 20
_MAX_CHANGES = 512  # cached; a client that is further behind has its changes encoded again


class Encoding:
    """One distinct filter, selection of columns and visibility of one view.

    `visible` tests a row by the policy, `visible_key` a key if the policy needs no other column.
    `columns` are those that exist for these clients. The filter sees no row that the policy hides:
    even how long it takes, or that it fails, would say something about the row.
    """

    def __init__(
        self,
        where: Predicate | None,
        project: Projection,
        *,
        columns: tuple[ViewColumn, ...] = (),
        visible: Predicate | None = None,
        visible_key: Callable[[str], bool] | None = None,
        equality: Equality | None = None,
    ) -> None:
        self.project = project
        self.columns = columns
        self._where = where
        self._visible = visible
        self._visible_key = visible_key
        self._bodies: dict[int, bytes | None] = {}
        self.equality = equality  # every row for these clients has this value
        self.concerned = ConcernedChanges()

    @property
    def is_filtered(self) -> bool:
        """Whether rows are tested, by a filter or by a policy."""
        return self._where is not None or self._visible is not None

    @property
    def hides_rows(self) -> bool:
        """Whether the policy may hide rows from these clients."""
        return self._visible is not None

    def body(self, change: ViewChange, number: int | None = None) -> bytes | None:
        """JSON of a change from `"op"` to before the position, which differs by client.

        None: the change is not for clients with this filter. `number` is the change's number in
        the ring, under which the JSON is cached.
        """
        if number is None:
            return self._encode(change)
        try:
            return self._bodies[number]
        except KeyError:
            pass
        body = self._bodies[number] = self._encode(change)
        if len(self._bodies) > _MAX_CHANGES:
            del self._bodies[next(iter(self._bodies))]
        return body

    def clear(self) -> None:
        """Drop the cached changes: the ring numbers its changes from 0 again."""
        self._bodies.clear()

    def matches(self, row: Mapping[str, Any]) -> bool:
        if self._visible is not None and not self._visible(row):
            return False
        return self._where is None or self._where(row)

    def concerns(self, change: ViewChange) -> bool:
        """Whether the change is for clients with this encoding."""
        if change.row is not None and self.matches(change.row):
            return True
        if change.key is None:
            return False
        if change.known:
            return change.before is not None and self.matches(change.before)
        # The row before is unknown, so the client may have it, unless its key shows that it cannot.
        return self._visible is None or (
            self._visible_key is not None and self._visible_key(change.key)
        )

    def is_undecidable(self, change: ViewChange) -> bool:
        """Whether only the row before, which is unknown, says if the client had the row.

        A delete would show the key of a row that the client may never have seen.
        """
        return (
            not change.known
            and self._visible is not None
            and self._visible_key is None
            and (change.row is None or not self._visible(change.row))
        )

    def encode_rows(self, rows: Iterable[tuple[str | None, Mapping[str, Any]]]) -> bytes:
        """The rows of a snapshot, with their keys."""
        project = self.project
        return b"[%b]" % b",".join(
            b'{"key":%b,"row":%b}'
            % (b"null" if key is None else key.encode(), encode(project(row)))
            for key, row in rows
        )

    def operation(self, change: ViewChange) -> Literal["upsert", "delete"] | None:
        """What the change is for clients with this filter; None: nothing."""
        if change.row is not None and self.matches(change.row):
            return "upsert"
        # The row was deleted, or does not match any more.
        return "delete" if self.concerns(change) else None

    def _encode(self, change: ViewChange) -> bytes | None:
        operation = self.operation(change)
        if operation == "upsert" and change.row is not None:
            key = b"null" if change.key is None else change.key.encode()
            row = encode(self.project(change.row))
            return b'"op":"upsert","key":%b,"row":%b,"position":"' % (key, row)
        return delete_body(change.key) if operation == "delete" and change.key else None


def delete_body(key: str) -> bytes:
    """JSON of the change that takes a row from a client, as `Encoding.body` gives it."""
    return b'"op":"delete","key":%b,"row":null,"position":"' % key.encode()


class SnapshotCache:
    """Snapshots of one page at one position, for clients that connect at the same time."""

    def __init__(self) -> None:
        self._position = ""
        self._cached: dict[tuple[Encoding, int | None], tuple[bytes, bytes]] = {}

    def find(self, position: str, key: tuple[Encoding, int | None]) -> tuple[bytes, bytes] | None:
        """The counts and the rows for an encoding and limit."""
        return self._cached.get(key) if self._position == position else None

    def add(
        self, position: str, key: tuple[Encoding, int | None], counts: bytes, rows: bytes
    ) -> None:
        cached = self._cached if self._position == position else {}
        size = sum(len(held) for _, held in cached.values()) + len(rows)
        if size > _MAX_SNAPSHOT_BYTES or len(cached) >= _MAX_SNAPSHOTS:
            cached = {}
        self._position, self._cached = position, {**cached, key: (counts, rows)}

    def clear(self) -> None:
        self._position, self._cached = "", {}


def iso_time(milliseconds: int) -> str | None:
    """RFC 3339 in UTC; None for 0, which means unknown."""
    return to_iso(milliseconds) if milliseconds else None


class MessageFormat(Protocol):
    """How a transport writes messages."""

    def change(self, body: bytes, position: bytes) -> bytes: ...
    def message(self, kind: str, position: str, fields: bytes) -> bytes:
        """Any other message; `fields` is JSON without the braces, as in `"behind":3`."""
        ...

    def snapshot(self, position: str, page: SnapshotPage) -> bytes: ...


class SnapshotPage(NamedTuple):
    """A page of a snapshot, as JSON without the braces."""

    watermark: bytes
    head: bytes  # the name, and how many rows there are
    number: int
    is_last: bool
    rows: bytes

    @property
    def fields(self) -> bytes:
        last = b"true" if self.is_last else b"false"
        place = b'"page":%d,"last":%b' % (self.number, last)
        return b'"watermark":%b,%b,%b,"rows":%b' % (self.watermark, self.head, place, self.rows)


class WebSocketFormat:
    """Messages of one subscription on a WebSocket."""

    def __init__(self, identifier: str) -> None:
        self._id = b'"id":%b' % encode(identifier)
        self._change = b'{"type":"change",%b,' % self._id

    def change(self, body: bytes, position: bytes) -> bytes:
        return b'%b%b%b"}' % (self._change, body, position)

    def message(self, kind: str, position: str, fields: bytes) -> bytes:
        head = b'{"type":"%b",%b,"position":"%b",' % (kind.encode(), self._id, position.encode())
        return b"%b%b}" % (head, fields)

    def snapshot(self, position: str, page: SnapshotPage) -> bytes:
        return self.message("snapshot", position, page.fields)


class EventStreamFormat:
    """Server-sent events. JSON needs no escaping here: it has no line ends outside of strings.

    An event is named after its message's type. An event without a name is a `message`, the only
    kind that `EventSource.onmessage` gets.
    """

    def __init__(self, *, named: bool = True) -> None:
        self._named = named

    def change(self, body: bytes, position: bytes) -> bytes:
        name = b"event: change\n" if self._named else b""
        return b'%bid: %b\ndata: {"type":"change",%b%b"}\n\n' % (name, position, body, position)

    def message(self, kind: str, position: str, fields: bytes) -> bytes:
        # A gap has no id: a client that disconnects before the snapshot must get the gap again.
        return self._event(kind, position, fields, resumable=kind != "gap")

    def snapshot(self, position: str, page: SnapshotPage) -> bytes:
        # A client that disconnects before the last page must not resume after rows that it lacks.
        return self._event("snapshot", position, page.fields, resumable=page.is_last)

    def _event(self, kind: str, position: str, fields: bytes, *, resumable: bool) -> bytes:
        kind_, place = kind.encode(), position.encode()
        name = b"event: %b\n" % kind_ if self._named else b""
        identity = b"id: %b\n" % place if resumable else b""
        data = b'{"type":"%b","position":"%b",%b}' % (kind_, place, fields)
        return b"%b%bdata: %b\n\n" % (name, identity, data)
