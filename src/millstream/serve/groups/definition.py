"""What a group is: its source, filter, rules for acknowledging, and where it starts.

Definitions are in the compacted topic `<app>.groups`, so that every server knows every group.
"""

from __future__ import annotations

import uuid
from typing import Any, Literal

import msgspec

from millstream.errors import QueryError
from millstream.syntax.names import name_problem
from millstream.values.visibility import Visibility

Kind = Literal["view", "stream", "ledger"]
DEFAULT_TIMEOUT, DEFAULT_ATTEMPTS = 30.0, 5
MAX_TIMEOUT, MAX_ATTEMPTS = 86_400.0, 1_000


class GroupDefinition(msgspec.Struct, frozen=True, omit_defaults=True):
    """A group as its first member created it."""

    name: str
    kind: Kind
    source: str  # the view, stream or ledger
    start: str  # a position: where the group's first messages are
    id: str  # of this creation; a group that is dropped and created again has another one
    # Changes when the group is created or reset. Offsets that were committed under another
    # generation do not count.
    generation: str
    created_at: int  # milliseconds since the epoch
    creator: str  # kind and name of the caller
    where: str | None = None
    select: tuple[str, ...] | None = None
    lineage: bool = False
    ack: bool = True
    ack_timeout: float = DEFAULT_TIMEOUT
    max_attempts: int = DEFAULT_ATTEMPTS
    # The rows and columns that the creator may see: members see the same.
    rows: str | None = None
    hidden: tuple[str, ...] = ()

    @property
    def visibility(self) -> Visibility:
        return Visibility(self.rows, frozenset(self.hidden))


class GroupRequest(msgspec.Struct, frozen=True):
    """What a member asks for. None: as the group has it."""

    name: str
    kind: Kind
    source: str
    where: str | None = None
    select: tuple[str, ...] | None = None
    lineage: bool = False
    ack: bool | None = None
    ack_timeout: float | None = None
    max_attempts: int | None = None
    after: str | None = None  # where a new group starts

    def check(self) -> None:
        """QueryError if a field has no valid value."""
        if problem := name_problem(self.name):
            raise QueryError(f"group {self.name[:100]!r} {problem}")
        if self.ack_timeout is not None and not 0 < self.ack_timeout <= MAX_TIMEOUT:
            raise QueryError(
                f"ack_timeout {self.ack_timeout:g} is not between 0 and {MAX_TIMEOUT:g} seconds"
            )
        if self.max_attempts is not None and not 1 <= self.max_attempts <= MAX_ATTEMPTS:
            raise QueryError(f"max_attempts {self.max_attempts} is not from 1 to {MAX_ATTEMPTS}")

    def define(
        self, *, start: str, created_at: int, creator: str, visibility: Visibility
    ) -> GroupDefinition:
        """The definition of a new group."""
        return GroupDefinition(
            name=self.name,
            kind=self.kind,
            source=self.source,
            start=start,
            id=uuid.uuid4().hex,
            generation=new_generation(),
            created_at=created_at,
            creator=creator,
            where=self.where,
            select=self.select,
            lineage=self.lineage,
            ack=self.ack is not False,
            ack_timeout=self.ack_timeout or DEFAULT_TIMEOUT,
            max_attempts=self.max_attempts or DEFAULT_ATTEMPTS,
            rows=visibility.rows,
            hidden=tuple(sorted(visibility.hidden)),
        )

    def check_fits(self, group: GroupDefinition) -> None:
        """QueryError if the group exists with another definition."""
        for field in ("kind", "source", "where", "select", "lineage"):
            self._check_field(group, field, getattr(self, field))
        for field in ("ack", "ack_timeout", "max_attempts"):
            if (asked := getattr(self, field)) is not None:
                self._check_field(group, field, asked)

    def _check_field(self, group: GroupDefinition, field: str, asked: Any) -> None:
        defined = getattr(group, field)
        if asked != defined:
            raise QueryError(
                f"group {group.name!r} exists with another {field}: {_text(defined)}, "
                f"not {_text(asked)}",
                remedy="subscribe as the group was created, or under another name; "
                f"`millstream groups drop {group.name}` removes the group and its position",
            )


def new_generation() -> str:
    return uuid.uuid4().hex[:12]


def _text(value: Any) -> str:
    return "none" if value is None else msgspec.json.encode(value).decode()[:200]


encode_definition = msgspec.json.Encoder().encode
decode_definition = msgspec.json.Decoder(GroupDefinition).decode
