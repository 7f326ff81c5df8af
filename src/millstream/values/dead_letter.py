"""Dead letters: events that are missing from views, each with its reason.

There are five stores: rejected events, late events and the undelivered messages of groups are in
topics of the log (`log/dead_letters/`); events that Kafka refused (`collect/intake/failed.py`) and
the damaged entries of a collector's journal (`cli/dead_letters/damaged.py`) are in a home. Commands
list, show and select them in the same way.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal, Protocol, TypeVar

# replay: send to the collector again; retry: send to Kafka again; drop: delete for good.
Action = Literal["replay", "retry", "drop"]


class DeadLetter(Protocol):
    """One event as it was received, and why it is missing."""

    @property
    def id(self) -> str:
        """The id that commands print and accept."""

    @property
    def at(self) -> int:
        """When it was received or, if it is damaged, found: milliseconds since the epoch."""

    @property
    def reason(self) -> str: ...

    @property
    def value(self) -> bytes:
        """The event's bytes; of a damaged one, what is left of them."""

    @property
    def details(self) -> Mapping[str, Any]:
        """Further fields of its JSON."""

    @property
    def facts(self) -> Mapping[str, str]:
        """Further lines for people."""


L_co = TypeVar("L_co", bound=DeadLetter, covariant=True)


class DeadLetters(Protocol[L_co]):
    """A store of dead letters. Every call blocks."""

    @property
    def actions(self) -> tuple[Action, ...]:
        """What can be done with its dead letters."""

    def list(self, since: int = 0) -> Iterator[L_co]:
        """All since this time (milliseconds since the epoch)."""

    def get(self, id: str) -> L_co:  # noqa: A002
        """The one with this id; MillstreamError if there is none."""
