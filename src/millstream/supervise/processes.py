"""The processes of a whole Millstream on one machine."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from millstream.errors import HomeInUse, SettingsError
from millstream.runtime.home import Home, collector_name, collectors
from millstream.runtime.ports import choose_port
from millstream.settings import Settings
from millstream.supervise.process_spec import ProcessSpec

FIRST, SECOND, THIRD, LAST = range(4)  # stages of stopping
_DYING_SECONDS = 15.0  # for the children of a killed process to end
TIERS = ("kafka", "collect", "analyze", "serve")


@dataclass(frozen=True, slots=True)
class Ports:
    """The ports of a run: chosen once, so that a restarted tier has the same address."""

    kafka: int
    collect: int
    serve: int


def choose_ports(settings: Settings) -> Ports:
    """The settings' ports, with 0 replaced; MachineError names the process on a taken one."""
    collect, serve = settings.collect, settings.serve
    return Ports(
        kafka=0
        if settings.log.bootstrap
        else choose_port("127.0.0.1", settings.log.port, what="kafka", flag="--kafka-port"),
        collect=choose_port(collect.host, collect.port, what="collect", flag="--collect-port"),
        serve=choose_port(serve.host, serve.port, what="serve", flag="--serve-port"),
    )


def system_processes(
    pipeline: Path,
    home: Home,
    settings: Settings,
    ports: Ports,
    *,
    flags: Sequence[str] = (),
    extras: Sequence[str] = (),
) -> list[ProcessSpec]:
    """The processes of `run`; every tier gets `flags`, `extras` are the commands of `--with`."""
    tier = partial(_tier, pipeline, home, flags)
    specs = []
    depends_on: tuple[str, ...] = ()
    if not settings.log.bootstrap:
        port = ("--kafka-port", str(ports.kafka))
        specs.append(tier("kafka", *port, depends_on=(), stop_stage=LAST, stop_timeout=6))
        depends_on = ("kafka",)
    serve_port = ("--serve-port", str(ports.serve))
    specs.append(tier("analyze", depends_on=depends_on, stop_stage=SECOND, stop_timeout=8))
    collect = collector_processes(
        pipeline, home, settings, ports.collect, flags=flags, depends_on=depends_on
    )
    specs += collect
    serve = tier(
        "serve",
        *serve_port,
        depends_on=depends_on,
        stop_stage=THIRD,
        stop_timeout=3 + settings.serve.drain_seconds,
    )
    specs.append(replace(serve, interruptible=True))
    taken = {*TIERS, *(spec.name for spec in collect)}
    return specs + [extra_process(command, taken) for command in extras]


def collector_processes(
    pipeline: Path,
    home: Home,
    settings: Settings,
    port: int,
    *,
    flags: Sequence[str] = (),
    depends_on: tuple[str, ...] = (),
) -> list[ProcessSpec]:
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
            depends_on=depends_on,
            stop_stage=FIRST,
            stop_timeout=4,
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
    depends_on: tuple[str, ...],
    stop_stage: int,
    stop_timeout: float,
) -> ProcessSpec:
    # -P: a file in the current folder must not replace a module of ours.
    command = (sys.executable, "-P", "-m", "millstream", tier, str(pipeline))
    return ProcessSpec(
        name=name or tier,
        command=(*command, "--home", str(home.path), *flags, *more),
        depends_on=depends_on,
        ready=announced(home, name or tier),
        stop_stage=stop_stage,
        stop_timeout=stop_timeout,
        log="kafka-start" if tier == "kafka" else "",  # Kafka itself writes kafka.log
    )


def extra_process(command: str, taken: set[str]) -> ProcessSpec:
    """A user's own process, stopped together with collect; its name is added to `taken`."""
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
    return ProcessSpec(
        name=name, command=tuple(words), stop_stage=FIRST, stop_timeout=3, may_finish=True
    )


def announced(home: Home, name: str) -> Callable[[int], str | None]:
    """Readiness by `run.json`: the tier's entry has the pid of the child or of its descendant."""

    def ready(pid: int) -> str | None:
        entry = home.running().get(name)
        if not isinstance(entry, dict) or not descends(int(entry["pid"]), pid):
            return None
        return str(entry.get("url") or entry.get("bootstrap") or f"pid {entry['pid']}")

    return ready


def descends(pid: int, ancestor: int) -> bool:
    """Whether `pid` is `ancestor` or a descendant of it."""
    while pid > 1:
        if pid == ancestor:
            return True
        try:
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            return False
    return False


def leftovers(home: Home, tiers: Collection[str] = TIERS) -> dict[str, int]:
    """Tiers that run here without a supervisor (killed, or started by hand), with their pids."""
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
