"""What the supervisor knows of one process before it runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


def at_once(pid: int) -> str | None:
    """Readiness of a command that tells nothing: it is ready as soon as it runs."""
    return f"pid {pid}"


@dataclass(frozen=True, slots=True)
class Part:
    """One process of the system.

    `ready` is called often with the child's pid, must not block, and returns what to show of a
    ready part (its address), or None as long as it is not ready.
    """

    name: str
    command: tuple[str, ...]
    needs: tuple[str, ...] = ()  # started once these are ready
    ready: Callable[[int], str | None] = at_once
    stage: int = 0  # of ending: lower stages are gone before higher ones are asked to end
    patience: float = 300.0  # seconds to become ready; then it is killed, which counts as a death
    grace: float = 5.0  # seconds to end by itself; then it is killed
    may_finish: bool = False  # an end with exit code 0 is its own, and no death
    log: str = ""  # the log's name, if not the part's


@dataclass(frozen=True, slots=True)
class Policy:
    """How a part that dies is restarted: without end, unless `give_up` says otherwise."""

    backoff: float = 0.5  # seconds before the first restart; doubles with each further death
    longest_backoff: float = 30.0
    healthy: float = 60.0  # seconds of being ready after which earlier deaths do not count
    deaths: int = 5  # with `give_up`: that many deaths end the whole run
    give_up: bool = False
