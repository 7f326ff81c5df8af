"""What Kafka refused for good is listed, shown, sent again once, and counted."""

from __future__ import annotations

import json
import os
import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer
from tests.cli.collecting import bootstrap, collector, stored
from tests.record_size_limit import limit_record_size

from millstream.collect.intake.failed import FailedStore
from millstream.log.record import Record
from millstream.log.settings import LogSettings
from millstream.log.topic_names import stream_topic
from millstream.runtime.home import Home

if TYPE_CHECKING:
    from tests.cli.conftest import Run

LARGE = json.dumps({"id": 2, "city": "x" * 5000 + "\x1b[2J"}).encode()


def test_a_failed_event_is_sent_again_once_and_the_counts_follow(
    run: Run, app_name: str, log_settings: LogSettings, tmp_path: Path
) -> None:
    home, topic = tmp_path / ".millstream", stream_topic(app_name, "orders")
    store = Home(home).failed
    with collector(app_name, log_settings, home, "id LONG, city STRING", key="id") as http:
        limit_record_size(log_settings, topic, 1000)
        answer = http.post("/v1/streams/orders", content=b'{"id": 1}\n' + LARGE).json()
        assert [len(answer[word]) for word in ("receipts", "failed")] == [1, 1]
        receipt, answered_at = answer["failed"][0]["receipt"], time.time() * 1000

        assert "1 accepted events could not be logged" in run("status").out
        again = run("failed", "retry", "--all")
        assert again.code == 1
        assert "0 sent, 1 failed again, 0 were in the log already" in again.out
        assert "too large" in again.err.lower()

        listed = json.loads(run("failed", "list", "--json").out)
        assert listed["failed_at"] >= answered_at
        assert (listed["topic"], listed["event"]) == (topic, LARGE.decode())
        assert run("failed", "list", "--since", "2199-01-01").out == ""
        shown = run("failed", "show", listed["id"]).out
        assert "too large" in shown.lower()
        assert "\x1b[2J" not in shown
        assert run("failed", "show", listed["id"], "--raw").out == LARGE.decode()
        traced = run("trace", receipt)
        assert traced.code == 1
        assert f"millstream failed show {listed['id']}" in traced.out

        (file,) = store.iterdir()
        whole = file.read_bytes()
        file.write_bytes(whole[:-5])
        answer = http.get(f"/v1/receipts/{receipt}")
        assert (answer.status_code, answer.json()["state"]) == (200, "failed")
        assert "is damaged" in answer.json()["error"]
        file.write_bytes(whole)

        limit_record_size(log_settings, topic, 1_000_000)
        shutil.copytree(store, tmp_path / "before")
        done = run("failed", "retry", "--all", "--json")
        assert (done.code, json.loads(done.out)) == (0, {"sent": 1, "there": 0, "left": {}})
        # As if it had been killed before the file was removed.
        shutil.copytree(tmp_path / "before", store, dirs_exist_ok=True)
        done = run("failed", "retry", listed["id"])
        assert "0 sent, 0 failed again, 1 were in the log already" in done.out
        assert FailedStore(store).ids() == []

        records = stored(log_settings, app_name)
        assert sorted(record.value or b"" for record in records) == [b'{"id": 1}', LARGE]
        late = next(record for record in records if record.value == LARGE)
        assert (late.key, late.timestamp) == (b"2", listed["at"])
        headers = {name: text.decode() for name, text in late.headers}
        assert headers == listed["headers"]

        audited = run("audit", "--app", app_name, "--json")
        assert audited.code == 0, audited.out
        counts = json.loads(audited.out)["streams"]["orders"]
        assert (counts["accepted"], counts["logged"], counts["failed"]) == (2, 2, 0)
        assert counts["log"] == {"at_least": 2, "at_most": 2, "held": 2}
        traced = run("trace", receipt, "--json")
        assert json.loads(traced.out)["event"]["state"] == "logged"
        assert "no serve runs" in json.loads(traced.out)["unknown"]

    # Another start, and one event that is in the log twice.
    with collector(app_name, log_settings, home, "id LONG, city STRING", key="id") as http:
        http.post("/v1/streams/orders", content=b'{"id": 3}')
        found = run("audit", "--app", app_name, "--json", "--records")
        assert found.code == 0, found.out
        counts = json.loads(found.out)["streams"]["orders"]
        assert (counts["accepted"], counts["logged"], counts["log"]["at_most"]) == (3, 3, 3)
        assert f"{topic}: 3 records were looked at" in json.loads(found.out)["notes"]
        put_again(log_settings, late)
        found = run("audit", "--app", app_name, "--records")
        assert found.code == 1
        assert f"✗ orders: {topic} was given 1 records more" in found.out
        assert f"✗ orders: 1 events are more than once in {topic}" in found.out


def put_again(log: LogSettings, record: Record) -> None:
    producer = Producer({"bootstrap.servers": log.bootstrap})
    producer.produce(record.topic, record.value, record.key, headers=list(record.headers))
    assert producer.flush(30) == 0


def test_what_cannot_be_sent_stays_with_the_reason(
    run: Run, app_name: str, log_settings: LogSettings, tmp_path: Path
) -> None:
    store = FailedStore(tmp_path / ".millstream" / "failed")
    whole = store.put(f"{app_name}.stream.gone", None, b"[1]", [], 1, "no stream any more")
    number = [("ce_collector", "c1"), ("ce_sequence", "7")]
    lost = store.put(f"{app_name}.stream.gone", "k", b"{}", number, 1, "no topic")
    (store.folder / "c1-8.0.failed").write_bytes(b"\xc1")
    where = ("--set", bootstrap(log_settings))
    outcome = run("failed", "retry", "--all", *where)
    assert outcome.code == 1
    assert f"{whole}: it is a whole body" in outcome.err
    assert f"{lost}: there is no topic" in outcome.err
    assert "c1-8.0: its file is damaged" in outcome.err
    assert "0 sent, 3 failed again" in outcome.out
    listed = run("failed", "list")
    assert listed.code == 1
    assert "2 of 2 failed events" in listed.err
    assert "c1-8.0: its file is damaged" in listed.err

    assert run("failed", "drop", "--all").code == 2  # nobody to ask
    assert run("failed", "drop", "--reason", "no topic", "--yes").out == "1 dropped\n"
    assert run("failed", "drop", "--all", "--yes").out == "2 dropped\n"
    assert os.listdir(store.folder) == []


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["retry"], 2, "say which"),
        (["drop"], 2, "say which"),
        (["drop", "c1-1.0", "--all"], 2, "not both"),
        (["show", "c1-1.0"], 1, "`millstream failed list` shows those that are there"),
        (["drop", "c1-1.0", "--yes"], 1, "there is no failed event 'c1-1.0'"),
        (["show", "../../etc/passwd"], 1, "is no id of a failed event"),
        (["retry", "--all"], 1, "log.bootstrap is not set"),
    ],
)
def test_what_cannot_be_done_is_told(run: Run, arguments: list[str], code: int, words: str) -> None:
    outcome = run("failed", *arguments)
    assert outcome.code == code
    assert words in outcome.err


def test_an_empty_store_is_no_error(run: Run) -> None:
    outcome = run("failed", "list")
    assert (outcome.code, outcome.out) == (0, "")
    assert "0 of 0 failed events" in outcome.err
