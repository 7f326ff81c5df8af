"""Processes end with their supervisor, whatever ended it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from millstream.runtime.home import is_alive
from millstream.supervise.child import Child, describe_exit

SUPERVISOR = """
import sys, time
from pathlib import Path
from millstream.supervise.child import Child
child = Child((sys.executable, "-c", "import time; time.sleep(600)"), Path(sys.argv[1]))
print(child.pid, flush=True)
time.sleep(600)
"""


def await_end(pid: int, seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while is_alive(pid):
        assert time.monotonic() < deadline, f"process {pid} is still there"
        time.sleep(0.01)


def test_killing_the_supervisor_leaves_no_child(tmp_path: Path) -> None:
    supervisor = subprocess.Popen(
        [sys.executable, "-c", SUPERVISOR, str(tmp_path / "child.log")], stdout=subprocess.PIPE
    )
    assert supervisor.stdout is not None
    with supervisor.stdout:
        child = int(supervisor.stdout.readline())
    assert is_alive(child)
    supervisor.kill()
    supervisor.wait()
    await_end(child)


def test_a_child_is_out_of_reach_of_the_terminals_ctrl_c(tmp_path: Path) -> None:
    child = Child((sys.executable, "-c", "import time; time.sleep(600)"), tmp_path / "log")
    try:
        assert os.getsid(child.pid) == child.pid
        assert os.getpgid(child.pid) == child.pid
    finally:
        child.kill()
        child.reap()


def test_a_childs_output_and_errors_go_to_its_log(tmp_path: Path) -> None:
    code = "import sys; print('out', flush=True); print('err', file=sys.stderr); sys.exit(7)"
    child = Child((sys.executable, "-c", code), tmp_path / "deep" / "log")
    child.reap()
    assert child.exit_code() == 7
    assert (tmp_path / "deep" / "log").read_text().splitlines() == ["out", "err"]


def test_the_words_of_a_failed_child_are_those_of_its_last_start(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("error: an old story\n")
    child = Child((sys.executable, "-c", "print('nothing of the kind')"), log)
    child.reap()
    assert child.last_error() == "nothing of the kind"


def test_exits_are_described_in_words() -> None:
    assert describe_exit(3) == "exit code 3"
    assert describe_exit(-signal.SIGKILL) == "signal SIGKILL"
