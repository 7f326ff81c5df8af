"""A whole run over tiny processes: signals, the order of the end, what the user reads."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from tests.collect.small_disks import small_disk
from tests.conftest import Eventually
from tests.process_failures import KAFKA_DIES

from millstream.runtime.failing_processes import publish_failures, read_failures
from millstream.runtime.home import Home, is_alive

# Three processes that print their pid; `stubborn` ignores SIGTERM.
RUN = """
import sys
from pathlib import Path
from millstream.cli.shared.outcome import print_error
from millstream.errors import MillstreamError
from millstream.runtime.home import Home
from millstream.supervise.process_spec import ProcessSpec, RestartPolicy
from millstream.supervise.run import run_processes
from millstream.supervise.plain_output import PlainOutput

home, last, give_up = Path(sys.argv[1]), sys.argv[2], sys.argv[3:] == ["give up"]
code = "import os, time; print(os.getpid(), flush=True); time.sleep(600)"
deaf = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); " + code
specs = [
    ProcessSpec("kafka", (sys.executable, "-c", code), stop_stage=3),
    ProcessSpec("collect", (sys.executable, "-c", code), depends_on=("kafka",), stop_stage=0),
    ProcessSpec("serve", (sys.executable, "-c", eval(last)), depends_on=("kafka",), stop_stage=2,
        stop_timeout=60),
]
try:
    policy = RestartPolicy(backoff=0.01, deaths=3, longest_backoff=0.05, give_up=give_up)
    ended_by = run_processes(
        specs, Home(home), PlainOutput(), ready_lines=["all ready"], policy=policy)
except MillstreamError as error:
    print_error(str(error))
    sys.exit(1)
print("ended by", ended_by, flush=True)
"""


class Run:
    def __init__(self, folder: Path, last: str = "code", *more: str) -> None:
        self.logs = folder / "logs"
        self.output = folder / "out"
        with self.output.open("wb") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-c", RUN, str(folder), last, *more],
                stdout=out,
                stderr=subprocess.STDOUT,
            )

    def until_said(self, text: str) -> None:
        deadline = time.monotonic() + 20
        while text not in self.output.read_text():
            assert time.monotonic() < deadline, self.output.read_text()
            time.sleep(0.01)

    def pids(self) -> list[int]:
        """Of the parts, as they tell them themselves; waits until all have."""
        deadline = time.monotonic() + 20
        while True:
            logs = [path.read_text() for path in self.logs.glob("*.log")]
            if len(logs) == 3 and all(log.endswith("\n") for log in logs):
                return [int(log.split()[-1]) for log in logs]
            assert time.monotonic() < deadline, logs
            time.sleep(0.01)


@pytest.fixture
def system(tmp_path: Path) -> Iterator[Run]:
    run = Run(tmp_path)
    yield run
    run.process.kill()
    run.process.wait()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_all_in_order(system: Run, number: signal.Signals) -> None:
    system.until_said("all ready")
    pids = system.pids()
    system.process.send_signal(number)
    assert system.process.wait(15) == 0
    assert not any(is_alive(pid) for pid in pids)
    out = system.output.read_text()
    assert f"ended by {int(number)}" in out
    ends = [line.split()[2] for line in out.splitlines() if "ended after" in line]
    assert ends == ["collect", "serve", "kafka"]


def test_the_end_of_a_killed_supervisor_is_the_end_of_its_processes(system: Run) -> None:
    system.until_said("all ready")
    pids = system.pids()
    system.process.kill()
    system.process.wait()
    deadline = time.monotonic() + 10
    while any(is_alive(pid) for pid in pids):
        assert time.monotonic() < deadline, "parts outlive their supervisor"
        time.sleep(0.01)


def test_a_second_signal_ends_what_does_not_want_to_end(tmp_path: Path) -> None:
    run = Run(tmp_path, "deaf")
    run.until_said("all ready")
    pids = run.pids()
    run.process.send_signal(signal.SIGINT)
    run.until_said("serve      ending")
    run.process.send_signal(signal.SIGINT)
    assert run.process.wait(15) == 0
    assert "serve      killed" in run.output.read_text()
    assert not any(is_alive(pid) for pid in pids)


def test_a_closed_terminal_does_not_keep_the_processes_from_ending_in_good_order(
    tmp_path: Path,
) -> None:
    mark = tmp_path / "ended"
    part = (
        "import pathlib, signal, sys, time\n"
        f"def end(*_): pathlib.Path({str(mark)!r}).touch(); sys.exit()\n"
        "signal.signal(signal.SIGTERM, end)\nprint('up', flush=True)\ntime.sleep(600)"
    )
    command = [sys.executable, "-c", RUN, str(tmp_path), repr(part)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        while b"all ready" not in process.stdout.readline():
            pass
        log, deadline = tmp_path / "logs" / "serve.log", time.monotonic() + 20
        while "up" not in log.read_text():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        process.stdout.close()
        process.send_signal(signal.SIGHUP)
        process.wait(15)
    assert mark.exists()


def test_a_process_that_was_killed_comes_back_and_the_user_is_told(system: Run) -> None:
    system.until_said("all ready")
    before = system.pids()
    os.kill(before[0], signal.SIGKILL)
    system.until_said("by signal SIGKILL; starting it again")
    deadline = time.monotonic() + 20
    while not all(is_alive(pid) for pid in system.pids()):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert len(set(before) & set(system.pids())) == 2


NO_LUCK = "\"print('no luck', flush=True); raise SystemExit(9)\""


def test_one_that_keeps_dying_is_reported_in_the_home_and_the_others_go_on(
    tmp_path: Path, eventually: Eventually
) -> None:
    run = Run(tmp_path, NO_LUCK)
    try:
        run.until_said("KEEPS DYING: 12 times, last by exit code 9")
        out = run.output.read_text()
        assert "serve      | no luck" in out
        assert "the others go on" in out
        # It is said, and then written into the home.
        eventually(lambda: sum(each.deaths for each in read_failures(Home(tmp_path))) >= 12, 10)
        (failure,) = read_failures(Home(tmp_path))
        assert (failure.process, failure.reason) == ("serve", "exit code 9")
        assert failure.lines[-1] == "no luck"
        for tier in ("kafka", "collect"):
            assert is_alive(int((tmp_path / "logs" / f"{tier}.log").read_text()))
        run.process.send_signal(signal.SIGINT)
        assert run.process.wait(15) == 0
    finally:
        run.process.kill()
        run.process.wait()
    assert read_failures(Home(tmp_path)) == ()


def test_a_report_can_be_rewritten_when_the_disk_is_full(tmp_path: Path) -> None:
    lines = tuple("x" * 300 for _ in range(10))
    failure = msgspec.structs.replace(KAFKA_DIES, lines=lines)
    with small_disk(tmp_path / "disk", 1 << 20) as disk:
        home = Home(disk.folder / "home")
        home.announce_run()
        publish_failures(home, [])
        disk.fill()
        publish_failures(home, [failure] * 5)
        assert read_failures(home) == (failure,) * 5
        home.announce("serve", url="http://127.0.0.1:1")
        assert home.running()["serve"]["url"] == "http://127.0.0.1:1"


def test_output_on_a_full_disk_does_not_end_the_run(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 1 << 20) as disk:
        run = Run(disk.folder)
        try:
            run.until_said("all ready")
            pids = run.pids()
            disk.fill()
            os.kill(pids[0], signal.SIGKILL)
            home = Home(disk.folder)
            deadline = time.monotonic() + 20
            while not (failures := read_failures(home)):
                assert time.monotonic() < deadline
                time.sleep(0.001)
            assert "is full" in failures[0].reason
            assert run.process.poll() is None
            disk.make_room()
            while not all(is_alive(pid) for pid in run.pids()):
                assert time.monotonic() < deadline
                time.sleep(0.01)
            run.process.send_signal(signal.SIGINT)
            assert run.process.wait(15) == 0
        finally:
            run.process.kill()
            run.process.wait()


def test_giving_up_ends_the_others_and_shows_the_log(tmp_path: Path) -> None:
    run = Run(tmp_path, NO_LUCK, "give up")
    assert run.process.wait(30) == 1
    out = run.output.read_text()
    assert "error: serve does not stay up: it died 3 times, last by exit code 9" in out
    assert "  no luck" in out
    for path in (tmp_path / "logs" / "kafka.log", tmp_path / "logs" / "collect.log"):
        if text := path.read_text():
            assert not is_alive(int(text))
