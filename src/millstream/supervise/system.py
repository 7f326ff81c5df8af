"""The parts of a whole Millstream on one machine."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from millstream.errors import HomeInUse, SettingsError
from millstream.runtime.home import Home
from millstream.settings import Settings
from millstream.supervise.part import Part
from millstream.supervise.ports import choose_port

FIRST, SECOND, THIRD, LAST = range(4)
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

    def tier(name: str, *more: str, needs: tuple[str, ...], stage: int, grace: float) -> Part:
        # -P: a file of the user's in the current folder must not stand in for a module of ours.
        command = (sys.executable, "-P", "-m", "millstream", name, str(pipeline))
        return Part(
            name=name,
            command=(*command, "--home", str(home.path), *flags, *more),
            needs=needs,
            ready=announced(home, name),
            stage=stage,
            grace=grace,
            log="kafka-start" if name == "kafka" else "",  # kafka.log is written by Kafka itself
        )

    parts = []
    needs: tuple[str, ...] = ()
    if not settings.log.bootstrap:
        port = ("--kafka-port", str(ports.kafka))
        parts.append(tier("kafka", *port, needs=(), stage=LAST, grace=6))
        needs = ("kafka",)
    collect_port = ("--collect-port", str(ports.collect))
    serve_port = ("--serve-port", str(ports.serve))
    parts.append(tier("analyze", needs=needs, stage=SECOND, grace=8))
    parts.append(tier("collect", *collect_port, needs=needs, stage=FIRST, grace=4))
    parts.append(tier("serve", *serve_port, needs=needs, stage=THIRD, grace=3))
    taken = set(TIERS)
    return parts + [extra_part(command, taken) for command in extras]


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


def leftovers(home: Home) -> dict[str, int]:
    """Tiers that run here without a supervisor: dying after its death, or started by hand."""
    running = home.running()
    return {name: running[name]["pid"] for name in TIERS if name in running}


def refuse_leftovers(home: Home) -> None:
    """HomeInUse if tiers run in this home that are not ours to supervise."""
    if left := leftovers(home):
        named = ", ".join(f"{name} (process {pid})" for name, pid in left.items())
        raise HomeInUse(
            f"cannot start in {home.path}: {named} runs there already",
            remedy="stop it, or give another --home",
        )
