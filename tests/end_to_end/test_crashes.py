"""Kill each process in turn with SIGKILL, under load, and then count.

One system, one load and one recording client live through all of it: an event that was answered
with 200 must be in every view exactly once, and the client must have seen each result once, in
order, and no number go backwards.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import httpx
import pytest

from millstream.client import Change, Client, Gap, Snapshot
from millstream.runtime.home import is_alive

if TYPE_CHECKING:
    from tests.end_to_end.conftest import StartSystem, System

PIPELINE = """
from millstream import App

app = App("crash")
app.stream("readings", schema="id STRING, sensor STRING, value LONG", key="id")
app.view("by_id", key=["id"], sql="SELECT id, count(*) AS n FROM readings GROUP BY id")
app.view("by_sensor", key=["sensor"],
         sql="SELECT sensor, count(*) AS n, sum(value) AS total FROM readings GROUP BY sensor")
app.view("seen", sql="SELECT id, sensor, value FROM readings")
"""
SETTINGS = """
[analyze]
checkpoint_interval = "10 seconds"
"""
SENSORS = 5
BATCH = 10
EVERY = 0.05


class Background:
    """A coroutine in a thread of its own."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.failure: BaseException | None = None

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._task.cancel)
        self._thread.join(30)
        if self.failure is not None:
            raise self.failure

    async def work(self) -> None:
        raise NotImplementedError

    def _run(self) -> None:
        self._task = self._loop.create_task(self.work())
        try:
            self._loop.run_until_complete(self._task)
        except asyncio.CancelledError:
            pass
        except BaseException as error:
            self.failure = error
        finally:
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.close()


class Load(Background):
    """Posts batch after batch, never one twice, and keeps what became of each."""

    def __init__(self, system: System) -> None:
        super().__init__()
        self._system = system
        self._url = system.collect_url
        self.accepted: dict[str, tuple[str, int]] = {}
        self.unclear: set[str] = set()

    async def work(self) -> None:
        async with httpx.AsyncClient(timeout=20, trust_env=False) as http:
            for number in itertools.count():
                batch = [self._event(number * BATCH + i) for i in range(BATCH)]
                await self._post(http, batch)
                await asyncio.sleep(EVERY)

    async def _post(self, http: httpx.AsyncClient, batch: list[dict[str, str | int]]) -> None:
        with contextlib.suppress(KeyError):
            self._url = self._system.collect_url
        ids = {str(event["id"]) for event in batch}
        self.unclear |= ids  # until something is known of them, even if this task ends here
        try:
            answer = await http.post(f"{self._url}/v1/streams/readings", json=batch)
        except httpx.ConnectError:
            self.unclear -= ids  # nobody was there: nothing was sent
            return
        except httpx.HTTPError:
            return
        if answer.status_code != 200:
            return
        self.unclear -= ids
        assert answer.json()["accepted"] == BATCH
        for event in batch:
            self.accepted[str(event["id"])] = (str(event["sensor"]), int(event["value"]))

    @staticmethod
    def _event(number: int) -> dict[str, str | int]:
        return {"id": f"e{number}", "sensor": f"s{number % SENSORS}", "value": number % 7}


class Recorder(Background):
    """A client that follows a table and a stream of results through every crash."""

    def __init__(self, *servers: str) -> None:
        super().__init__()
        self._servers = servers
        self.seen: Counter[str] = Counter()
        self.counts: dict[str, int] = {}
        self.wrong: list[str] = []
        self.snapshots: Counter[str] = Counter()

    async def work(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._follow("seen", self._note_result))
            group.create_task(self._follow("by_sensor", self._note_count))

    async def _follow(self, view: str, note: Callable[[Change], None]) -> None:
        async with Client(*self._servers) as client, client.changes(view) as changes:
            async for message in changes:
                match message:
                    case Change():
                        note(message)
                    case Snapshot(rows=rows):
                        self.snapshots[view] += 1
                        for keyed in rows:
                            note(Change("upsert", message.position, keyed.key, keyed.row))
                    case Gap():
                        self.wrong.append(f"{view}: {message}")

    def _note_result(self, change: Change) -> None:
        assert change.row is not None
        self.seen[change.row["id"]] += 1

    def _note_count(self, change: Change) -> None:
        if change.row is None:
            self.wrong.append(f"a row went: {change}")
            return
        sensor, n = change.row["sensor"], change.row["n"]
        if n < self.counts.get(sensor, 0):
            self.wrong.append(f"{sensor} went from {self.counts[sensor]} back to {n}")
        self.counts[sensor] = n


@pytest.fixture(scope="module")
def crashing(start_system: StartSystem) -> Iterator[System]:
    with start_system(PIPELINE, files={"millstream.toml": SETTINGS}) as system:
        yield system


def kill(system: System, name: str) -> None:
    """SIGKILL, and wait until the supervisor has another one in its place, at work."""
    pid = system.pid(name)
    os.kill(pid, signal.SIGKILL)
    system.until(lambda: not is_alive(pid), 10, f"the end of {name}")
    system.until(lambda: system.pid(name) != pid, 120, f"another {name}")


def counted(system: System) -> int:
    return sum(int(row["n"]) for row in system.rows("by_sensor"))


@pytest.mark.timeout(600)
def test_every_accepted_event_counts_once_whatever_is_killed(crashing: System) -> None:
    load, recorder = Load(crashing), Recorder(crashing.serve_url)
    recorder.start()
    crashing.until(lambda: len(recorder.snapshots) == 2, 30, "the recorder's snapshots")
    load.start()
    for victim in ("collect", "serve", "spark", "kafka", "analyze"):
        more_accepted(crashing, load, 100)
        kill(crashing, victim)
        # Not until the views move on again is the next one killed.
        more_accepted(crashing, load, 100)
        crashing.until(
            lambda: counted(crashing) >= len(load.accepted) - 1000, 120, "views that move on"
        )
    load.stop()

    accepted = set(load.accepted)
    crashing.until(lambda: accepted <= recorder.seen.keys(), 120, "all accepted at the client")
    crashing.until(
        lambda: counted(crashing) >= len(accepted) and recorder.counts == numbers(crashing),
        60,
        "all accepted in the table",
    )
    crashing.until(
        lambda: accepted <= {row["id"] for row in crashing.rows("by_id")}, 60, "all ids counted"
    )
    recorder.stop()

    times = {row["id"]: row["n"] for row in crashing.rows("by_id")}
    assert {i: times.get(i) for i in accepted} == dict.fromkeys(accepted, 1)
    assert set(times) - accepted <= load.unclear
    assert set(times.values()) == {1}
    assert recorder.wrong == []
    assert set(recorder.seen.values()) == {1}, "a result came twice"
    assert set(recorder.seen) == set(times)
    assert max(recorder.snapshots.values()) == 1, "a resume needed a snapshot"


def more_accepted(system: System, load: Load, count: int) -> None:
    goal = len(load.accepted) + count
    system.until(lambda: len(load.accepted) >= goal, 120, f"{count} more accepted events")


def numbers(system: System) -> dict[str, int]:
    return {row["sensor"]: row["n"] for row in system.rows("by_sensor")}


@pytest.mark.timeout(300)
def test_a_client_resumes_on_another_server_where_it_left_off(crashing: System) -> None:
    command = [sys.executable, "-m", "millstream", "serve", str(crashing.pipeline)]
    command += ["--home", str(crashing.home.path), "--serve-port", "0"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env=crashing.environment()
    ) as other:
        try:
            assert other.stdout is not None
            resume_on(other.stdout.readline().split()[-1], crashing)
        finally:
            other.terminate()


def resume_on(address: str, system: System) -> None:
    position = system.get("/v1/views/seen")["position"]
    system.post("readings", [{"id": f"x{i}", "sensor": "x", "value": i} for i in range(50)])

    async def follow() -> list[str]:
        ids: list[str] = []
        async with Client(address) as client, client.changes("seen", after=position) as changes:
            async for message in changes:
                assert isinstance(message, Change), message
                assert message.row is not None
                ids.append(message.row["id"])
                if len(ids) == 50:
                    return ids
        raise AssertionError("the changes ended")

    assert asyncio.run(asyncio.wait_for(follow(), 60)) == [f"x{i}" for i in range(50)]
    system.until(lambda: same(system, address), 30, "equal answers")


def same(system: System, address: str) -> bool:
    paths = ("/v1/views/by_sensor", "/v1/views/by_id?where=n%20>%200&limit=10", "/v1/views/seen")
    return all(system.get(p) == httpx.get(address + p, trust_env=False).json() for p in paths)


@pytest.mark.timeout(300)
def test_the_death_of_the_supervisor_ends_all_and_a_new_run_goes_on(
    crashing: System, start_system: StartSystem
) -> None:
    before, alive = numbers(crashing), crashing.processes()
    tiers = ("kafka", "collect", "analyze", "spark", "serve")
    assert {crashing.pid(tier) for tier in tiers} <= alive.keys()
    crashing.process.kill()
    crashing.process.wait()
    for pid in alive:
        wait_dead(pid)
    crashing.destroy()
    with start_system(
        PIPELINE, home=crashing.home.path, files={"millstream.toml": SETTINGS}
    ) as again:
        again.until(lambda: numbers(again) == before, 60, "the same answers as before")
        again.post("readings", {"id": "after", "sensor": "s0", "value": 1})
        again.until(lambda: numbers(again)["s0"] == before["s0"] + 1, 60, "one more")
        assert again.end(signal.SIGTERM) == 0


def wait_dead(pid: int) -> None:
    """Children of a killed supervisor end by themselves, soon."""
    for _ in range(300):
        if not is_alive(pid):
            return
        threading.Event().wait(0.05)
    pytest.fail(f"process {pid} outlived its supervisor by 15 s")
