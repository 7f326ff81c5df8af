"""The supervisor over tiny real processes."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from millstream.runtime.home import is_alive
from millstream.supervise.process_spec import ProcessSpec, RestartPolicy
from millstream.supervise.supervisor import GaveUp, ProcessEvent, StartFailed, Supervisor

QUICK = RestartPolicy(backoff=0.01, longest_backoff=0.05)
GIVING_UP = RestartPolicy(backoff=0.01, longest_backoff=0.05, give_up=True)
SLEEPER = "import time; time.sleep(600)"
STUBBORN = (
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
    "print('deaf', flush=True); time.sleep(600)"
)


def python(code: str) -> tuple[str, ...]:
    return (sys.executable, "-c", code)


class World:
    """A supervisor, the events that it reported, and a way to wait for conditions."""

    def __init__(self, logs: Path) -> None:
        self.logs = logs
        self.events: list[ProcessEvent] = []
        self.supervisor: Supervisor | None = None

    def start(
        self,
        *specs: ProcessSpec,
        policy: RestartPolicy = QUICK,
        clock: Callable[[], float] = time.monotonic,
    ) -> Supervisor:
        self.supervisor = Supervisor(specs, self.logs, self.events.append, policy, clock)
        return self.supervisor

    def until(self, condition: Callable[[], bool], seconds: float = 60) -> None:
        assert self.supervisor is not None
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, self.events
            self.supervisor.tick()
            time.sleep(0.005)

    def run_on(self, seconds: float = 60) -> None:
        """Tick until the supervisor raises."""
        self.until(lambda: False, seconds)

    def pid(self, name: str) -> int:
        assert self.supervisor is not None
        child = self.supervisor.processes[name].child
        assert child is not None
        return child.pid

    def log(self, name: str) -> str:
        path = self.logs / f"{name}.log"
        return path.read_text() if path.exists() else ""

    def kinds(self, name: str) -> list[str]:
        return [event.kind for event in self.events if event.process == name]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path / "logs")
    yield world
    if world.supervisor is not None:
        world.supervisor.stop(hurry=lambda: True)


def test_a_process_starts_only_when_what_it_needs_is_ready(world: World, tmp_path: Path) -> None:
    flag = tmp_path / "ready"
    first = ProcessSpec(
        "first", python(SLEEPER), ready=lambda pid: "here" if flag.exists() else None
    )
    supervisor = world.start(first, ProcessSpec("second", python(SLEEPER), depends_on=("first",)))
    for _ in range(5):
        supervisor.tick()
    assert supervisor.processes["second"].state == "waiting"
    flag.touch()
    world.until(lambda: supervisor.all_ready)
    order = [(event.process, event.kind) for event in world.events]
    assert order.index(("first", "ready")) < order.index(("second", "starting"))


def test_a_process_killed_by_a_stranger_is_started_again(world: World) -> None:
    supervisor = world.start(ProcessSpec("tier", python(SLEEPER)))
    world.until(lambda: supervisor.all_ready)
    first = world.pid("tier")
    os.kill(first, signal.SIGKILL)
    world.until(lambda: supervisor.all_ready and world.pid("tier") != first)
    assert world.kinds("tier") == ["starting", "ready", "died", "starting", "ready"]
    assert "SIGKILL" in world.events[2].text
    assert supervisor.processes["tier"].restarts == 1


def test_the_neighbours_of_a_process_that_died_keep_running(world: World) -> None:
    supervisor = world.start(
        ProcessSpec("one", python(SLEEPER)), ProcessSpec("two", python(SLEEPER))
    )
    world.until(lambda: supervisor.all_ready)
    one, two = world.pid("one"), world.pid("two")
    os.kill(one, signal.SIGKILL)
    world.until(lambda: supervisor.all_ready and world.pid("one") != one)
    assert world.pid("two") == two
    assert is_alive(two)


def test_each_quick_death_doubles_the_pause_before_the_next_start(world: World) -> None:
    policy = RestartPolicy(backoff=1, longest_backoff=4)
    now = 1000.0
    part = ProcessSpec("tier", python("raise SystemExit(3)"))
    supervisor = world.start(part, policy=policy, clock=lambda: now)
    tier = supervisor.processes["tier"]
    for death, pause in enumerate([1, 2, 4, 4], start=1):
        world.until(lambda died=death: tier.restarts == died)  # type: ignore[misc]
        now += pause - 0.1
        supervisor.tick()
        assert str(tier.state) == "restarting"
        now += 0.2
        supervisor.tick()
        assert str(tier.state) == "starting"


def test_a_process_that_keeps_dying_is_retried_without_end_and_the_others_go_on(
    world: World,
) -> None:
    supervisor = world.start(
        ProcessSpec("tier", python("print('the disk is full'); raise SystemExit(3)")),
        ProcessSpec("neighbour", python(SLEEPER)),
    )
    world.until(lambda: supervisor.processes["neighbour"].state == "ready")
    neighbour = world.pid("neighbour")
    world.until(lambda: supervisor.processes["tier"].restarts >= 12)
    assert world.pid("neighbour") == neighbour
    assert is_alive(neighbour)
    (failure,) = supervisor.failures()
    assert failure.process == "tier"
    assert failure.deaths >= 12
    assert failure.reason == "exit code 3"
    assert failure.lines[-1] == "the disk is full"
    assert failure.log == str(world.logs / "tier.log")


def test_the_pause_before_a_restart_never_exceeds_half_a_minute(world: World) -> None:
    now = 1000.0
    supervisor = world.start(
        ProcessSpec("tier", python("raise SystemExit(3)")),
        policy=RestartPolicy(),
        clock=lambda: now,
    )
    tier, pauses = supervisor.processes["tier"], []
    for death in range(1, 11):
        world.until(lambda died=death: tier.restarts == died)  # type: ignore[misc]
        pauses.append(tier.due - now)
        now = tier.due
    assert pauses == [0.5, 1, 2, 4, 8, 16, 30, 30, 30, 30]


def test_one_that_keeps_dying_is_told_once_and_then_ever_more_rarely(world: World) -> None:
    supervisor = world.start(ProcessSpec("tier", python("print('no luck'); raise SystemExit(3)")))
    world.until(lambda: supervisor.processes["tier"].restarts >= 26)
    reported = [h for h in world.events if h.kind in ("died", "failing")]
    assert [h.kind for h in reported] == [
        "died",
        "died",
        "failing",
        "failing",
        "failing",
        "failing",
    ]
    assert [h.text.split(" times")[0] for h in reported[2:]] == ["3", "6", "12", "24"]
    assert all(h.lines[-1] == "no luck" for h in reported[2:])
    assert world.kinds("tier").count("starting") <= 7


def test_a_minute_of_health_resets_the_count(world: World) -> None:
    now = 1000.0
    supervisor = world.start(ProcessSpec("tier", python(SLEEPER)), clock=lambda: now)
    tier = supervisor.processes["tier"]
    for death in range(1, 5):
        world.until(lambda: supervisor.all_ready)
        os.kill(world.pid("tier"), signal.SIGKILL)
        world.until(lambda died=death: tier.restarts == died)  # type: ignore[misc]
        now = tier.due
    world.until(lambda: supervisor.all_ready)
    assert [failure.deaths for failure in supervisor.failures()] == [4]
    now += 59
    supervisor.tick()
    assert supervisor.failures()
    now += 2
    supervisor.tick()
    assert supervisor.failures() == []
    assert world.kinds("tier")[-1] == "recovered"
    os.kill(world.pid("tier"), signal.SIGKILL)
    world.until(lambda: tier.restarts == 5)
    assert tier.due - now == pytest.approx(QUICK.backoff)
    assert world.kinds("tier")[-1] == "died"


def test_those_that_died_for_want_of_another_start_as_soon_as_it_is_back(
    world: World, tmp_path: Path
) -> None:
    flag = tmp_path / "ready"
    needed = ProcessSpec("log", python(SLEEPER), ready=lambda pid: "up" if flag.exists() else None)
    supervisor = world.start(
        needed,
        ProcessSpec("tier", python(SLEEPER), depends_on=("log",)),
        policy=RestartPolicy(backoff=600),
    )
    flag.touch()
    world.until(lambda: supervisor.all_ready)
    flag.unlink()
    os.kill(world.pid("log"), signal.SIGKILL)
    os.kill(world.pid("tier"), signal.SIGKILL)
    world.until(lambda: {one.state for one in supervisor.processes.values()} == {"restarting"})
    supervisor.processes["log"].due = 0
    flag.touch()
    world.until(lambda: supervisor.all_ready)


def test_a_first_start_that_fails_while_what_it_needs_is_away_is_retried(
    world: World, tmp_path: Path
) -> None:
    stop, fail = tmp_path / "stop", tmp_path / "fail"
    wait = "import pathlib, sys, time\nwhile not pathlib.Path({!r}).exists(): time.sleep(.01)\n"
    log = ProcessSpec("log", python(wait.format(str(stop)) + "sys.exit(3)"))
    tier = ProcessSpec(
        *("tier", python(wait.format(str(fail)) + "sys.exit(1)"), ("log",)),
        ready=lambda pid: None,
    )
    supervisor = world.start(log, tier, policy=RestartPolicy(backoff=600))
    world.until(lambda: supervisor.processes["tier"].state == "starting")
    stop.touch()
    world.until(lambda: supervisor.processes["log"].state == "restarting")
    fail.touch()
    world.until(lambda: supervisor.processes["tier"].state == "restarting")


def test_a_process_that_cannot_even_be_started_is_retried(world: World) -> None:
    world.logs.mkdir()
    (world.logs / "tier.log").mkdir()  # its log cannot be opened
    supervisor = world.start(ProcessSpec("tier", python(SLEEPER)))
    world.until(lambda: supervisor.processes["tier"].restarts >= 2)
    assert "Is a directory" in supervisor.failures()[0].reason
    (world.logs / "tier.log").rmdir()
    world.until(lambda: supervisor.all_ready)


def test_with_give_up_a_process_that_does_not_stay_up_ends_all_with_the_end_of_its_log(
    world: World,
) -> None:
    code = "print('the disk is full'); raise SystemExit(3)"
    world.start(ProcessSpec("tier", python(code)), policy=GIVING_UP)
    with pytest.raises(
        GaveUp, match=r"tier does not stay up: it died 5 times.*exit code 3"
    ) as error:
        world.run_on()
    assert "the disk is full" in str(error.value)


def test_with_give_up_a_process_that_never_becomes_ready_is_killed_and_given_up(
    world: World,
) -> None:
    never = ProcessSpec("tier", python(SLEEPER), ready=lambda pid: None, start_timeout=0.05)
    world.start(never, policy=RestartPolicy(backoff=0.01, deaths=2, give_up=True))
    with pytest.raises(GaveUp, match="not ready after 0 s"):
        world.run_on()


def test_with_give_up_deaths_after_a_healthy_time_do_not_count(world: World) -> None:
    policy = RestartPolicy(backoff=0.001, deaths=2, healthy=0.0, give_up=True)
    supervisor = world.start(ProcessSpec("tier", python(SLEEPER)), policy=policy)
    for death in range(4):
        world.until(lambda: supervisor.all_ready)
        os.kill(world.pid("tier"), signal.SIGKILL)
        world.until(lambda seen=death: supervisor.processes["tier"].restarts > seen)  # type: ignore[misc]
    world.until(lambda: supervisor.all_ready)


def test_a_first_start_that_fails_without_a_word_tells_its_exit_code_and_the_full_disk(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Supervisor, "_full_disk", lambda _: " (the disk of / is full)")
    world.start(ProcessSpec("kafka", python("raise SystemExit(1)"), ready=lambda pid: None))
    with pytest.raises(StartFailed) as error:
        world.run_on()
    assert str(error.value) == "cannot start kafka: exit code 1 (the disk of / is full)"


def test_a_users_error_at_the_first_start_is_shown_and_not_retried(world: World) -> None:
    code = "import sys; print('error: pipeline.py:3: no such input', file=sys.stderr); sys.exit(1)"
    world.start(ProcessSpec("analyze", python(code), ready=lambda pid: None))
    with pytest.raises(StartFailed) as error:
        world.run_on()
    assert str(error.value) == "cannot start analyze: pipeline.py:3: no such input"
    assert world.kinds("analyze") == ["starting"]


def test_the_same_error_after_it_was_ready_once_is_retried(world: World, tmp_path: Path) -> None:
    flag = tmp_path / "fail"
    code = (
        "import pathlib, sys, time\n"
        f"while not pathlib.Path({str(flag)!r}).exists(): time.sleep(.01)\n"
        "sys.exit(1)"
    )
    supervisor = world.start(ProcessSpec("tier", python(code)))
    world.until(lambda: supervisor.all_ready)
    flag.touch()
    world.until(lambda: supervisor.processes["tier"].restarts == 1)


def test_a_command_that_does_not_exist_is_the_users_error(world: World) -> None:
    world.start(ProcessSpec("extra", ("/no/such/command",), ready=lambda pid: None))
    with pytest.raises(StartFailed, match="cannot run /no/such/command: No such file"):
        world.run_on()


def test_parts_end_in_the_order_of_their_stages(world: World) -> None:
    supervisor = world.start(
        ProcessSpec("kafka", python(SLEEPER), stop_stage=3),
        ProcessSpec("serve", python(SLEEPER), stop_stage=2),
        ProcessSpec("collect", python(SLEEPER), stop_stage=0),
    )
    world.until(lambda: supervisor.all_ready)
    pids = [world.pid(name) for name in supervisor.processes]
    world.events.clear()
    supervisor.stop()
    assert [(h.process, h.kind) for h in world.events] == [
        ("collect", "ending"),
        ("collect", "ended"),
        ("serve", "ending"),
        ("serve", "ended"),
        ("kafka", "ending"),
        ("kafka", "ended"),
    ]
    assert not any(is_alive(pid) for pid in pids)


def test_a_process_that_ignores_the_request_to_end_is_killed(world: World) -> None:
    supervisor = world.start(ProcessSpec("tier", python(STUBBORN), stop_timeout=0.2))
    world.until(lambda: "deaf" in world.log("tier"))
    pid = world.pid("tier")
    supervisor.stop()
    assert world.kinds("tier")[-1] == "killed"
    assert not is_alive(pid)


def test_hurry_kills_without_waiting_for_the_grace(world: World) -> None:
    supervisor = world.start(ProcessSpec("tier", python(STUBBORN), stop_timeout=600))
    world.until(lambda: "deaf" in world.log("tier"))
    pid = world.pid("tier")
    supervisor.stop(hurry=lambda: True)
    assert not is_alive(pid)


def test_what_a_process_started_does_not_outlive_it(world: World) -> None:
    code = (
        "import subprocess, sys, time\n"
        f"child = subprocess.Popen([sys.executable, '-c', {STUBBORN!r}])\n"
        "print('child', child.pid, flush=True)\ntime.sleep(600)"
    )
    supervisor = world.start(ProcessSpec("tier", python(code), stop_timeout=0.3))
    world.until(lambda: "deaf" in world.log("tier") and "child" in world.log("tier"))
    grandchild = int(world.log("tier").split("child ")[1].split()[0])
    assert is_alive(grandchild)
    supervisor.stop()
    assert not is_alive(grandchild)


def test_what_a_dead_process_left_behind_is_gone_before_its_successor_starts(world: World) -> None:
    code = (
        "import subprocess, sys, time\n"
        f"child = subprocess.Popen([sys.executable, '-c', {SLEEPER!r}])\n"
        "print('child', child.pid, flush=True)\ntime.sleep(600)"
    )
    supervisor = world.start(ProcessSpec("tier", python(code)))
    world.until(lambda: "child" in world.log("tier"))
    orphan = int(world.log("tier").split("child ")[1].split()[0])
    first = world.pid("tier")
    os.kill(first, signal.SIGKILL)
    world.until(lambda: world.pid("tier") != first)
    world.until(lambda: not is_alive(orphan))
    supervisor.stop()


def test_a_process_that_may_finish_is_not_started_again(world: World) -> None:
    once = world.logs / "once"
    code = f"open({str(once)!r}, 'a').write('x')"
    supervisor = world.start(ProcessSpec("once", python(code), may_finish=True))
    world.until(lambda: supervisor.processes["once"].state == "ended")
    assert supervisor.all_ready
    assert [t.kind for t in world.events if t.kind != "ready"] == ["starting", "ended"]
    supervisor.tick()
    assert once.read_text() == "x"
