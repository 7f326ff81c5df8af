"""A copy of the tables, made by applying the events of a PostgreSQL source in order."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from tests.collect.recording_output import RecordingOutput

Event = dict[str, Any]


def envelopes(messages: Iterable[bytes]) -> list[Event]:
    """The CloudEvents of messages, in order."""
    return [event for message in messages for event in json.loads(message)]


def changes(output: RecordingOutput) -> list[Event]:
    """The data of the events, in order."""
    return [event["data"] for event in envelopes(output.messages)]


@dataclass
class Replica:
    """Tables by name, rows by key. Duplicates (by id) count once."""

    tables: dict[str, dict[str, Event]] = field(default_factory=lambda: defaultdict(dict))
    ids: Counter[str] = field(default_factory=Counter)

    def apply(self, messages: Iterable[bytes]) -> Replica:
        """Apply events; inserting a row twice, or changing a missing row, is an error."""
        for event in envelopes(messages):
            self.ids[event["id"]] += 1
            if self.ids[event["id"]] == 1:
                self._apply(event["data"])
        return self

    def rows(self, table: str) -> list[Event]:
        """The rows of a table, by key."""
        return [row for _, row in sorted(self.tables[table].items(), key=_by_key)]

    @property
    def repeated(self) -> list[str]:
        """The ids that occur more than once."""
        return [id_ for id_, count in self.ids.items() if count > 1]

    def _apply(self, change: Event) -> None:
        rows, key, after = self.tables[change["table"]], change["key"], change["after"]
        match change["op"]:
            case "truncate":
                rows.clear()
            case "insert" | "snapshot":
                assert key not in rows, f"{key} of {change['table']} is there already: {change}"
                rows[key] = after
            case "update":
                before = rows.pop(json.dumps([change["before"]["id"]]))
                assert set(after) | set(change.get("unchanged", [])) == set(before)
                rows[key] = before | after
            case "delete":
                del rows[key]
            case other:
                raise AssertionError(f"unknown op {other}")


def _by_key(item: tuple[str, Event]) -> list[Any]:
    key: list[Any] = json.loads(item[0])
    return key
