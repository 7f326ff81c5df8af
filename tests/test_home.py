from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from millstream.errors import HomeInUse
from millstream.home import Home, is_alive


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home")


@pytest.fixture
def dead() -> int:
    """The number of a process that is no more."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_what_was_announced_is_found_by_others_until_it_is_withdrawn(home: Home) -> None:
    assert home.running() == {}
    home.announce_run()
    home.announce("serve", url="http://127.0.0.1:8500")
    entry = {"pid": os.getpid(), "url": "http://127.0.0.1:8500"}
    assert home.running() == {"pid": os.getpid(), "serve": entry}
    home.withdraw()
    assert home.running() == {}


def test_a_child_that_does_the_work_is_announced_in_its_own_name(home: Home) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        home.announce("kafka", pid=child.pid, bootstrap="127.0.0.1:1")
        assert home.running()["kafka"] == {"pid": child.pid, "bootstrap": "127.0.0.1:1"}
        child.communicate(b"\n")
    assert home.running() == {}


def test_the_dead_are_not_listed_and_give_their_name_to_the_living(home: Home, dead: int) -> None:
    home.path.mkdir()
    home.run_file.write_text(json.dumps({"pid": dead, "serve": {"pid": dead, "url": "old"}}))
    assert home.running() == {}
    home.announce("serve", url="new")
    assert home.running() == {"serve": {"pid": os.getpid(), "url": "new"}}


def test_of_two_that_live_the_first_keeps_the_name(home: Home) -> None:
    home.path.mkdir()
    home.run_file.write_text(json.dumps({"serve": {"pid": os.getppid(), "url": "first"}}))
    home.announce("serve", url="second")
    assert home.running()["serve"]["url"] == "first"


def test_announcements_at_the_same_time_do_not_overwrite_each_other(home: Home) -> None:
    names = [f"tier{n}" for n in range(20)]
    with ThreadPoolExecutor(10) as pool:
        list(pool.map(home.announce, names))
    assert sorted(home.running()) == sorted(names)


def test_a_run_file_that_was_cut_off_counts_as_none(home: Home) -> None:
    home.path.mkdir()
    home.run_file.write_text('{"pid": 1')
    assert home.running() == {}


def test_what_one_process_holds_is_refused_to_another_with_its_pid(home: Home) -> None:
    with (
        home.hold("run"),
        pytest.raises(HomeInUse, match=f"process {os.getpid()} runs there already") as caught,
        home.hold("run"),
    ):
        pass
    assert "--home" in str(caught.value)
    with home.hold("run"):
        pass


def test_a_zombie_is_not_alive(dead: int) -> None:
    child = subprocess.Popen([sys.executable, "-c", ""], stdout=subprocess.PIPE)
    assert child.stdout is not None
    child.stdout.read()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert not is_alive(child.pid)
    child.communicate()
    assert not is_alive(dead)
    assert is_alive(os.getpid())
