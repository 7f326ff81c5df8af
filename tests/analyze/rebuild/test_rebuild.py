"""Views are rebuilt beside the ones that are served: by command, and when the pipeline changed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from confluent_kafka import Producer
from pyspark.sql import SparkSession
from tests.analyze.conftest import plain, read_topic
from tests.analyze.tier import Threaded

from millstream.analyze.planning.planner import Planner
from millstream.analyze.query.queries import Queries
from millstream.analyze.rebuild.rebuild import Rebuilds
from millstream.analyze.rebuild.requests import RebuildRequest, read_requests, send_request
from millstream.cli.invoke import invoke
from millstream.log.connection import client_config
from millstream.log.consumer import bounds, read_range
from millstream.log.ledger_topic import read_entries
from millstream.log.producing.write import write
from millstream.log.settings import LogSettings
from millstream.log.topic_names import audit_topic, stream_topic, view_topic
from millstream.log.topics import known_topics
from millstream.pipeline.pipeline_topics import ensure_topics
from millstream.runtime.home import Home
from millstream.settings import Settings
from millstream.store.views.table import ViewTable
from millstream.values.ledger_entry import sums
from millstream.values.report import ProcessReport, RebuildStatus, ViewCounts

if TYPE_CHECKING:
    from tests.analyze.conftest import Load
    from tests.conftest import Eventually

STREAM = 'app.stream("orders", schema="city STRING, amount LONG")\n'
COUNT = 'sql="SELECT city, count(*) AS n FROM orders GROUP BY city")'
VIEWS = f"""
app.view("by_city", key=["city"], {COUNT}
app.view("steady", key=["city"], keep="{{keep}}", {COUNT}
app.view("busy", key=["city"], reads={{{{"by_city": "changes"}}}},
         sql="SELECT city, max(n) AS most FROM by_city GROUP BY city")
"""
FIRST = STREAM + VIEWS.format(keep="1 day")
CHANGED = FIRST.replace("count(*) AS n", "count(*) AS n, sum(amount) AS total", 1)
CHANGED = CHANGED.replace("1 day", "2 days")


class Analyze(Threaded):
    """Cities in, counts out."""

    def send(self, *cities: str) -> None:
        producer = Producer(client_config(self.settings.log))
        for city in cities:
            value = json.dumps({"city": city, "amount": 10})
            producer.produce(stream_topic(self.app.name, "orders"), value)
        assert producer.flush(10) == 0

    def counts(self, view: str) -> ViewCounts:
        """The view in the newest report."""
        reports = (value for _, value in read_topic(self.settings.log, audit_topic(self.app.name)))
        *_, newest = (each for each in reports if each is not None)
        return msgspec.convert(newest, ProcessReport).views.get(view, ViewCounts())

    def rebuild(self, view: str) -> RebuildStatus | None:
        """The view's rebuild in the newest report."""
        return self.counts(view).rebuild

    def table(self, view: str) -> dict[str, Any]:
        """The served rows by city."""
        if not (topic := self.topic(view)):
            return {}
        rows: dict[str, Any] = {}
        for _, row in read_topic(self.settings.log, topic):
            assert row is not None
            if row["_revision"] >= rows.get(row["city"], row)["_revision"]:
                rows[row["city"]] = row
        return {city: plain(row) for city, row in rows.items()}

    def look(self, served: list[dict[str, Any]]) -> bool:
        """Add the served rows of now; whether they differ from the first ones."""
        served.append(self.table("by_city"))
        return served[-1] != served[0]


@pytest.fixture
def analyze(spark: SparkSession, log_settings: LogSettings, tmp_path: Path) -> Iterator[Analyze]:
    running = Analyze(spark, log_settings, tmp_path / "home")
    yield running
    running.stop()


def test_a_view_is_rebuilt_while_the_old_one_is_served(
    analyze: Analyze,
    pipeline: Load,
    eventually: Eventually,
    capfd: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    analyze.start(pipeline(FIRST))
    name, log = analyze.app.name, analyze.settings.log
    analyze.send("Bern", "Bern", "Ghent")
    bern, ghent = {"city": "Bern", "n": 2}, {"city": "Ghent", "n": 1}
    eventually(lambda: analyze.table("by_city") == {"Bern": bern, "Ghent": ghent}, 120)
    eventually(lambda: analyze.table("busy")["Bern"]["most"] == 2)
    wrong = json.dumps({"city": "Bern", "n": 99, "_revision": 1_000_000}).encode()
    write(log, view_topic(name, "by_city"), {'["Bern"]': wrong}, 10)
    eventually(lambda: analyze.table("busy")["Bern"]["most"] == 99)

    capfd.readouterr()
    command = ["rebuild", "by_city", "--app", name, f"--set=log.bootstrap={log.bootstrap}"]
    assert invoke([*command, "--yes", "--json"]) == 0
    done = json.loads("{" + capfd.readouterr().out.partition("{")[2])  # after "analyze ready"
    assert (done["swapped"], done["records"], done["same"]) == (True, 3, 1)
    (difference,) = done["differences"]
    assert (difference["old"]["n"], difference["new"]["n"]) == (99, 2)
    eventually(lambda: (status := analyze.rebuild("by_city")) and status.state == "done")
    status = analyze.rebuild("by_city")
    assert status is not None
    assert (status.state, status.done, status.total, status.topic) == ("done", 3, 3, done["topic"])
    assert status.request
    assert 0 < status.started_at < status.ended_at
    assert analyze.topic("by_city") == done["topic"] == f"{view_topic(name, 'by_city')}.1"
    assert analyze.topic("steady") == view_topic(name, "steady")
    assert analyze.topic("busy") == f"{view_topic(name, 'busy')}.1"  # it read the wrong row
    assert analyze.table("busy")["Bern"]["most"] == 2
    analyze.send("Bern")
    eventually(lambda: analyze.table("by_city") == {"Bern": {**bern, "n": 3}, "Ghent": ghent})
    eventually(lambda: analyze.table("busy")["Bern"]["most"] == 3)

    analyze.stop()
    analyze.start(pipeline(CHANGED))
    served = [analyze.table("by_city")]
    eventually(lambda: analyze.look(served), 120)
    assert served[0] == {"Bern": {"city": "Bern", "n": 3}, "Ghent": ghent}
    assert served[-1] == {  # whole at once
        "Bern": {"city": "Bern", "n": 3, "total": 30},
        "Ghent": {"city": "Ghent", "n": 1, "total": 10},
    }
    assert analyze.topic("by_city") == f"{view_topic(name, 'by_city')}.2"
    eventually(lambda: (status := analyze.rebuild("by_city")) and status.state == "done")
    status = analyze.rebuild("by_city")
    assert status is not None
    assert status.request == "", "there is no request: the pipeline changed"
    assert analyze.topic("steady") == view_topic(name, "steady")
    said = capfd.readouterr().out
    assert "view by_city was changed (other columns; rebuilt)" in said
    assert "steady" not in said  # another `keep` needs no other rows
    eventually(lambda: analyze.topic("busy") == f"{view_topic(name, 'busy')}.2", 120)
    old = {view_topic(name, "by_city"), f"{view_topic(name, 'by_city')}.1"}
    eventually(lambda: not old & known_topics(log))
    checkpoints = tmp_path / "home" / "checkpoints"
    kept = {"by_city.2", "steady", "busy.2"}
    eventually(lambda: {folder.name for folder in checkpoints.iterdir()} == kept)


MINUTES = """
app.stream("clicks", schema="page STRING, at TIMESTAMP", event_time="at", lateness="1 hour")
app.view("bills", key=["window", "page"], ledger=["n"], sql='''
    SELECT window(at, '1 minute') AS window, page, count(*) AS n FROM clicks GROUP BY 1, 2''')
app.view("delayed", key=["window", "page"], ledger=["n"], trigger="at the watermark",
         accumulation="retract", sql='''
    SELECT window(at, '1 minute') AS window, page, count(*) AS n FROM clicks GROUP BY 1, 2''')
"""
TRUE = {("a", "assertion", 1), ("b", "assertion", 1)}
FALSE = {("a", "assertion", 99), ("c", "assertion", 7)}
AT = '{"start":"2026-01-01T00:00:00.000000Z","end":"2026-01-01T00:01:00.000000Z"}'


def test_a_rebuild_corrects_wrong_final_rows_and_ledger_entries(
    spark: SparkSession,
    log_settings: LogSettings,
    tmp_path: Path,
    pipeline: Load,
    eventually: Eventually,
    capfd: pytest.CaptureFixture[str],
) -> None:
    analyze = Threaded(spark, log_settings, tmp_path / "home", idle="1 second")
    app = pipeline(MINUTES)
    name = app.name
    ensure_topics(app, log_settings)
    events = {page: f'{{"page":"{page}","at":"2026-01-01T00:00:10Z"}}' for page in "ab"}
    write(log_settings, stream_topic(name, "clicks"), {k: v.encode() for k, v in events.items()}, 9)

    def shown(view: str) -> dict[Any, Any]:
        topic = analyze.topic(view)
        table = ViewTable(keyed=True, stateful=True)
        for partition, (low, high) in bounds(log_settings, topic).items():
            for each in read_range(log_settings, topic, partition, low, high):
                table.apply(partition, each.offset, each.timestamp, each.key, each.value)
        return {row["page"]: (row["n"], row["_state"]) for row in table.rows.values()}

    def entered(view: str) -> list[tuple[str, str, int, list[str]]]:
        return [
            (str(each.key[1]), each.kind, int(each.amounts["n"]), each.reason)
            for each in read_entries(log_settings, name, view)
        ]

    def correct(view: str, kind: str) -> None:
        eventually(lambda: {each[:3] for each in entered(view)} == TRUE, 120)
        wrong = f'{{"window":{AT},"page":"a","n":99,"_revision":9}}'.encode()
        ghost = f'{{"window":{AT},"page":"c","n":7,"_revision":7,"_state":"final"}}'.encode()
        records = {f'[{AT},"a"]': wrong, f'[{AT},"c"]': ghost}
        # As if Spark had written wrong rows.
        write(log_settings, f"{name}.{kind}.{view}", records, 9)
        eventually(lambda: {each[:3] for each in entered(view)} >= FALSE)
        before = shown(view)
        assert before["a"] == (99, "corrected")
        capfd.readouterr()
        command = ["rebuild", view, "--app", name, "--yes", "--json"]
        assert invoke([*command, f"--set=log.bootstrap={log_settings.bootstrap}"]) == 0
        done = json.loads("{" + capfd.readouterr().out.partition("{")[2])
        assert (done["same"], len(done["differences"])) == (1, 2)
        assert shown(view) == {"a": (1, "corrected"), "b": before["b"]}
        why = [f"rebuild:{done['topic']}"]
        a = [("a", "retraction", 99, why), ("a", "assertion", 1, why)]
        eventually(lambda: entered(view)[-3:] == [*a, ("c", "retraction", 7, why)])
        balance = sums(read_entries(log_settings, name, view)).values()
        assert {key[1]: each["n"] for key, each in balance} == {"a": 1, "b": 1, "c": 0}

    try:
        analyze.start(app)
        correct("bills", "view")
        correct("delayed", "changes")
    finally:
        analyze.stop()


def test_a_rebuild_in_small_batches_reads_all_partitions(
    analyze: Analyze, pipeline: Load, eventually: Eventually, capfd: pytest.CaptureFixture[str]
) -> None:
    settings = analyze.settings
    analyze.settings = Settings(
        log=settings.log.model_copy(update={"partitions": 2}),
        analyze=settings.analyze.model_copy(update={"batch_events": 4}),
    )
    analyze.start(pipeline(MINUTES.partition('app.view("delayed"')[0]))
    name = analyze.app.name
    producer = Producer(client_config(settings.log))

    def send(partition: int, day: int, minutes: int) -> None:
        for minute in range(minutes):
            event = json.dumps({"page": "a", "at": f"2026-01-{day:02}T00:{minute:02}:00Z"})
            producer.produce(stream_topic(name, "clicks"), event, partition=partition)
        assert producer.flush(10) == 0

    send(partition=0, day=1, minutes=12)
    eventually(lambda: len(set(read_keys(analyze, "bills"))) == 12, 240)
    send(partition=1, day=5, minutes=2)
    eventually(lambda: len(set(read_keys(analyze, "bills"))) == 14, 240)
    capfd.readouterr()
    command = ["rebuild", "bills", "--app", name, "--yes", "--json"]
    assert invoke([*command, f"--set=log.bootstrap={settings.log.bootstrap}"]) == 0
    done = json.loads("{" + capfd.readouterr().out.partition("{")[2])
    assert (done["records"], done["same"], done["differences"]) == (14, 14, [])
    eventually(lambda: view_topic(name, "bills") not in known_topics(settings.log))  # it has ended


def read_keys(analyze: Analyze, view: str) -> list[str | None]:
    topic = analyze.topic(view)
    return [key for key, _ in read_topic(analyze.settings.log, topic)] if topic else []


def test_a_rebuild_continues_when_another_request_for_the_view_is_refused_and_cancelled(
    spark: SparkSession,
    log_settings: LogSettings,
    pipeline: Load,
    eventually: Eventually,
    tmp_path: Path,
) -> None:
    app = pipeline(FIRST)
    ensure_topics(app, log_settings)
    settings, home = Settings(log=log_settings), Home(tmp_path / "home")
    queries = Queries(spark, app, settings, home.checkpoints)

    rebuilds = Rebuilds(
        spark,
        app,
        settings,
        home.checkpoints,
        [query.plan for query in Planner(spark, app, settings).queries()],
        queries,
        write=lambda topic, key, value: write(log_settings, topic, {key: value}, 10),
        is_final_until=lambda view, until: False,
    )

    def reported() -> dict[str, Any]:
        rebuilds.tick()
        found = {name: each.rebuild for name, each in rebuilds.add_to({}).items()}
        return {name: (each.request, each.state) for name, each in found.items() if each}

    def open_request() -> RebuildRequest | None:
        return read_requests(log_settings, app.name)[0].get("by_city")

    try:
        first = RebuildRequest("first", go=True)
        send_request(log_settings, app.name, "by_city", first)
        eventually(lambda: reported().get("by_city", ("", ""))[0] == "first")
        for other in (RebuildRequest("second", 5_000), RebuildRequest("second", cancel=True)):
            send_request(log_settings, app.name, "by_city", other)
            eventually(lambda: reported() and open_request() == first)
            assert reported()["by_city"][0] == "first"
    finally:
        rebuilds.close(1)


def test_why_a_view_cannot_be_rebuilt_is_reported_until_the_next_request(
    spark: SparkSession,
    log_settings: LogSettings,
    pipeline: Load,
    eventually: Eventually,
    tmp_path: Path,
) -> None:
    body = MINUTES.replace('trigger="at the watermark"', 'trigger="when n > 5"')
    app = pipeline(body.replace('accumulation="retract", ', ""))
    ensure_topics(app, log_settings)
    settings, home = Settings(log=log_settings), Home(tmp_path / "home")
    queries = Queries(spark, app, settings, home.checkpoints)
    written: list[str] = []
    rebuilds = Rebuilds(
        spark,
        app,
        settings,
        home.checkpoints,
        [query.plan for query in Planner(spark, app, settings).queries()],
        queries,
        write=lambda topic, key, _: written.append(key),
        is_final_until=lambda view, until: False,
    )

    def counts_after_tick() -> object:
        rebuilds.tick()
        return rebuilds.add_to({})

    try:
        send_request(log_settings, app.name, "delayed", RebuildRequest("1", 5_000))
        eventually(counts_after_tick)
        send_request(log_settings, app.name, "delayed", RebuildRequest("1", cancel=True))
        eventually(lambda: counts_after_tick() and written)
        status = rebuilds.add_to({})["delayed"].rebuild
        assert status is not None
        assert (status.state, status.request, status.since) == ("failed", "1", 5_000)
        assert "trigger" in status.error
    finally:
        rebuilds.close(1)
