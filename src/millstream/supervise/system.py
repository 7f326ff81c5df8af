"""The parts of a whole Millstream on one machine."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from millstream.errors import HomeInUse, SettingsError
from millstream.runtime.home import Home, collector_name, collectors
from millstream.settings import Settings
from millstream.supervise.part import Part
from millstream.supervise.ports import choose_port

FIRST, SECOND, THIRD, LAST = range(4)
_DYING_SECONDS = 15.0  # that the children of a killed process may take to end
TIERS = ("kafka", "collect", "analyze", "serve")


@dataclass(frozen=True, slots=True)
class Ports:
    """Chosen once for a run, so that a tier that was restarted is found where it was."""

    kafka: int
    collect: int
    serve: int


def choose_ports(settings: Settings) -> Ports:
    """The settings' ports, with 0 replaced; MachineError says who holds a taken one."""
    collect, serve = settings.collect, settings.serve
    return Ports(
        kafka=0
        if settings.log.bootstrap
        else choose_port("127.0.0.1", settings.log.port, what="kafka", flag="--kafka-port"),
        collect=choose_port(collect.host, collect.port, what="collect", flag="--collect-port"),
        serve=choose_port(serve.host, serve.port, what="serve", flag="--serve-port"),
    )


def parts_of(
    pipeline: Path,
    home: Home,
    settings: Settings,
    ports: Ports,
    *,
    flags: Sequence[str] = (),
    extras: Sequence[str] = (),
) -> list[Part]:
    """What `run` starts; `flags` go to every tier, `extras` are the commands of `--with`."""

    tier = partial(_tier, pipeline, home, flags)
    parts = []
    needs: tuple[str, ...] = ()
    if not settings.log.bootstrap:
        port = ("--kafka-port", str(ports.kafka))
        parts.append(tier("kafka", *port, needs=(), stage=LAST, grace=6))
        needs = ("kafka",)
    serve_port = ("--serve-port", str(ports.serve))
    parts.append(tier("analyze", needs=needs, stage=SECOND, grace=8))
    collect = collector_parts(pipeline, home, settings, ports.collect, flags=flags, needs=needs)
    parts += collect
    parts.append(tier("serve", *serve_port, needs=needs, stage=THIRD, grace=3))
    taken = {*TIERS, *(part.name for part in collect)}
    return parts + [extra_part(command, taken) for command in extras]


def collector_parts(
    pipeline: Path,
    home: Home,
    settings: Settings,
    port: int,
    *,
    flags: Sequence[str] = (),
    needs: tuple[str, ...] = (),
) -> list[Part]:
    """The collector processes, which share a port: `collect.workers` of them."""
    return [
        _tier(
            pipeline,
            home,
            flags,
            "collect",
            "--collect-port",
            str(port),
            "--worker",
            str(worker),
            name=collector_name(worker),
            needs=needs,
            stage=FIRST,
            grace=4,
        )
        for worker in range(settings.collect.workers)
    ]


def _tier(
    pipeline: Path,
    home: Home,
    flags: Sequence[str],
    tier: str,
    *more: str,
    name: str = "",
    needs: tuple[str, ...],
    stage: int,
    grace: float,
) -> Part:
    # -P: a file of the user's in the current folder must not stand in for a module of ours.
    command = (sys.executable, "-P", "-m", "millstream", tier, str(pipeline))
    return Part(
        name=name or tier,
        command=(*command, "--home", str(home.path), *flags, *more),
        needs=needs,
        ready=announced(home, name or tier),
        stage=stage,
        grace=grace,
        log="kafka-start" if tier == "kafka" else "",  # kafka.log is written by Kafka itself
    )


def extra_part(command: str, taken: set[str]) -> Part:
    """A process of the user's own, ended with the sources; its name is added to those taken."""
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise SettingsError(f"cannot read --with {command!r}: {error}") from None
    if not words:
        raise SettingsError("--with has no command", remedy="write --with 'python simulator.py'")
    named = [Path(word).stem for word in words if word.endswith(".py")]
    name = base = (named or [Path(words[0]).name])[0]
    number = 2
    while name in taken:
        name, number = f"{base}-{number}", number + 1
    taken.add(name)
    return Part(name=name, command=tuple(words), stage=FIRST, grace=3, may_finish=True)


def announced(home: Home, name: str) -> Callable[[int], str | None]:
    """Readiness by `run.json`: the tier's entry is this child's, or of one that it started."""

    def ready(pid: int) -> str | None:
        entry = home.running().get(name)
        if not isinstance(entry, dict) or not descends(int(entry["pid"]), pid):
            return None
        return str(entry.get("url") or entry.get("bootstrap") or f"pid {entry['pid']}")

    return ready


def descends(pid: int, ancestor: int) -> bool:
    """Whether `pid` is `ancestor` or was started by it, directly or not."""
    while pid > 1:
        if pid == ancestor:
            return True
        try:
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            return False
    return False


def leftovers(home: Home, tiers: Collection[str] = TIERS) -> dict[str, int]:
    """Processes of these tiers that no live supervisor has: left by a killed one, or by hand."""
    running = home.running()
    names = set(tiers) & running.keys()
    if "collect" in tiers:
        names |= collectors(running).keys()
    return {name: running[name]["pid"] for name in sorted(names)}


def await_leftovers(
    home: Home,
    report: Callable[[str], None],
    tiers: Collection[str] = TIERS,
    seconds: float = _DYING_SECONDS,
) -> None:
    """Wait for the processes of a killed supervisor to end; HomeInUse if some do not."""
    if left := leftovers(home, tiers):
        report(f"waiting for the end of {', '.join(left)}, left by an earlier run")
    deadline = time.monotonic() + seconds
    while (left := leftovers(home, tiers)) and time.monotonic() < deadline:
        time.sleep(0.1)
    if left:
        named = ", ".join(f"{name} (process {pid})" for name, pid in left.items())
        raise HomeInUse(
            f"cannot start in {home.path}: {named} runs there already",
            remedy="stop it, or give another --home",
        )
