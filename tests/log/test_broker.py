from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, Message, Producer

from millstream import App
from millstream.errors import HomeInUse, LogError, MachineError
from millstream.log.broker import Broker, class_archive
from millstream.log.connection import await_broker, client_config
from millstream.log.consumer import read_range
from millstream.log.settings import LogSettings
from millstream.log.topic_names import stream_topic
from millstream.log.topics import topic_ids
from millstream.pipeline.pipeline_topics import ensure_topics
from millstream.runtime.home import Home, is_alive

pytestmark = pytest.mark.kafka

KAFKA_COMMAND = """
import sys
from pathlib import Path
from millstream.errors import MillstreamError
from millstream.runtime.home import Home
from millstream.log.broker import run
from millstream.log.settings import LogSettings
try:
    run(LogSettings(port=0), Home(Path(sys.argv[1])))
except MillstreamError as error:
    raise SystemExit(f"error: {error}")
"""


def start_command(home: Path) -> subprocess.Popen[str]:
    """`millstream kafka`, without the command line around it; returns when it is ready."""
    process = subprocess.Popen(
        [sys.executable, "-c", KAFKA_COMMAND, str(home)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line.startswith("kafka ready on 127.0.0.1:"), process.communicate()
    return process


def note_offset(noted: list[int], error: KafkaError | None, message: Message) -> None:
    assert error is None
    noted.append(message.offset() or 0)


def test_what_was_acknowledged_survives_kill_and_restart_with_topics_ids_and_port(
    own_broker: Broker, make_pipeline: Callable[[str], App], app_name: str
) -> None:
    log = LogSettings(bootstrap=own_broker.bootstrap)
    ensure_topics(make_pipeline(app_name), log)
    topic = stream_topic(app_name, "events")
    epoch = topic_ids(log, [topic])
    for round_of_ten_thousand in range(2):
        acknowledged: list[int] = []
        producer = Producer(client_config(log, enable_idempotence=True))
        note = partial(note_offset, acknowledged)
        for _ in range(10_000):
            producer.produce(topic, b"x" * 200, on_delivery=note)
            producer.poll(0)
        assert producer.flush(30) == 0
        own_broker.kill()
        own_broker.start()
        assert own_broker.bootstrap == log.bootstrap
        assert topic_ids(log, [topic]) == epoch
        first = round_of_ten_thousand * 10_000
        assert sorted(acknowledged) == list(range(first, first + 10_000))
        held = [record.offset for record in read_range(log, topic, 0, 0, 1 << 40)]
        assert held == list(range(first + 10_000))


def test_the_broker_listens_on_this_machine_only_and_keeps_its_log(broker: Broker) -> None:
    with socket.create_connection(("127.0.0.1", broker.port)):
        pass
    with pytest.raises(ConnectionRefusedError):  # one that listens everywhere would answer here too
        socket.create_connection(("127.0.0.2", broker.port))
    assert "Kafka Server started" in (broker.home.logs / "kafka.log").read_text()


def test_the_broker_starts_from_the_archive_that_the_setup_has_made(broker: Broker) -> None:
    assert str(class_archive().find()) in Path(f"/proc/{broker.pid}/maps").read_text()


def test_a_taken_port_is_an_error_that_names_port_and_setting(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(MachineError, match=f"127.0.0.1:{port}: the port is taken.*log.port"):
            Broker(tmp_path, port=port).start()


def test_a_second_broker_in_the_same_home_is_refused_with_the_pid_of_the_first(
    broker: Broker,
) -> None:
    with pytest.raises(HomeInUse, match=f"process {os.getpid()} runs there already"):
        Broker(broker.home.path).start()
    await_broker(LogSettings(bootstrap=broker.bootstrap), 10)


def test_a_broker_that_cannot_start_says_why_and_where_to_look(tmp_path: Path) -> None:
    broken = Broker(tmp_path, properties={"log.segment.bytes": "none"})
    with pytest.raises(MachineError, match="none") as caught:
        broken.start()
    assert "\n" not in str(caught.value)


def test_no_answer_is_an_error_that_names_the_servers_and_the_settings() -> None:
    with pytest.raises(LogError, match=r"127.0.0.1:1 did not answer in 0.5 s.*log.bootstrap"):
        await_broker(LogSettings(bootstrap="127.0.0.1:1"), 0.5)


def test_the_command_announces_java_and_ends_it_in_good_order_on_a_signal(
    tmp_path: Path, eventually: Callable[..., None]
) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        command = start_command(tmp_path)
        entry = Home(tmp_path).running()["kafka"]
        assert Path(f"/proc/{entry['pid']}/comm").read_text().strip() == "java"
        await_broker(LogSettings(bootstrap=entry["bootstrap"]), 10)
        command.send_signal(number)
        assert command.wait(20) == 0
        assert not is_alive(entry["pid"])
        assert (tmp_path / "kafka" / "data" / ".kafka_cleanshutdown").exists()
        command.communicate()


def test_when_java_is_killed_the_command_ends_with_a_message(tmp_path: Path) -> None:
    command = start_command(tmp_path)
    os.kill(Home(tmp_path).running()["kafka"]["pid"], signal.SIGKILL)
    _, told = command.communicate(timeout=20)
    assert command.returncode == 1
    assert told.startswith(f"error: Kafka in {tmp_path} was killed (SIGKILL)")
    assert "its data is kept" in told


def test_when_the_command_is_killed_java_dies_with_it_and_the_next_one_starts(
    tmp_path: Path, eventually: Callable[..., None]
) -> None:
    command = start_command(tmp_path)
    java = Home(tmp_path).running()["kafka"]["pid"]
    command.kill()
    command.communicate()
    eventually(lambda: not is_alive(java), seconds=5)
    again = start_command(tmp_path)
    again.terminate()
    again.communicate(timeout=20)
    assert again.returncode == 0
