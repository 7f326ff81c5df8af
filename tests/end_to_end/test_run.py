"""`millstream run`, as a user meets it: start, an event in, an answer out, the end."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from playwright.async_api import expect
from tests.end_to_end.conftest import PIPELINE
from tests.end_to_end.screen import screen, until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from playwright.async_api import Browser
    from tests.end_to_end.conftest import StartSystem, System
    from tests.end_to_end.screen import Screen

TIERS = ("kafka", "collect", "analyze", "serve")


@pytest.fixture(scope="module")
def system(start_system: StartSystem, tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    """One for all, with a program beside it; the test that ends it comes last."""
    extra = tmp_path_factory.mktemp("beside") / "simulator.py"
    extra.write_text("import signal\nprint('at work', flush=True)\nsignal.pause()")
    with start_system(PIPELINE, "--with", f"{sys.executable} {extra}") as running:
        yield running


def lines(text: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in text.splitlines()]


def entry_of_another(system: System, tier: str, pid: int) -> dict[str, Any] | None:
    """The tier's entry, once it is no longer that process's."""
    entry: dict[str, Any] = system.home.running()[tier]
    return entry if entry["pid"] != pid else None


def test_an_event_that_is_posted_is_seen_in_the_view(system: System) -> None:
    answer = system.post("orders", {"id": 1, "city": "Ghent", "amount": 5})
    assert answer["accepted"] == 1
    row = {"city": "Ghent", "n": 1, "amount": 5}
    system.until(lambda: row in system.rows("by_city"), what="the row")
    sql = "SELECT n, amount FROM by_city WHERE city = 'Ghent'"
    system.until(lambda: lines(system.millstream("query", sql).stdout) == [{"n": 1, "amount": 5}])


def test_tail_follows_a_view_and_goes_on_after_a_position(system: System, tmp_path: Path) -> None:
    where = ["--where", "city = 'Bruges'"]
    system.post("orders", {"id": 20, "city": "Bruges", "amount": 1})
    system.until(lambda: any(row["city"] == "Bruges" for row in system.rows("by_city")))
    first = lines(system.millstream("tail", "by_city", *where, "-n", "1").stdout)[0]
    assert first["row"] == {"city": "Bruges", "n": 1, "amount": 1}
    with (tmp_path / "out").open("w+") as out:
        command = [sys.executable, "-m", "millstream", "tail", "by_city", *where, "-n", "1"]
        after = ["--after", str(first["position"]), "--home", str(system.home.path)]
        follower = subprocess.Popen([*command, *after], stdout=out, env=system.environment())
        system.post("orders", {"id": 21, "city": "Bruges", "amount": 2})
        assert follower.wait(60) == 0
        out.seek(0)
        change = lines(out.read())[0]
    assert change["type"] == "change"
    assert change["row"] == {"city": "Bruges", "n": 2, "amount": 3}


def test_tail_shows_the_events_of_a_stream_too(system: System) -> None:
    system.post("orders", {"id": 30, "city": "Namur", "amount": 7})

    def seen() -> bool:
        out = system.millstream("tail", "orders", "--where", "city = 'Namur'", "-n", "1").stdout
        return bool(lines(out)[0]["row"])

    system.until(seen)


def test_tail_ends_quietly_by_ctrl_c(system: System) -> None:
    command = [sys.executable, "-m", "millstream", "tail", "by_city"]
    with subprocess.Popen(
        [*command, "--home", str(system.home.path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=system.environment(),
        # Whoever starts the tests in the background lets them inherit that it is ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as follower:
        try:
            system.post("orders", {"id": 40, "city": "Liège", "amount": 7})
            assert follower.stdout is not None
            assert follower.stdout.readline()
            follower.send_signal(signal.SIGINT)
            _, errors = follower.communicate(timeout=60)
        finally:
            follower.kill()
    assert follower.returncode == 130
    assert errors.strip() == b""


def test_a_file_is_sent_and_its_bad_lines_are_named(system: System, tmp_path: Path) -> None:
    file = tmp_path / "events.ndjson"
    events = [{"id": 100 + n, "city": "Mons", "amount": 1} for n in range(500)]
    text = [json.dumps(event) for event in events]
    text[7] = '{"id": "seven", "city": "Mons"}'
    text[300] = "no json"
    file.write_text("\n".join(text))
    answer = system.millstream("send", "orders", str(file))
    assert answer.returncode == 1
    assert "498 accepted, 2 rejected" in answer.stdout
    assert "line 8: " in answer.stderr
    assert "line 301: " in answer.stderr
    system.until(lambda: {"city": "Mons", "n": 498, "amount": 498} in system.rows("by_city"))


def test_an_array_is_sent_from_stdin(system: System) -> None:
    command = [sys.executable, "-m", "millstream", "send", "orders", "-"]
    events = json.dumps(
        [{"id": 700 + n, "city": "Tournai", "amount": 2} for n in range(3)], indent=2
    )
    answer = subprocess.run(
        [*command, "--home", str(system.home.path)], input=events, capture_output=True, text=True
    )
    assert answer.returncode == 0, answer.stderr
    assert "3 accepted, 0 rejected" in answer.stdout
    system.until(lambda: {"city": "Tournai", "n": 3, "amount": 6} in system.rows("by_city"))


def test_status_shows_every_tier_and_query(system: System) -> None:
    system.until(lambda: system.millstream("status").returncode == 0, what="a good status")
    answer = json.loads(system.millstream("status", "--json").stdout)
    assert {answer["running"][tier]["pid"] for tier in TIERS} == {system.pid(t) for t in TIERS}
    assert answer["running"]["pid"] == system.process.pid
    assert answer["problems"] == []
    text = system.millstream("status").stdout
    for word in (*TIERS, "by_city", "large", "orders", system.serve_url, system.bootstrap):
        assert word in text


def test_an_event_is_traced_to_every_view_and_the_counts_add_up(system: System) -> None:
    answer = system.post("orders", {"id": 60, "city": "Huy", "amount": 5000})
    traced = system.millstream("trace", answer["receipts"][0], "--wait", "--json")
    assert traced.returncode == 0, traced.stdout + traced.stderr
    found = json.loads(traced.stdout)
    assert found["event"]["state"] == "logged"
    assert {view["name"]: view["inputs"] for view in found["views"]} == {
        "by_city": ["orders"],
        "large": ["orders"],
    }
    audited = system.millstream("audit", "--json")
    assert audited.returncode == 0, audited.stdout + audited.stderr
    counts = json.loads(audited.stdout)["streams"]["orders"]
    assert counts["off"] == 0
    assert counts["accepted"] == counts["logged"] + counts["rejected"]
    assert counts["log"]["at_most"] == counts["logged"]


def test_unknown_names_are_answered_with_known_ones(system: System, tmp_path: Path) -> None:
    file = tmp_path / "events"
    file.write_text("{}\n")
    for arguments, word in (
        (["tail", "by_ctiy"], "by_city"),
        (["send", "ordres", str(file)], "orders"),
        (["query", "SELECT * FROM by_ctiy"], "by_city"),
        (["tail", "by_city", "--where", "ctiy = 'x'"], "city"),
        (["tail", "by_city", "--after", "nonsense"], "nonsense"),
    ):
        answer = system.millstream(*arguments)
        assert answer.returncode == 1, answer
        assert answer.stderr.startswith("error: "), answer.stderr
        assert word in answer.stderr
        assert "Traceback" not in answer.stderr


def test_a_second_run_on_the_same_home_is_refused(system: System) -> None:
    answer = system.millstream("run", str(system.pipeline), "--serve-port", "0")
    assert answer.returncode == 1
    assert f"process {system.process.pid} " in answer.stderr
    assert "--home" in answer.stderr


def test_a_second_server_on_the_same_home_answers_the_same(system: System) -> None:
    system.post("orders", {"id": 50, "city": "Spa", "amount": 7})
    row = {"city": "Spa", "n": 1, "amount": 7}
    system.until(lambda: row in system.rows("by_city"))
    command = [sys.executable, "-m", "millstream", "serve", str(system.pipeline)]
    flags = ["--home", str(system.home.path), "--serve-port", "0"]
    second = subprocess.Popen(
        [*command, *flags], stdout=subprocess.PIPE, text=True, env=system.environment()
    )
    try:
        assert second.stdout is not None
        url = second.stdout.readline().split()[-1]
        assert url.startswith("http://")
        assert url != system.serve_url
        answer = system.millstream("query", "SELECT n FROM by_city WHERE city='Spa'", "--url", url)
        assert lines(answer.stdout) == [{"n": 1}]
    finally:
        second.terminate()
        assert second.wait(15) == 0
        assert second.stdout is not None
        second.stdout.close()


def test_a_mistake_that_only_spark_sees_ends_the_run_with_its_message(
    start_system: StartSystem,
) -> None:
    pipeline = """
from millstream import App

app = App("wrong")
app.stream("orders", schema="id LONG NOT NULL, city STRING", key="id")

@app.view(key=["city"])
def by_city(orders):
    return orders.groupBy("ctiy").count()
"""
    with start_system(pipeline, wait=False) as system:
        assert system.process.wait(90) == 1
        system.ended = True
        last = system.output.read_text().splitlines()[-1]
        assert last.startswith("error: cannot start analyze: ")
        assert "pipeline.py:9" in last
        assert "ctiy" in last
        assert system.output.read_text().count("analyze    starting") == 1
        assert system.processes() == {}


@pytest.mark.asyncio(loop_scope="module")
async def test_a_rebuild_is_seen_from_its_beginning_to_the_new_epoch(
    browser: Browser, system: System
) -> None:
    city = f"city {uuid.uuid4().hex[:8]}"
    order = {"id": uuid.uuid4().int >> 80, "city": city, "amount": 700}
    await asyncio.to_thread(system.post, "orders", order)
    async with screen(browser, system.serve_url) as shown:
        await shown.filter("by_city", f"city = '{city}'")
        await expect(shown.rows("by_city")).to_have_text([f"{city}1700"])
        strip = shown.page.locator("[data-view=by_city] .rebuild")
        command = asyncio.to_thread(system.millstream, "rebuild", "by_city", "--yes")
        rebuilding = asyncio.create_task(command)
        await expect(strip).to_contain_text("Rebuil")
        epoch = shown.got("snapshot", "by_city")[-1]["position"].partition(":")[0]
        outcome = await rebuilding
        assert outcome.returncode == 0, outcome.stderr
        await expect(strip).to_contain_text("Rebuilt at")
        await until(lambda: _moved_on(shown, epoch), "the new epoch")
        await expect(shown.rows("by_city")).to_have_text([f"{city}1700"])
        status = await asyncio.to_thread(system.millstream, "status")
        assert "rebuild of" in status.stdout
        assert "served in a new" in " ".join(status.stdout.split())


async def _moved_on(shown: Screen, epoch: str) -> bool:
    return not shown.got("snapshot", "by_city")[-1]["position"].startswith(f"{epoch}:")


@pytest.mark.asyncio(loop_scope="module")
async def test_an_event_goes_all_the_way_to_the_browser(browser: Browser, system: System) -> None:
    city = f"<img src=x onerror='window.hacked=1'> {uuid.uuid4().hex[:8]}"
    async with screen(browser, system.serve_url) as shown:
        await shown.filter("by_city", f"city LIKE '%{city[-8:]}'")
        for number in range(1, 4):
            order = {"id": uuid.uuid4().int >> 80, "city": city, "amount": 700 * number}
            answer = await asyncio.to_thread(system.post, "orders", order)
            assert answer["accepted"] == 1
            await expect(shown.rows("by_city")).to_have_text([f"{city}{number}{_total(number)}"])
        await expect(shown.rows("large").filter(has_text=city)).to_have_count(2)
        for box in ("collect", "analyze", "serve", "stream-log"):
            tier = shown.page.locator(f"[data-box={box}]")
            await expect(tier).to_have_attribute("data-state", "up")
        assert await shown.page.evaluate("window.hacked") is None
        assert shown.strangers() == []
        assert shown.complaints == []


def _total(number: int) -> str:
    return f"{sum(700 * n for n in range(1, number + 1)):,}"


def test_what_dies_comes_back_and_ctrl_c_leaves_nothing(system: System) -> None:
    assert "at work" in (system.home.logs / "simulator.log").read_text()
    system.post("orders", {"id": 80, "city": "Ostend", "amount": 5})
    system.until(lambda: {"city": "Ostend", "n": 1, "amount": 5} in system.rows("by_city"))
    for tier in ("serve", "collect"):
        before = system.home.running()[tier]
        os.kill(before["pid"], signal.SIGKILL)
        again = system.until(partial(entry_of_another, system, tier, before["pid"]))
        assert again["url"] == before["url"]
    system.post("orders", {"id": 81, "city": "Ostend", "amount": 5})
    system.until(lambda: {"city": "Ostend", "n": 2, "amount": 10} in system.rows("by_city"))
    assert system.output_has("by signal SIGKILL; starting it again")
    started = time.monotonic()
    assert system.end(signal.SIGINT) == 130
    assert time.monotonic() - started < 15
    assert system.home.running() == {}
    ends = [line.split()[2] for line in system.output.read_text().splitlines() if "ended" in line]
    assert sorted(ends[:2]) == ["collect", "simulator"]
    assert ends[2:] == ["analyze", "serve", "kafka"]
