"""Usage is counted by caller, for a bounded number of them."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.web.echo_server import echo_server

from millstream.web.auth import usage as module
from millstream.web.auth.api_keys import ApiKeyFile
from millstream.web.auth.caller import ANYBODY, Caller
from millstream.web.auth.rights import Rights
from millstream.web.auth.usage import Usage


def caller(name: str) -> Caller:
    return Caller("key", name, Rights([]))


def test_callers_beyond_a_number_are_counted_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MAX_CALLERS", 2)
    usage = Usage()
    for name in ("a", "b", "c", "d", "a"):
        usage.of(caller(name)).requests += 1
    assert [(name, each.requests) for name, each in usage] == [
        ("key a", 2),
        ("key b", 1),
        ("others", 2),
    ]


def test_callers_without_a_login_are_one() -> None:
    usage = Usage()
    for each in (ANYBODY, Caller("address", "1.2.3.4", Rights([]))):
        usage.of(each).bytes += 1
    assert [(name, each.bytes) for name, each in usage] == [("address", 2)]


def test_a_name_cannot_break_out_of_its_label() -> None:
    usage = Usage()
    usage.of(caller('x"} 1\n\\ä'))
    assert list(usage.samples("events")) == ['caller="key x?} 1???"']


async def test_a_collector_counts_requests_of_keys(tmp_path: Path) -> None:
    key = ApiKeyFile(tmp_path / "keys.json").create("shop", ["clicks"])
    async with echo_server(tmp_path, auth=["key"]) as server:
        for _ in range(2):
            assert (await server.ask(headers={"x-api-key": key})).status == 200
        assert (await server.ask(headers={"x-api-key": "msk_wrong"})).status == 401
        counted = [(name, each.requests) for name, each in server.server.usage]
    assert counted == [("key shop", 2)]
