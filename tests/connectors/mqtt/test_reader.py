"""MQTT, against a real broker that is killed, paused and flooded."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from tests.collect.recording_output import RecordingOutput
from tests.connectors.mosquitto import Mosquitto
from tests.wait_until import until

from millstream.collect.settings import CollectSettings
from millstream.connectors import source_from_text
from millstream.connectors.mqtt.broker_connection import BrokerConnection
from millstream.connectors.mqtt.description import MqttSource
from millstream.connectors.mqtt.reader import MqttReader

pytestmark = pytest.mark.mosquitto

_QUICK = CollectSettings(
    reconnect_first=0.02, reconnect_most=0.1, ping_after=1.0, ping_timeout=1.0, max_body=100_000
)
_CLIENT = "millstream-readings"


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Mosquitto]:
    broker = Mosquitto(tmp_path)
    broker.start()
    yield broker
    broker.stop()


@contextlib.asynccontextmanager
async def reading(
    source: MqttSource, output: RecordingOutput | None = None, *, connect: bool = True
) -> AsyncIterator[tuple[MqttReader, RecordingOutput]]:
    reader, output = MqttReader("readings", source, _QUICK), output or RecordingOutput()
    task = asyncio.create_task(reader.run(output))
    try:
        if connect:
            await until(lambda: reader.state.state == "connected")
        yield reader, output
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        assert reader.state.state == "stopped"


def numbers(first: int, end: int) -> list[bytes]:
    return [b'{"n":%d}' % number for number in range(first, end)]


async def test_messages_have_their_topic_and_content_type(broker: Mosquitto) -> None:
    async with reading(MqttSource(broker.url, "sensors/+/t")) as (reader, output):
        await broker.publish("sensors/é/t", [b'{"n":1}'])
        await broker.publish("elsewhere", [b"no"])
        await broker.publish("sensors/b/t", [b"n\n2"], content_type="text/csv")
        await until(lambda: len(output.messages) == 2)
        assert output.messages == [b'{"n":1}', b"n\n2"]
        assert output.content_types == ["application/json", "text/csv"]
        assert output.attributes == [{"subject": "sensors/é/t"}, {"subject": "sensors/b/t"}]
        assert (reader.state.received, reader.state.error) == (2, "")


async def test_cloudevents_attributes_are_read_from_user_properties(broker: Mosquitto) -> None:
    event = [("specversion", "1.0"), ("id", "7"), ("source", "/d"), ("type", "t"), ("Odd-1", "x")]
    async with reading(MqttSource(f"{broker.url}/a/#")) as (_, output):
        await broker.publish("a/b", [b"{}"], properties=event)
        await broker.publish("a/c", [b"{}"], properties=[("id", "7"), ("traceparent", "00-1")])
        await until(lambda: len(output.messages) == 2)
        assert output.attributes[0] == {"subject": "a/b", **dict(event[:4])}
        # Without `specversion`, an id is not a CloudEvents id.
        assert output.attributes[1] == {"subject": "a/c", "traceparent": "00-1"}


async def test_nothing_is_acknowledged_before_it_is_on_disk(broker: Mosquitto) -> None:
    source = MqttSource(broker.url, "t")
    async with reading(source) as (_, output):
        output.disk.clear()
        await broker.publish("t", numbers(0, 5))
        await until(lambda: len(output.messages) == 5)
        await until(lambda: broker.sent_to(_CLIENT) == 5)
        assert broker.acknowledged_by(_CLIENT) == 0
    # The reader ended before anything was on disk: everything is resent.
    async with reading(source) as (_, output):
        await until(lambda: len(output.messages) == 5)
        assert output.messages == numbers(0, 5)
        await until(lambda: broker.acknowledged_by(_CLIENT) == 5)
    # After that, nothing is resent.
    async with reading(source) as (_, output):
        await broker.publish("t", [b"last"])
        await until(lambda: output.messages == [b"last"])


async def test_messages_stored_while_the_reader_stops_are_not_resent(broker: Mosquitto) -> None:
    source = MqttSource(broker.url, "t")
    async with reading(source) as (_, output):
        output.disk.clear()
        await broker.publish("t", numbers(0, 3))
        await until(lambda: len(output.messages) == 3)
        asyncio.get_running_loop().call_later(0.1, output.disk.set)
    await until(lambda: broker.acknowledged_by(_CLIENT) == 3)


async def test_the_broker_stores_what_is_published_while_the_collector_is_down(
    broker: Mosquitto,
) -> None:
    source = MqttSource(broker.url, "t")
    async with reading(source):
        pass
    await broker.publish("t", numbers(0, 50))
    async with reading(source) as (_, output):
        await until(lambda: len(output.messages) == 50)
        assert output.messages == numbers(0, 50)


async def test_a_reader_reconnects_to_a_killed_broker_and_nothing_is_lost(
    broker: Mosquitto, caplog: pytest.LogCaptureFixture
) -> None:
    async with reading(MqttSource(broker.url, "t")) as (reader, output):
        output.disk.clear()
        await broker.publish("t", numbers(0, 20))
        await until(lambda: len(output.messages) == 20)
        await broker.save()
        broker.kill()
        await until(lambda: reader.state.state == "retrying" and reader.state.error)
        output.disk.set()
        broker.start()
        await until(lambda: reader.state.state == "connected")
        await broker.publish("t", numbers(20, 40))
        await until(lambda: output.messages[-1] == b'{"n":39}')
        assert set(output.messages) == set(numbers(0, 40))
        assert output.messages[-20:] == numbers(20, 40)
        assert reader.state.reconnects >= 1
    assert "has forgotten the session" not in caplog.text


async def test_a_lost_session_is_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    broker = Mosquitto(tmp_path, persistence=False)
    broker.start()
    try:
        async with reading(MqttSource(broker.url, "t")) as (reader, _):
            broker.kill()
            await until(lambda: reader.state.state == "retrying")
            broker.start()
            await until(lambda: reader.state.state == "connected")
    finally:
        broker.stop()
    assert "has forgotten the session millstream-readings" in caplog.text
    assert "has forgotten the session millstream-readings" in reader.state.warning


async def test_a_flood_stays_within_the_receive_maximum(broker: Mosquitto) -> None:
    source = MqttSource(broker.url, "t", receive_maximum="7")
    async with reading(source) as (_, output):
        output.open.clear()
        await broker.publish("t", numbers(0, 500))
        await until(lambda: broker.sent_to(_CLIENT) == 7)
        await broker.publish("t", numbers(500, 501))
        assert broker.sent_to(_CLIENT) == 7
        assert broker.acknowledged_by(_CLIENT) == 0
        output.open.set()
        await until(lambda: len(output.messages) == 501)
        assert output.messages == numbers(0, 501)
        await until(lambda: broker.acknowledged_by(_CLIENT) == 501)


async def test_messages_without_acknowledgement_wait_while_there_is_no_room(
    broker: Mosquitto,
) -> None:
    large = b"[" + b" " * 20_000 + b"]"
    async with reading(MqttSource(broker.url, "t", receive_maximum=5)) as (reader, output):
        output.open.clear()
        await broker.publish("t", [large] * 2_000, qos=0)
        # For longer than the keepalive of the broker and the timeout of a ping.
        await asyncio.sleep(3.0 * _QUICK.ping_after)
        output.open.set()
        await broker.publish("t", [b"last"])
        await until(lambda: output.messages[-1:] == [b"last"])
        assert set(output.messages) == {large, b"last"}
        assert reader.state.reconnects == 0


async def test_a_message_that_is_too_large_is_counted_and_not_resent(
    broker: Mosquitto,
) -> None:
    async with reading(MqttSource(broker.url, "t")) as (reader, output):
        await broker.publish("t", [b"x" * (_QUICK.max_body + 1), b"next"])
        await until(lambda: output.messages == [b"next"])
        assert (reader.state.lost, reader.state.received) == (1, 1)
        await until(lambda: broker.acknowledged_by(_CLIENT) == 2)


async def test_a_stalled_broker_is_detected(broker: Mosquitto) -> None:
    async with reading(MqttSource(broker.url, "t")) as (reader, output):
        broker.pause()
        await until(lambda: reader.state.state == "retrying")
        broker.resume()
        await until(lambda: reader.state.state == "connected")
        await broker.publish("t", [b"back"])
        await until(lambda: output.messages == [b"back"])


async def test_retained_messages_are_read_once(broker: Mosquitto) -> None:
    await broker.publish("t", [b"retained"], retain=True)
    source = MqttSource(broker.url, "t")
    async with reading(source) as (_, output):
        await until(lambda: output.messages == [b"retained"])
    async with reading(source) as (_, output):
        await broker.publish("t", [b"", b"next"])  # an empty message is not stored
        await until(lambda: output.messages)
        assert output.messages == [b"next"]


async def test_collectors_share_a_subscription(broker: Mosquitto) -> None:
    def source(client_id: str) -> MqttSource:
        return MqttSource(broker.url, "$share/all/t/#", client_id=client_id)

    async with reading(source("one")) as (_, one), reading(source("two")) as (_, two):
        await broker.publish("t/1", numbers(0, 100))
        await until(lambda: len(one.messages) + len(two.messages) == 100)
        assert set(one.messages) | set(two.messages) == set(numbers(0, 100))
        assert one.messages
        assert two.messages


async def test_two_readers_with_one_client_id_are_reported(broker: Mosquitto) -> None:
    source = MqttSource(broker.url, "t", client_id="same")
    async with reading(source) as (first, _), reading(source):
        # This broker gives no reason when it closes the connection of the first.
        await until(lambda: "another client use the client id 'same'" in first.state.error)


async def test_messages_of_former_topics_are_ignored(
    broker: Mosquitto, caplog: pytest.LogCaptureFixture
) -> None:
    async with reading(MqttSource(broker.url, ("old/#", "new/#"))):
        pass
    async with reading(MqttSource(broker.url, "new/#")) as (_, output):
        await broker.publish("old/1", [b"old"])
        await broker.publish("new/1", [b"new"])
        await until(lambda: output.messages)
        assert output.messages == [b"new"]
    assert "old/1" in caplog.text


async def test_a_password_is_used_and_never_shown(tmp_path: Path) -> None:
    broker = Mosquitto(tmp_path, anonymous=False)
    broker.start()
    try:
        url = broker.url.replace("//", "//me:secret@")
        async with reading(MqttSource(url, "t"), connect=False) as (reader, _):
            await until(lambda: "authori" in reader.state.error.lower())
            assert "secret" not in repr(reader.state)
            assert "secret" not in repr(reader.source)
    finally:
        broker.stop()


async def test_a_certificate_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    missing = str(tmp_path / "ca.pem")
    source = MqttSource("mqtts://127.0.0.1:1", "t", ca_file=missing)
    async with reading(source, connect=False) as (reader, _):
        await until(lambda: f"cannot use the certificate {missing}: No such" in reader.state.error)


async def test_a_peer_that_is_no_broker_is_retried() -> None:
    visits = 0

    async def babble(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal visits
        visits += 1
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n" if visits % 2 else b"\x20\xff\xff\xff\xff")
        with contextlib.suppress(ConnectionError):
            await reader.read()
        writer.close()

    server = await asyncio.start_server(babble, "127.0.0.1", 0)
    async with server:
        url = f"mqtt://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with reading(MqttSource(url, "t"), connect=False) as (reader, _):
            await until(lambda: visits >= 4)
            assert reader.state.error


async def test_an_unreachable_broker_is_retried(tmp_path: Path) -> None:
    broker = Mosquitto(tmp_path)
    async with reading(MqttSource(broker.url, "t"), connect=False) as (reader, _):
        await until(lambda: reader.state.state == "retrying")
        assert "refused" in reader.state.error.lower()
        broker.start()
        try:
            await until(lambda: reader.state.state == "connected")
        finally:
            broker.stop()


def test_every_option_can_be_written_in_sql() -> None:
    source = source_from_text(
        {"kind": "mqtt", "url": "mqtts://me:p%40ss@h", "topic": "a/#, b", "receive_maximum": "5"}
    )
    assert isinstance(source, MqttSource)
    assert source.problem() is None
    assert (source.topic, source.receive_maximum, source.port) == (("a/#", "b"), 5, 8883)
    assert source.credentials == ("me", "p@ss")
    assert source.address == "mqtts://h/a/#,b"
    by_url = source_from_text("mqtt://h:1/sensors/+/x/#")
    assert isinstance(by_url, MqttSource)
    assert (by_url.topic, by_url.port, by_url.problem()) == (("sensors/+/x/#",), 1, None)


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        (MqttSource("http://h", "t"), "not the address of an MQTT broker"),
        (MqttSource("mqtt://h"), "without a topic"),
        (MqttSource("mqtt://h", "a/#/b"), "wildcards"),
        (MqttSource("mqtt://h", "a/b+"), "wildcards"),
        (MqttSource("mqtt://h", "$share/a"), "shared subscription"),
        (MqttSource("mqtt://h", "t", receive_maximum=0), "receive_maximum"),
        (MqttSource("mqtt://h", "t", receive_maximum=70_000), "65535"),
        (MqttSource("mqtt://h", "t", session_expiry="soon"), "session_expiry"),
        (MqttSource("mqtt://h", "t", session_expiry=""), "session_expiry"),
        (MqttSource("mqtt://h", "t", ca_file="x"), "mqtts"),
        (MqttSource("mqtts://h", "t", cert_file="x"), "only one of"),
    ],
)
def test_an_invalid_source_is_refused_at_load(source: MqttSource, problem: str) -> None:
    assert problem in (source.problem() or "")


async def test_acknowledged_messages_are_not_resent_though_the_broker_was_sending_more(
    broker: Mosquitto,
) -> None:
    connection = BrokerConnection(_CLIENT, MqttSource(broker.url, "a"), _QUICK)
    await connection.open()
    await broker.publish("a", numbers(0, 10))
    messages = [await connection.message() for _ in range(10)]
    async with broker.sending("a", numbers(10, 20)):  # sent before it reads our acknowledgements
        for message in messages:
            connection.acknowledge(message)
        closing = asyncio.create_task(connection.close(30))
        await until(lambda: connection.lost)
    await closing
    assert broker.acknowledged_by(_CLIENT) == 10
