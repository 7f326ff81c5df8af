"""`groups` and `undelivered` against a real server."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

from tests.serve.groups.members import ack, handled, member
from tests.serve.pipeline import Pipeline, declare
from tests.wait_until import until

from millstream.log.settings import LogSettings
from millstream.serve.service import Server

if TYPE_CHECKING:
    from tests.cli.conftest import Outcome, Run


async def call(run: Run, server: Server, *words: str) -> Outcome:
    return await asyncio.to_thread(run, *words, "--url", server.url)


async def test_groups_are_listed_shown_reset_and_dropped(
    log_settings: LogSettings, app_name: str, run: Run
) -> None:
    pipeline = Pipeline(app_name, log_settings, declare(app_name))
    pipeline.count("Berlin", 1)
    pipeline.flush()
    async with pipeline.server() as server:
        assert (await call(run, server, "groups")).out == "there are no groups\n"
        async with member(server, where="n > 0") as client:
            await ack(client, await client.next())
            await until(lambda: handled(server, acknowledged=1, members=1))

            (listed,) = json.loads((await call(run, server, "groups", "--json")).out)
            assert (listed["name"], listed["view"], listed["lag"]) == ("desk", "by_city", 0)
            table = (await call(run, server, "groups")).out
            assert "view by_city where n > 0" in table
            shown = (await call(run, server, "groups", "show", "desk")).out
            assert "ack_timeout 30 s, max_attempts 5" in shown
            assert "passed 1 = 1 acknowledged + 0 set aside + 0 filtered + 0 absent" in shown
            assert server.url in shown

            reset = await call(run, server, "groups", "reset", "desk", "--to", "1 hour")
            assert (reset.code, reset.out[:18]) == (0, "desk continues at "), reset.err
        wrong = await call(run, server, "groups", "reset", "desk", "--to", "never")
        assert (wrong.code, "neither a duration nor a time" in wrong.err) == (1, True)
        dropped = await call(run, server, "groups", "drop", "desk", "--yes")
        assert (dropped.code, dropped.err) == (0, "desk is removed\n")
        missing = await call(run, server, "groups", "show", "desk")
        assert (missing.code, "there is no group 'desk'" in missing.err) == (1, True)


async def test_undelivered_messages_are_listed_shown_retried_and_dropped(
    log_settings: LogSettings, app_name: str, run: Run
) -> None:
    pipeline = Pipeline(app_name, log_settings, declare(app_name))
    for number in (1, 2):
        pipeline.count(f"City {number}", 1)
    pipeline.flush()
    where = ("--app", app_name, "--set", f"log.bootstrap={log_settings.bootstrap}")

    async def undelivered(*words: str) -> Outcome:
        return await asyncio.to_thread(run, "undelivered", *words, *where)

    async with pipeline.server() as server, member(server, max_attempts=1) as client:
        for _ in range(2):
            message = await client.next()
            await client.send(type="nack", id="a", message=message["message"], reason="bad price")
        await until(lambda: handled(server, set_aside=2))
        listed = await undelivered("list", "desk", "--reason", "price")
        letters = [json.loads(line) for line in listed.out.splitlines()]
        assert listed.err == "2 of 2 undelivered messages of desk\n"
        assert [letter["reason"] for letter in letters] == ["bad price (attempts: 1)"] * 2
        shown = await undelivered("show", letters[0]["id"])
        assert "bad price" in shown.out

        retried = await undelivered("retry", "desk", letters[0]["id"])
        assert retried.out == "1 sent to the group again\n"
        again = await client.next()
        assert again["row"] == json.loads(letters[0]["event"])["row"]
        await ack(client, again)
        assert (await undelivered("drop", "desk", "--all", "--yes")).out == "1 removed\n"
        assert (await undelivered("list", "desk")).out == ""
        unknown = await undelivered("list", "dusk")
        assert "the log has no group 'dusk'" in unknown.err
