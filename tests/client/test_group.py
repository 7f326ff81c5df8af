"""The Python client as a member of a group, against a real server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from tests.serve.groups.members import handled
from tests.serve.pipeline import Pipeline, declare
from tests.wait_until import until

from millstream.client import Client, GroupMessage
from millstream.client.group import _checked
from millstream.errors import QueryError
from millstream.log.settings import LogSettings
from millstream.serve.service import Server


@pytest.fixture
def pipeline(log_settings: LogSettings, app_name: str) -> Pipeline:
    made = Pipeline(app_name, log_settings, declare(app_name))
    for number in range(1, 4):
        made.count(f"City {number}", 1)
    made.flush()
    return made


@pytest.fixture
async def server(pipeline: Pipeline) -> AsyncIterator[Server]:
    async with pipeline.server() as running:
        yield running


@pytest.fixture
async def client(server: Server) -> AsyncIterator[Client]:
    async with Client(server.url) as made:
        yield made


def city(message: GroupMessage) -> str:
    assert message.row is not None
    return str(message.row["city"])


async def test_a_message_is_acknowledged_when_its_block_ends(
    client: Client, server: Server
) -> None:
    got = []
    async with client.group("desk", "by_city") as messages:
        async for message in messages:
            got.append(city(message))
            if len(got) == 3:
                break
    assert sorted(got) == ["City 1", "City 2", "City 3"]
    await until(lambda: handled(server, acknowledged=3, members=0))


async def test_an_exception_in_the_block_refuses_the_message_with_its_reason(
    client: Client, server: Server
) -> None:
    async def work() -> None:
        async with client.group("desk", "by_city", max_attempts=1) as messages:
            async for message in messages:
                raise KeyError(city(message))

    with pytest.raises(KeyError):
        await work()
    await until(lambda: handled(server, set_aside=1, acknowledged=0))


async def test_a_loop_that_ends_early_without_a_block_acknowledges_nothing(
    client: Client, server: Server
) -> None:
    async for message in client.group("desk", "by_city"):
        first = city(message)
        break
    async with client.group("desk", "by_city") as messages:
        again = [await anext(messages) for _ in range(3)]
        assert first in {city(message) for message in again}
        assert [message.attempt for message in again] == [1, 1, 1]  # handed back, not failed


async def test_messages_can_be_answered_one_by_one(client: Client, server: Server) -> None:
    async with client.group("desk", "by_city", prefetch=3, auto_ack=False) as messages:
        first, second, third = [await anext(messages) for _ in range(3)]
        await third.ack()
        async with second:
            pass
        with pytest.raises(KeyError):
            async with first:
                raise KeyError("price")
        again = await anext(messages)
        assert (city(again), again.attempt) == (city(first), 2)
        await again.ack()
        await again.nack("too late: it is answered")
    await until(lambda: handled(server, acknowledged=3))


async def test_a_handler_gets_several_messages_at_once(client: Client, server: Server) -> None:
    together = asyncio.Barrier(3)
    failed = []

    async def handler(message: GroupMessage) -> None:
        if message.attempt == 1:
            await together.wait()
            failed.append(message)
            raise ValueError("the first attempt always fails")

    messages = client.group("desk", "by_city", prefetch=3)
    work = asyncio.create_task(messages.handle(handler))
    await until(lambda: handled(server, acknowledged=3))
    assert len(failed) == 3
    work.cancel()
    await asyncio.gather(work, return_exceptions=True)


async def test_a_group_that_is_defined_otherwise_is_an_error(
    client: Client, server: Server
) -> None:
    async with client.group("desk", "by_city") as messages:
        await anext(messages)
        with pytest.raises(QueryError, match="exists with another where"):
            await anext(client.group("desk", "by_city", where="n > 1"))


async def test_a_reset_reaches_its_members(client: Client, server: Server) -> None:
    async with client.group("desk", "by_city") as messages:
        for _ in range(3):
            await anext(messages)
        await client.reset_group("desk", "start")
        assert {city(await anext(messages)) for _ in range(3)} == {"City 1", "City 2", "City 3"}


async def test_a_dropped_group_ends_its_members(client: Client, server: Server) -> None:
    async with client.group("desk", "by_city") as messages:
        await anext(messages)
        await client.drop_group("desk")
        with pytest.raises(QueryError, match="group 'desk' was dropped"):
            await anext(messages)
    assert await client.groups() == []


def test_a_redirect_to_an_unencrypted_address_is_refused() -> None:
    assert _checked("https://b:1/", "https://a") == "https://b:1"
    assert _checked("http://b:1", "http://a") == "http://b:1"
    with pytest.raises(QueryError, match="not encrypted"):
        _checked("http://b:1", "https://a")


def test_a_group_reads_one_thing_and_takes_at_least_one_message() -> None:
    client = Client("http://127.0.0.1:1")
    with pytest.raises(TypeError, match="a group reads either a view, or a stream"):
        client.group("desk")
    with pytest.raises(ValueError, match="prefetch is 0"):
        client.group("desk", "by_city", prefetch=0)
