"""Specification of one supervised process: its command, dependencies and time limits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


def ready_at_once(pid: int) -> str | None:
    """Readiness of a command that announces nothing: it is ready as soon as it runs."""
    return f"pid {pid}"


@dataclass(frozen=True, slots=True)
class ProcessSpec:
    """One process of the system.

    `ready` is called often with the child's pid and must not block. It returns the address to
    display, or None as long as the process is not ready.
    """

    name: str
    command: tuple[str, ...]
    depends_on: tuple[str, ...] = ()  # started when these are ready
    ready: Callable[[int], str | None] = ready_at_once
    stop_stage: int = 0  # all of a lower stage have ended before this one is asked to stop
    start_timeout: float = 300.0  # seconds; then it is killed, which counts as a death
    stop_timeout: float = 5.0  # seconds; then it is killed
    interruptible: bool = False  # Ctrl-C reaches it as SIGINT, not SIGTERM: it ends without a drain
    may_finish: bool = False  # exit code 0 is no death
    log: str = ""  # the log's name, if not the process's


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """How a process that dies is restarted: without end, unless `give_up` is set."""

    backoff: float = 0.5  # seconds before the first restart; doubles with each further death
    longest_backoff: float = 30.0
    healthy: float = 60.0  # seconds of being ready after which earlier deaths do not count
    deaths: int = 5  # with `give_up`: so many deaths end the whole run
    give_up: bool = False
