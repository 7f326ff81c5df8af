"""Records become messages as the group's creator may see them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from millstream.errors import QueryError
from millstream.log.record import Record
from millstream.serve.groups.definition import GroupDefinition, GroupRequest
from millstream.serve.groups.messages import MessageReader
from millstream.serve.settings import ServeSettings
from millstream.serve.views.served_view import ServedView
from millstream.values.view_description import ViewColumn
from millstream.values.visibility import SEES_ALL, Visibility


class Source:
    """A view, and the messages that a group makes of its records."""

    def __init__(self, visibility: Visibility = SEES_ALL, **options: Any) -> None:
        columns = (ViewColumn("city", "string"), ViewColumn("n", "bigint"))
        self.view = ServedView(
            "by_city", "view", "topic", ServeSettings(), key=("city",), columns=columns
        )
        self.view.reset("E", {0: 0})
        definition = request(**options).define(
            start="E:0=0", created_at=0, creator="key ada", visibility=visibility
        )
        self.reader = MessageReader(definition, self.view, "E")

    def write(self, city: str, row: dict[str, Any] | None) -> dict[str, Any] | None:
        """The message for a record that the view has read."""
        key = json.dumps([city]).encode()
        value = None if row is None else json.dumps(row).encode()
        record = Record("topic", 0, self.view.table.offsets[0], 0, key, value, ())
        self.view.apply([record])
        message = self.reader.read(record)
        return None if message is None else json.loads(b"{%b}" % message.body)


def request(**options: Any) -> GroupRequest:
    return GroupRequest(**{"name": "desk", "kind": "view", "source": "by_city", **options})


def test_a_message_has_the_key_and_the_row_without_lineage() -> None:
    source = Source()
    message = source.write("Rome", {"city": "Rome", "n": 1, "_revision": 1})
    assert message == {"op": "upsert", "key": ["Rome"], "row": {"city": "Rome", "n": 1}}
    deleted = {"op": "delete", "key": ["Rome"], "row": None}
    assert source.write("Rome", None) == deleted


def test_members_get_no_row_that_the_creator_may_not_see() -> None:
    source = Source(Visibility(rows="n > 1"))
    assert source.write("Rome", {"city": "Rome", "n": 1, "_revision": 1}) is None
    assert source.write("Rome", {"city": "Rome", "n": 2, "_revision": 2}) is not None
    assert source.write("Rome", None) is None  # its key may belong to a hidden row


def test_members_get_no_column_that_the_creator_may_not_see() -> None:
    source = Source(Visibility(hidden=frozenset({"n"})))
    message = source.write("Rome", {"city": "Rome", "n": 1, "_revision": 1})
    assert message is not None
    assert message["row"] == {"city": "Rome"}


def test_a_record_that_is_not_json_is_no_message() -> None:
    source = Source()
    record = Record("topic", 0, 0, 0, b'["Rome"]', b"{", ())
    source.view.apply([record])
    assert source.reader.read(record) is None


@pytest.mark.parametrize(
    "change", [{"where": "n > 1"}, {"lineage": True}, {"ack": False}, {"max_attempts": 2}]
)
def test_a_member_asks_for_the_same_as_the_group_or_is_refused(change: dict[str, Any]) -> None:
    group = defined()
    request().check_fits(group)
    request(ack=True, ack_timeout=30.0, max_attempts=5).check_fits(group)
    with pytest.raises(QueryError, match=f"another {next(iter(change))}"):
        request(**change).check_fits(group)


def defined() -> GroupDefinition:
    return request().define(start="E:", created_at=0, creator="key ada", visibility=SEES_ALL)
