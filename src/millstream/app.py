"""What a user writes: an `App` with its streams and views."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal

from millstream.schema import Schema
from millstream.source import Source

Delivery = Literal["exactly_once", "at_least_once", "at_most_once"]
Mode = Literal["auto", "real_time", "micro_batch"]


@dataclass(frozen=True, slots=True)
class Place:
    """Where in the user's files something was written."""

    file: str
    line: int


@dataclass(frozen=True, slots=True)
class Stream:
    """Events that come in."""

    name: str
    schema: Schema
    key: str | None
    event_time: str | None
    lateness: timedelta
    delivery: Delivery
    retention: timedelta
    source: Source | None
    place: Place


@dataclass(frozen=True, slots=True)
class View:
    """What a continuous query keeps: a table if it has a key, else a stream of result rows."""

    name: str
    inputs: tuple[str, ...]
    key: tuple[str, ...] | None
    keep: timedelta | None
    mode: Mode
    description: str
    function: Callable[..., Any] | None  # exactly one of function and sql is set
    sql: str | None
    place: Place


class App:
    """A pipeline: streams in, views out."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.streams: dict[str, Stream] = {}
        self.views: dict[str, View] = {}
