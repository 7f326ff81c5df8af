from __future__ import annotations

import errno
import json
import os
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from millstream.errors import HomeInUse
from millstream.runtime.home import Home, is_alive, start_time


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
    me = {"pid": os.getpid(), "started": start_time(os.getpid())}
    assert home.running() == {**me, "serve": {**me, "url": "http://127.0.0.1:8500"}}
    home.withdraw()
    assert home.running() == {}


def test_a_child_that_does_the_work_is_announced_in_its_own_name(home: Home) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        home.announce("kafka", pid=child.pid, bootstrap="127.0.0.1:1")
        entry = home.running()["kafka"]
        assert entry == {
            "pid": child.pid,
            "started": start_time(child.pid),
            "bootstrap": "127.0.0.1:1",
        }
        child.communicate(b"\n")
    assert home.running() == {}


def test_the_dead_are_not_listed_and_give_their_name_to_the_living(home: Home, dead: int) -> None:
    home.path.mkdir()
    home.run_file.write_text(json.dumps({"pid": dead, "serve": {"pid": dead, "url": "old"}}))
    assert home.running() == {}
    home.announce("serve", url="new")
    assert home.running()["serve"]["url"] == "new"


def test_a_number_that_the_kernel_gave_to_another_process_is_not_the_one_that_died(
    home: Home,
) -> None:
    home.announce_run()
    home.announce("serve", url="old")
    # As if this process had got the number of one that was killed.
    entries = json.loads(home.run_file.read_text())
    for each in (entries, entries["serve"]):
        each["started"] -= 1
    home.run_file.write_text(json.dumps(entries))
    assert home.running() == {}
    home.announce("serve", url="new")
    assert home.running()["serve"]["url"] == "new"


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


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_new_home_is_for_its_owner_alone(home: Home) -> None:
    home.announce("serve", url="http://127.0.0.1:1")
    assert mode(home.path) == 0o700


def test_a_home_that_others_could_read_is_narrowed_and_still_opens(home: Home) -> None:
    for folder in (home.kafka, home.journal, home.checkpoints, home.logs, home.failed):
        folder.mkdir(mode=0o755, parents=True)
    home.path.chmod(0o755)
    home.run_file.write_text(json.dumps({"serve": {"pid": os.getpid(), "url": "here"}}))
    with home.hold("run"):
        assert home.running()["serve"]["url"] == "here"
    folders = (home.path, home.kafka, home.journal, home.checkpoints, home.logs, home.failed)
    assert {mode(folder) for folder in folders} == {0o700}


def test_a_folder_that_holds_other_files_too_keeps_its_rights_but_ours_in_it_do_not(
    home: Home,
) -> None:
    home.kafka.mkdir(mode=0o755, parents=True)
    home.path.chmod(0o755)
    pipeline = home.path / "pipeline.py"
    pipeline.touch(0o644)
    home.make()
    assert (mode(home.path), mode(pipeline), mode(home.kafka)) == (0o755, 0o644, 0o700)


def test_a_file_that_was_never_written_fails_for_the_reason_of_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, content: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(OSError, match="No space left on device"):
        Home.replace_file(tmp_path / "run.json", b"{}")
