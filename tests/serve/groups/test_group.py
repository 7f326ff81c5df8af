"""Members of a group share messages: real Kafka, real servers, real WebSockets."""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import Any

import httpx
import pytest
from confluent_kafka import Producer as KafkaProducer
from tests.serve.groups.members import ack, handled, join, member, show
from tests.serve.pipeline import SECONDS, Pipeline, declare
from tests.wait_until import until

from millstream.log.dead_letters.undelivered import UNDELIVERED, UndeliveredTopic
from millstream.log.producing.producer import Producer
from millstream.log.settings import LogSettings
from millstream.log.topic_names import view_topic
from millstream.serve.service import Server
from millstream.values.clock import now_ms, to_iso


@pytest.fixture
def log(log_settings: LogSettings) -> LogSettings:
    return log_settings.model_copy(update={"partitions": 2})


@pytest.fixture
def pipeline(log: LogSettings, app_name: str) -> Pipeline:
    return Pipeline(app_name, log, declare(app_name))


def city(message: dict[str, Any]) -> tuple[str, int]:
    return message["row"]["city"], message["row"]["n"]


async def test_a_member_gets_every_change_since_the_start_of_the_log(pipeline: Pipeline) -> None:
    pipeline.count("Berlin", 1)
    pipeline.flush()
    async with pipeline.server() as server, member(server) as client:
        first = await client.next()
        assert first["type"] == "message"
        assert (first["id"], first["op"], first["key"]) == ("a", "upsert", ["Berlin"])
        assert (first["attempt"], city(first)) == (1, ("Berlin", 1))
        partition, offset = map(int, first["message"].split("-"))
        assert first["position"].endswith(f":{partition}={offset + 1}")
        await ack(client, first)
        pipeline.put("by_city", ["Berlin"], None)
        pipeline.flush()
        deleted = await client.next()
        assert (deleted["op"], deleted["key"], deleted["row"]) == ("delete", ["Berlin"], None)


async def test_the_end_of_a_transaction_is_no_message_to_wait_for(pipeline: Pipeline) -> None:
    topic = view_topic(pipeline.app.name, "by_city")
    writer = KafkaProducer(
        {"bootstrap.servers": pipeline.log.bootstrap, "transactional.id": pipeline.app.name}
    )
    writer.init_transactions(SECONDS)
    writer.begin_transaction()
    writer.produce(topic, '{"city": "Berlin", "n": 1, "_revision": 1}', '["Berlin"]')
    writer.commit_transaction(SECONDS)
    async with pipeline.server() as server, member(server) as client:
        await ack(client, await client.next())
        assert await until(lambda: handled(server, acknowledged=1, absent=1, lag=0))


async def test_the_next_change_of_a_key_waits_for_the_acknowledgement(pipeline: Pipeline) -> None:
    for n in (1, 2):
        pipeline.count("Berlin", n)
    pipeline.flush()
    async with pipeline.server() as server, member(server) as client:
        first = await client.next()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(client.connection.recv(), 0.3)
        await ack(client, first)
        assert city(await client.next()) == ("Berlin", 2)


async def test_a_message_that_is_not_acknowledged_in_time_goes_to_another_member(
    pipeline: Pipeline,
) -> None:
    pipeline.count("Berlin", 1)
    pipeline.flush()
    async with pipeline.server() as server, member(server, ack_timeout=0.5) as silent:
        assert (await silent.next())["attempt"] == 1
        async with member(server) as other:
            again = await other.next()
            assert (city(again), again["attempt"]) == (("Berlin", 1), 2)
            await ack(other, again)
            assert await until(lambda: handled(server, acknowledged=1))


async def test_a_message_of_a_member_that_is_gone_goes_to_another_one(pipeline: Pipeline) -> None:
    pipeline.count("Berlin", 1)
    pipeline.flush()
    async with pipeline.server() as server, member(server) as dying:
        await dying.next()
        async with member(server) as other:
            await until(lambda: members(server, 2))
            dying.connection.transport.abort()
            again = await other.next()
            assert (city(again), again["attempt"]) == (("Berlin", 1), 2)


async def test_a_member_that_unsubscribes_hands_its_messages_back(pipeline: Pipeline) -> None:
    pipeline.count("Berlin", 1)
    pipeline.flush()
    async with pipeline.server() as server, member(server) as leaving:
        await leaving.next()
        async with member(server) as other:
            await leaving.send(type="unsubscribe", id="a")
            assert (await other.next())["attempt"] == 1


async def test_members_that_are_more_than_partitions_share_the_keys(pipeline: Pipeline) -> None:
    async with pipeline.server() as server, contextlib.AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(member(server, max_pending=1)) for _ in range(5)]
        await until(lambda: members(server, 5))
        for number in range(5):
            pipeline.count(f"City {number}", 1)
        pipeline.flush()
        got = [city(await client.next())[0] for client in clients]
        assert sorted(got) == [f"City {number}" for number in range(5)]


async def members(server: Server, count: int) -> bool:
    found = await show(server)
    return bool(found.get("members") == count and found["servers"][0]["partitions"])


async def test_without_acknowledgements_a_message_counts_when_it_is_written(
    pipeline: Pipeline,
) -> None:
    for n in (1, 2, 3):
        pipeline.count("Berlin", n)
    pipeline.flush()
    async with pipeline.server() as server, member(server, ack=False, max_pending=1) as client:
        assert [city(await client.next())[1] for _ in range(3)] == [1, 2, 3]
        assert await until(lambda: handled(server, acknowledged=3, lag=0))


async def test_a_member_with_another_definition_is_refused(pipeline: Pipeline) -> None:
    async with pipeline.server() as server, member(server, where="n > 1") as _:
        await until(lambda: members(server, 1))
        for different, reason in (
            ({}, 'exists with another where: "n > 1", not none'),
            ({"where": "n > 1", "view": "newest"}, 'another source: "by_city", not "newest"'),
            ({"where": "n > 1", "ack_timeout": 7}, "another ack_timeout: 30.0, not 7.0"),
            ({"where": "n > 1", "select": ["n"]}, 'another select: none, not ["n"]'),
        ):
            async with member(server, **different) as refused:
                error = await refused.next()
                assert error["type"] == "error"
                assert reason in error["detail"]
                assert "groups drop desk" in error["detail"]


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"group": "No!"}, "group 'No!' is not made of a-z"),
        ({"ack_timeout": 0}, "ack_timeout 0 is not between"),
        ({"max_attempts": 0}, "max_attempts 0 is not from 1"),
        ({"max_pending": 0}, "max_pending 0 is not from 1"),
        ({"limit": 3}, "a group has no limit"),
        ({"where": "m > 1"}, "'m'"),
        ({"after": "yesterday"}, "'yesterday'"),
        ({"after": "2026-11-18T12:00:00"}, "has no time zone"),
        ({"view": "by_town"}, "there is no view 'by_town'"),
        ({"view": None}, "either a view, a stream"),
        ({"view": None, "sql": "SELECT 1"}, "a group reads a view, a stream or a view's ledger"),
        ({"when_slow": "conflate"}, "a group has no when_slow='conflate'"),
        ({"max_rate": 3}, "a group has no max_rate"),
    ],
)
async def test_a_wrong_request_is_refused_with_the_reason(
    pipeline: Pipeline, options: dict[str, Any], reason: str
) -> None:
    async with pipeline.server() as server, member(server, **options) as client:
        error = await client.next()
        assert error["type"] == "error"
        assert reason in error["detail"]
        assert not server.context.groups.definitions


async def test_a_filter_and_columns_hold_for_all_members(pipeline: Pipeline) -> None:
    pipeline.count("Berlin", 1)
    pipeline.count("Berlin", 2)
    pipeline.put("by_city", ["Berlin"], None)
    pipeline.count("Berlin", 3)
    pipeline.flush()
    async with (
        pipeline.server() as server,
        member(server, where="n = 1 OR n = 3", select=["n"]) as client,
    ):
        first = await client.next()
        assert first["row"] == {"n": 1}
        await ack(client, first)
        second = await client.next()
        assert second["row"] == {"n": 3}  # the delete has no row that could match
        await ack(client, second)
        assert await until(lambda: handled(server, acknowledged=2, filtered=2, passed=4))


async def test_a_repeat_of_an_older_row_is_no_message(pipeline: Pipeline) -> None:
    for n in (1, 2, 1, 2, 3):
        pipeline.count("Berlin", n)
    pipeline.flush()
    async with pipeline.server() as server, member(server, ack=False) as client:
        assert [city(await client.next())[1] for _ in range(3)] == [1, 2, 3]


async def test_a_stream_and_a_view_without_key_have_groups(pipeline: Pipeline) -> None:
    pipeline.event(id=7, city="Oslo")
    pipeline.append(8, "Rome")
    pipeline.flush()
    async with (
        pipeline.server() as server,
        member(server, view=None, stream="rsvps") as stream,
        member(server, view="newest", group="others") as keyless,
    ):
        assert (await stream.next())["row"] == {"id": 7, "city": "Oslo"}
        assert (await keyless.next())["row"] == {"id": 8, "city": "Rome"}


async def test_a_new_group_can_start_at_the_end(pipeline: Pipeline) -> None:
    pipeline.count("Berlin", 1)
    pipeline.flush()
    async with pipeline.server() as server, member(server, after="end") as client:
        await until(lambda: members(server, 1))
        pipeline.count("Berlin", 2)
        pipeline.flush()
        assert city(await client.next()) == ("Berlin", 2)


async def test_a_groups_position_survives_every_server(pipeline: Pipeline) -> None:
    for n in (1, 2):
        pipeline.count("Berlin", n)
    pipeline.flush()
    async with pipeline.server() as server, member(server) as client:
        await ack(client, await client.next())
        await client.next()
    async with pipeline.server() as server, member(server) as client:
        assert city(await client.next()) == ("Berlin", 2)


async def test_a_message_that_ends_its_only_member_is_set_aside_in_the_end(
    pipeline: Pipeline,
) -> None:
    """The attempts are stored with the position, so they survive a group without members."""
    for n in (1, 2):
        pipeline.count("Berlin", n)
    pipeline.flush()
    async with pipeline.server() as server:
        for attempt in (1, 2):
            async with member(server, max_attempts=2) as client:
                message = await client.next()
                assert (city(message), message["attempt"]) == (("Berlin", 1), attempt)
                client.connection.transport.abort()
        async with member(server) as client:
            message = await client.next()
            assert (city(message), message["attempt"]) == (("Berlin", 2), 1)
        letter = await asyncio.to_thread(lambda: next(undelivered(pipeline).list()))
        assert letter.reason == ("its member disconnected without acknowledging it (attempts: 2)")


def undelivered(pipeline: Pipeline) -> UndeliveredTopic:
    return UNDELIVERED.open(pipeline.log, "desk", pipeline.app.name)


async def test_a_message_that_nobody_can_handle_is_set_aside_listed_and_sent_again(
    pipeline: Pipeline,
) -> None:
    for n in (1, 2):
        pipeline.count("Berlin", n)
    pipeline.flush()
    async with pipeline.server() as server, member(server, max_attempts=2) as client:
        for attempt in (1, 2):
            refused = await client.next()
            assert (city(refused), refused["attempt"]) == (("Berlin", 1), attempt)
            await client.send(type="nack", id="a", message=refused["message"], reason="bad row")
        following = await client.next()
        assert city(following) == ("Berlin", 2)  # its key continues
        await ack(client, following)
        await until(lambda: handled(server, acknowledged=1, set_aside=1, pending=0))

        topic = undelivered(pipeline)
        (letter,) = await asyncio.to_thread(lambda: list(topic.list()))
        assert letter.reason == "bad row (attempts: 2)"
        assert letter.position == refused["position"]
        assert json.loads(letter.value)["row"] == {"city": "Berlin", "n": 1}
        producer = Producer(pipeline.log)
        await topic.send_again(producer, [letter])
        await producer.close()
        again = await client.next()
        assert (city(again), again["attempt"]) == (("Berlin", 1), 1)
        assert again["position"] == refused["position"]
        assert not await asyncio.to_thread(lambda: list(topic.list()))
        await ack(client, again)


async def test_a_reset_delivers_again_from_a_time_on(pipeline: Pipeline) -> None:
    pipeline.count("Berlin", 1)
    pipeline.flush()
    async with pipeline.server() as server, member(server, ack=False) as client:
        first = await client.next()
        await asyncio.sleep(0.01)  # so that the records have different times
        between = to_iso(now_ms())
        await asyncio.sleep(0.01)
        for n in (2, 3):
            pipeline.count("Berlin", n)
        pipeline.flush()
        for _ in range(2):
            await client.next()
        await reset(server, between)
        assert await client.next() == {"type": "redirect", "id": "a", "url": None}
        await join(client, ack=False)
        assert [city(await client.next())[1] for _ in range(2)] == [2, 3]
        await reset(server, first["position"])
        await client.next()
        await join(client, ack=False)
        assert [city(await client.next())[1] for _ in range(2)] == [2, 3]
        await reset(server, "start")
        await client.next()
        await join(client, ack=False)
        assert [city(await client.next())[1] for _ in range(3)] == [1, 2, 3]


async def reset(server: Server, to: str) -> None:
    async with httpx.AsyncClient(base_url=server.url, timeout=SECONDS) as http:
        response = await http.post("/v1/groups/desk/reset", json={"to": to})
        assert response.status_code == 200, response.text


async def test_a_dropped_group_is_gone_and_can_be_created_otherwise(pipeline: Pipeline) -> None:
    pipeline.count("Berlin", 1)
    pipeline.flush()
    async with pipeline.server() as server, member(server, ack=False) as client:
        await client.next()
        async with httpx.AsyncClient(base_url=server.url, timeout=SECONDS) as http:
            assert (await http.delete("/v1/groups/desk")).json() == {"dropped": "desk"}
            gone = await client.next()
            assert (gone["type"], gone["title"]) == ("error", "Gone")
            assert (await http.get("/v1/groups")).json() == {"groups": []}
            assert (await http.delete("/v1/groups/desk")).status_code == 404
        await join(client, where="n = 1")
        assert city(await client.next()) == ("Berlin", 1)  # from the start again


async def test_a_group_continues_with_all_rows_of_a_rebuilt_view(pipeline: Pipeline) -> None:
    pipeline.count("Berlin", 1)
    pipeline.flush()
    async with pipeline.server() as server, member(server, ack=False) as client:
        await client.next()
        await asyncio.to_thread(pipeline.recreate, "by_city")
        pipeline.count("Berlin", 7)
        pipeline.flush()
        assert (await client.next())["type"] == "redirect"
        await join(client, ack=False)
        assert city(await client.next()) == ("Berlin", 7)


async def test_every_record_that_the_group_passed_is_accounted_for(pipeline: Pipeline) -> None:
    for n in range(1, 21):
        pipeline.count(f"City {n % 3}", n)
    pipeline.flush()
    options = {"where": "n % 4 <> 0", "max_attempts": 1}
    async with pipeline.server() as server, member(server, **options) as client:
        for number in range(15):
            message = await client.next()
            if number % 5:
                await ack(client, message)
            else:
                await client.send(type="nack", id="a", message=message["message"])
        await until(lambda: handled(server, passed=20, lag=0))
        found = await show(server)
        assert (found["acknowledged"], found["set_aside"], found["filtered"]) == (12, 3, 5)
        assert (found["absent"], found["pending"], found["view"]) == (0, 0, "by_city")


async def test_there_is_a_limit_to_the_number_of_groups(pipeline: Pipeline) -> None:
    async with pipeline.server(max_groups=1) as server, member(server):
        await until(lambda: members(server, 1))
        async with member(server, group="others") as refused:
            assert "there are 1 groups already" in (await refused.next())["detail"]


async def test_a_paused_member_gets_no_messages_until_it_resumes(pipeline: Pipeline) -> None:
    async with pipeline.server() as server, member(server) as paused:
        await until(lambda: members(server, 1))
        await paused.send(type="pause", id="a")
        assert (await paused.next())["type"] == "updated"
        async with member(server) as other:
            for number in range(4):
                pipeline.count(f"City {number}", 1)
            pipeline.flush()
            for _ in range(4):
                assert (await other.next())["attempt"] == 1
            await other.send(type="unsubscribe", id="a")
        await paused.send(type="resume", id="a")
        assert (await paused.next())["type"] == "updated"
        assert {city(await paused.next())[0] for _ in range(4)} == {
            f"City {number}" for number in range(4)
        }


async def test_a_server_that_stops_does_not_count_as_a_failed_attempt(pipeline: Pipeline) -> None:
    pipeline.count("Berlin", 1)
    pipeline.flush()
    for _ in range(3):
        async with contextlib.AsyncExitStack() as stack, pipeline.server() as server:
            client = await stack.enter_async_context(member(server, max_attempts=2))
            assert (await client.next())["attempt"] == 1
