"""What clients get of a view's rows, encoded once for all that asked for the same."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

import msgspec

from millstream.expression.condition import Predicate
from millstream.serve.views.filter import Pick
from millstream.store.views.ring import Change
from millstream.values.clock import to_iso
from millstream.values.hidden_columns import LINEAGE

encode = msgspec.json.Encoder(decimal_format="number").encode
_SHARED, _SHARED_BYTES = 100, 32 << 20  # snapshots that are kept; a larger one is kept alone
_CACHED = 512  # changes; who is further behind than that pays for its own encoding


class Shape:
    """One distinct filter and selection of one view."""

    def __init__(self, where: Predicate | None, pick: Pick) -> None:
        self.where = where
        self.pick = pick
        self._bodies: dict[int, bytes | None] = {}

    def body(self, change: Change, number: int | None = None) -> bytes | None:
        """A change's JSON from `"op"` up to the position, which is the client's own; None: skip it.

        `number` is the change's place in the ring; without one, nothing is kept.
        """
        if number is None:
            return self._encode(change)
        try:
            return self._bodies[number]
        except KeyError:
            pass
        body = self._bodies[number] = self._encode(change)
        if len(self._bodies) > _CACHED:
            del self._bodies[next(iter(self._bodies))]
        return body

    def forget(self) -> None:
        """Numbers begin anew: drop what was encoded under the old ones."""
        self._bodies.clear()

    def matches(self, row: Mapping[str, Any]) -> bool:
        return self.where is None or self.where(row)

    def encode_rows(self, rows: Iterable[tuple[str | None, Mapping[str, Any]]]) -> bytes:
        """A snapshot's rows, with their keys."""
        pick = self.pick
        return b"[%b]" % b",".join(
            b'{"key":%b,"row":%b}' % (b"null" if key is None else key.encode(), encode(pick(row)))
            for key, row in rows
        )

    def _encode(self, change: Change) -> bytes | None:
        key = b"null" if change.key is None else change.key.encode()
        if change.row is not None and self.matches(change.row):
            row = encode(self.pick(change.row))
            return b'"op":"upsert","key":%b,"row":%b,"position":"' % (key, row)
        if change.key is None:
            return None
        if change.known and (change.before is None or not self.matches(change.before)):
            return None
        # What was there is gone, or satisfies the filter no longer (or may have: it is not known).
        return b'"op":"delete","key":%b,"row":null,"position":"' % key


class Snapshots:
    """A view's encoded rows at one position, kept so that clients who come at once share them."""

    def __init__(self) -> None:
        self._position = ""
        self._held: dict[tuple[Shape, int | None], bytes] = {}

    def get(
        self, position: str, asked: tuple[Shape, int | None], make: Callable[[], bytes]
    ) -> bytes:
        """What `make` gives; it may be called in any thread."""
        held = self._held if self._position == position else {}
        if (found := held.get(asked)) is not None:
            return found
        made = make()
        size = sum(map(len, tuple(held.values()))) + len(made)
        if size > _SHARED_BYTES or len(held) >= _SHARED:
            held = {}
        self._position, self._held = position, {**held, asked: made}
        return made

    def forget(self) -> None:
        self._position, self._held = "", {}


def without_lineage(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name not in LINEAGE}


def with_lineage(row: Mapping[str, Any]) -> dict[str, Any]:
    return dict(row)


def moment(milliseconds: int) -> str | None:
    """RFC 3339 in UTC; None for 0, which means that it is unknown."""
    return to_iso(milliseconds) if milliseconds else None


def encode_moment(milliseconds: int) -> bytes:
    return encode(moment(milliseconds))


class Frame(Protocol):
    """How a transport writes the four messages."""

    def change(self, body: bytes, position: bytes) -> bytes: ...
    def message(self, kind: str, position: str, fields: bytes) -> bytes:
        """Any other message; `fields` is JSON without the braces, as in `"behind":3`."""
        ...


class SocketFrame:
    """Messages of one subscription on a WebSocket."""

    def __init__(self, identifier: str) -> None:
        self._id = b'"id":%b' % encode(identifier)
        self._change = b'{"type":"change",%b,' % self._id

    def change(self, body: bytes, position: bytes) -> bytes:
        return b'%b%b%b"}' % (self._change, body, position)

    def message(self, kind: str, position: str, fields: bytes) -> bytes:
        return b'{"type":"%b",%b,"position":"%b",%b}' % (
            kind.encode(),
            self._id,
            position.encode(),
            fields,
        )


class EventFrame:
    """Server-sent events. JSON has no line ends outside of text, where they are escaped.

    An event is named after its message's type. Without a name it is a `message`, the only kind that
    `EventSource.onmessage` gets.
    """

    def __init__(self, *, named: bool = True) -> None:
        self._named = named

    def change(self, body: bytes, position: bytes) -> bytes:
        return b'%bid: %b\ndata: {"type":"change",%b%b"}\n\n' % (
            self._name(b"change"),
            position,
            body,
            position,
        )

    def message(self, kind: str, position: str, fields: bytes) -> bytes:
        name, place = kind.encode(), position.encode()
        # Who loses the connection between a gap and its snapshot must be told of the gap again.
        identity = b"" if kind == "gap" else b"id: %b\n" % place
        return b'%b%bdata: {"type":"%b","position":"%b",%b}\n\n' % (
            self._name(name),
            identity,
            name,
            place,
            fields,
        )

    def _name(self, name: bytes) -> bytes:
        return b"event: %b\n" % name if self._named else b""
