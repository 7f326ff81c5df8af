"""Late events are listed and shown, and the audit accounts for them."""

from __future__ import annotations

import json
import time
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from tests.analyze.run_late_events import MINUTE, declare, make_late_events
from tests.analyze.watermarks.test_late_events import NOW, InputTopic, moment
from tests.cli.collecting import collector
from tests.conftest import Eventually

from millstream import App
from millstream.analyze.watermarks.late_events import LateEvents
from millstream.cli.audit import auditor
from millstream.log.connection import client_config
from millstream.log.settings import LogSettings
from millstream.log.topic_names import audit_topic, late_topic, stream_topic
from millstream.values.event import LATE_ERROR, LATE_REASON, LATE_VIEWS
from millstream.values.report import ProcessReport, StreamCounts, ViewCounts

if TYPE_CHECKING:
    from tests.cli.conftest import Run


class Analyzed:
    """A log with three events, of which one is late and one from the future, and its audit."""

    def __init__(self, stage: InputTopic, run: Run, counts: StreamCounts) -> None:
        self.stage, self.counts = stage, counts
        self.read = {stream_topic(stage.app.name, "clicks"): {"0": 3}}
        self._producer = Producer(client_config(stage.log))
        self._run = run

    def command(self, *words: str) -> tuple[int, str]:
        app = ("--app", self.stage.app.name)
        outcome = self._run(*words, *app, "--set", f"log.bootstrap={self.stage.log.bootstrap}")
        return outcome.code, outcome.out + outcome.err

    def audit(self) -> dict[str, Any]:
        now = time.time_ns() // 1_000_000
        view = ViewCounts(state="running", read=self.read, watermark=NOW, shed=1, share=0.5)
        # From the future by a minute: as one that reports on and on would be heard of.
        told = ProcessReport(
            "analyze", "a", now + MINUTE, now, {"clicks": self.counts}, [], {"v": view}
        )
        self.write(audit_topic(self.stage.app.name), msgspec.json.encode(told))
        code, out = self.command("audit", "--json")
        content: dict[str, Any] = json.loads(out)
        assert (code == 0) == content["adds_up"], out
        return content

    def write(self, topic: str, value: bytes, *headers: tuple[str, str]) -> None:
        self._producer.produce(topic, value, headers=list(headers))
        assert self._producer.flush(10) == 0


@pytest.fixture
def analyzed(
    run: Run, log_settings: LogSettings, app_name: str, eventually: Eventually
) -> Analyzed:
    stage = InputTopic(log_settings, app_name)
    stage.event(1, NOW)
    stage.event(2, NOW - 5 * MINUTE, watermark=NOW)
    stage.event(3, NOW + 5 * MINUTE)
    stage.flush()
    late_events = make_late_events(log_settings, declare(app_name), idle=600)
    late_events.start()
    eventually(lambda: late_events.counts()["clicks"].future == 1)
    eventually(lambda: len(stage.late()) == 2)
    counts = late_events.counts()["clicks"]
    late_events.close()
    return Analyzed(stage, run, counts)


def test_late_events_are_listed_and_shown(analyzed: Analyzed) -> None:
    code, out = analyzed.command("late", "list", "clicks", "--json")
    late, future = map(json.loads, out.splitlines())
    assert code == 0
    assert (late["kind"], late["late_by_ms"]) == ("late", 5 * MINUTE)
    window = f"[{moment(NOW - 5 * MINUTE)}"
    assert late["reason"].startswith(f"late by 300.000 s for per_minute {window}")
    assert future["reason"].startswith("dated 300.000 s in the future; not in per_minute")
    assert (
        analyzed.command("late", "list", "clicks", "--reason", "future", "--json")[1].count("\n")
        == 1
    )
    code, out = analyzed.command("late", "show", late["id"])
    assert code == 0
    assert '{"id": 2' in out
    assert "late_views" in out
    code, out = analyzed.command("late", "show", "clicks/0/99")
    assert (code, "`millstream late list clicks`" in out) == (1, True)


def test_an_event_that_breaks_a_query_is_listed_with_the_query_s_words(analyzed: Analyzed) -> None:
    told = [(LATE_REASON, "broken"), (LATE_VIEWS, '{"per_city": []}'), (LATE_ERROR, "divide by 0")]
    analyzed.write(late_topic(analyzed.stage.app.name, "clicks"), b"{}", *told)
    code, out = analyzed.command("late", "list", "clicks", "--reason", "per_city", "--json")
    assert code == 0
    assert json.loads(out)["reason"] == "the query of per_city fails on it: divide by 0"


def test_an_unknown_pipeline_is_told_with_the_close_one(
    run: Run, log_settings: LogSettings, app_name: str
) -> None:
    InputTopic(log_settings, app_name)
    where = ("--app", f"{app_name}x", "--set", f"log.bootstrap={log_settings.bootstrap}")
    for words in (("late", "list", "clicks"), ("rejected", "list", "clicks"), ("audit",)):
        outcome = run(*words, *where)
        assert outcome.code == 1
        assert f"the log has no pipeline '{app_name}x'" in outcome.err
        assert f"did you mean '{app_name}'?" in outcome.err


def test_a_trace_tells_that_the_late_topic_holds_the_event(
    run: Run, app_name: str, log_settings: LogSettings, tmp_path: Path, eventually: Eventually
) -> None:
    home, schema = tmp_path / ".millstream", "id LONG, at TIMESTAMP"
    now = time.time_ns() // 1_000_000
    app = App(app_name)
    app.stream("orders", schema=schema, event_time="at")
    with collector(app_name, log_settings, home, schema, event_time="at") as http:
        body = "\n".join(json.dumps({"id": 1, "at": at}) for at in (now, now + 60 * MINUTE))
        in_time, ahead = http.post("/v1/streams/orders", content=body).json()["receipts"]
        late_events = LateEvents(log_settings, app, [], timedelta(minutes=10))
        late_events.start()
        eventually(lambda: late_events.counts()["orders"].future == 1)
        late_events.close()

        (listed,) = run("late", "list", "orders", "--app", app_name, "--json").out.splitlines()
        late = json.loads(listed)
        traced = json.loads(run("trace", ahead, "--json").out)
        assert traced["late"] == [{"id": late["id"], "reason": late["reason"]}]
        words = " ".join(run("trace", ahead).out.split())
        assert f"late {late['reason']}" in words
        assert f"millstream late show {late['id']}" in words
        traced = json.loads(run("trace", in_time, "--json").out)
        assert (traced["late"], traced["late_unknown"]) == ([], "")

        away = run("trace", ahead, "--collect-url", str(http.base_url), "--home", "elsewhere")
        assert away.code == 0
        assert "whether it was late is not known" in away.out
        assert "--serve-url http://HOST:PORT" in " ".join(away.out.split())


def test_the_audit_adds_up_and_tells_when_it_does_not(
    analyzed: Analyzed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(auditor, "_STARTING", 0.0)  # nothing that is off will come right here
    content = analyzed.audit()
    assert content["problems"] == []
    row = {"in_order": 1, "late": 1, "future": 1, "held": 2, "set_aside": 2, "waiting": 0, "off": 0}
    assert content["time"]["clicks"].items() >= row.items()
    view = {"logged": 3, "read": 3, "waiting": 0, "late": 0, "shed": 1, "lost": 0}
    assert content["views"] == {"v": {**view, "watermark": NOW}}
    assert "view v takes 50.0% of its input to keep up" in content["notes"]
    assert "it adds up" in analyzed.command("audit")[1]

    name = analyzed.stage.app.name
    analyzed.write(late_topic(name, "clicks"), b"a view's query failed on it", (LATE_ERROR, "why"))
    assert analyzed.audit()["problems"] == []
    analyzed.write(late_topic(name, "clicks"), b"by another program")
    (problem,) = analyzed.audit()["problems"]
    assert "holds 1 records more than were set aside" in problem

    analyzed.counts.late += 2
    (problem,) = [p for p in analyzed.audit()["problems"] if "missing" in p]
    assert "4 events were set aside, but" in problem
    assert "holds 3: 1 are missing" in problem

    analyzed.counts.late -= 1
    analyzed.counts.in_order -= 1
    assert analyzed.audit()["problems"] == []
    analyzed.counts.in_order -= 1
    analyzed.read[stream_topic(name, "clicks")]["0"] = 7
    first, second = analyzed.audit()["problems"]
    assert first == "clicks: +1 events were read and not counted"
    assert "view v has read 7 records of" in second


def test_a_late_topic_that_is_gone_does_not_add_up(
    analyzed: Analyzed, eventually: Eventually
) -> None:
    assert analyzed.audit()["problems"] == []
    topic = late_topic(analyzed.stage.app.name, "clicks")
    admin = AdminClient(client_config(analyzed.stage.log))
    admin.delete_topics([topic])[topic].result(timeout=30)
    eventually(lambda: topic not in admin.list_topics(timeout=10).topics)
    (problem,) = analyzed.audit()["problems"]
    assert problem == f"clicks: 2 events were set aside, but there is no topic {topic} any more"
