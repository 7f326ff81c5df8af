from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from millstream.errors import HomeInUse, SettingsError
from millstream.log.settings import LogSettings
from millstream.runtime.home import Home
from millstream.settings import Settings
from millstream.supervise.processes import (
    Ports,
    announced,
    await_leftovers,
    descends,
    extra_process,
    leftovers,
    system_processes,
)

PORTS = Ports(kafka=1, collect=2, serve=3)


def names(settings: Settings, *extras: str) -> list[str]:
    home = Home(Path("/nowhere"))
    return [p.name for p in system_processes(Path("p.py"), home, settings, PORTS, extras=extras)]


def test_a_cluster_of_the_users_needs_no_broker_of_ours() -> None:
    assert names(Settings()) == ["kafka", "analyze", "collect", "serve"]
    external = Settings(log=LogSettings(bootstrap="kafka:9092"))
    assert names(external) == ["analyze", "collect", "serve"]


def test_collect_and_extras_end_first_and_kafka_last() -> None:
    specs = system_processes(
        Path("p.py"), Home(Path("/nowhere")), Settings(), PORTS, extras=["python simulator.py"]
    )
    by_end = sorted(specs, key=lambda part: part.stop_stage)
    assert {part.name for part in by_end[:2]} == {"collect", "simulator"}
    assert [part.name for part in by_end[2:]] == ["analyze", "serve", "kafka"]


def test_tiers_are_told_the_ports_and_flags_of_the_run() -> None:
    specs = system_processes(
        Path("/p.py"), Home(Path("/h")), Settings(), PORTS, flags=["--set", "log.memory=1g"]
    )
    serve = next(part for part in specs if part.name == "serve")
    assert serve.command[:5] == (sys.executable, "-P", "-m", "millstream", "serve")
    assert " ".join(serve.command[5:]) == "/p.py --home /h --set log.memory=1g --serve-port 3"


def test_extras_get_names_of_their_own() -> None:
    assert names(Settings(), "python sim.py --rate 3", "python sim.py", "serve")[4:] == [
        "sim",
        "sim-2",
        "serve-2",
    ]


@pytest.mark.parametrize("command", ["", "python 'unclosed"])
def test_an_extra_that_is_no_command_is_refused(command: str) -> None:
    with pytest.raises(SettingsError, match="--with"):
        extra_process(command, set())


def test_a_tier_is_ready_when_it_has_announced_itself(tmp_path: Path) -> None:
    home = Home(tmp_path)
    ready = announced(home, "serve")
    assert ready(os.getpid()) is None
    home.announce("serve", url="http://127.0.0.1:1")
    assert ready(os.getpid()) == "http://127.0.0.1:1"
    assert ready(os.getppid()) == "http://127.0.0.1:1"  # as the broker's wrapper is of java


def test_another_processs_announcement_does_not_make_a_tier_ready(tmp_path: Path) -> None:
    home = Home(tmp_path)
    home.announce("serve", url="http://127.0.0.1:1")
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        assert announced(home, "serve")(other.pid) is None
        assert descends(other.pid, os.getpid())
        other.communicate(b"\n")


def test_tiers_that_somebody_else_runs_in_the_home_are_refused_by_name(tmp_path: Path) -> None:
    home = Home(tmp_path)
    reported: list[str] = []
    assert leftovers(home) == {}
    home.announce("kafka", bootstrap="127.0.0.1:1")
    with pytest.raises(HomeInUse, match=rf"kafka \(process {os.getpid()}\) runs there already"):
        await_leftovers(home, reported.append, seconds=0.2)
    assert reported == ["waiting for the end of kafka, left by an earlier run"]
    await_leftovers(home, reported.append, ["collect"])  # another tier's processes may run there
