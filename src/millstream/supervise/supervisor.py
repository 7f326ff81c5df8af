"""Keeps a system's parts running: starts each once what it needs is ready, restarts what dies."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Literal

from millstream.errors import MachineError, MillstreamError
from millstream.supervise import logfile
from millstream.supervise.child import Child, describe_exit
from millstream.supervise.part import Part, Policy

State = Literal["waiting", "starting", "ready", "restarting", "ended"]
TAIL = 20
UNKILLABLE = 5.0


@dataclass(frozen=True, slots=True)
class Happening:
    """Something that the user may want to see: a part starts, is ready, died, ends, was killed."""

    part: str
    kind: Literal["starting", "ready", "died", "ending", "ended", "killed"]
    text: str
    seconds: float  # since this part was started, or asked to end


@dataclass(slots=True)
class Running:
    """A part and what became of it."""

    part: Part
    state: State = "waiting"
    child: Child | None = None
    since: float = 0.0  # of the current state
    address: str = ""
    restarts: int = 0
    was_ready: bool = False
    fruitless: int = 0  # deaths in a row without being ready
    deaths: deque[float] = field(default_factory=deque)
    due: float = 0.0
    overdue: bool = False  # it did not become ready in time, and we killed it


class StartFailed(MillstreamError):
    """A part ended with an error of the user's before it was ever ready."""


class GaveUp(MachineError):
    """A part does not stay up."""


class Supervisor:
    """Call `tick` often (it does not block), and `stop` in the end (it blocks, for seconds)."""

    def __init__(
        self,
        parts: Iterable[Part],
        logs: Path,
        tell: Callable[[Happening], None],
        policy: Policy | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.running = {part.name: Running(part) for part in parts}
        self._logs = logs
        self._tell = tell
        self._policy = policy or Policy()
        self._clock = clock
        self._next_bound = 0.0

    @property
    def all_ready(self) -> bool:
        return all(one.state in ("ready", "ended") for one in self.running.values())

    def tick(self) -> None:
        """Look at every part once; StartFailed or GaveUp when going on makes no sense."""
        for one in self.running.values():
            match one.state:
                case "waiting" if self._has_what_it_needs(one):
                    self._start(one)
                case "restarting" if self._clock() >= one.due:
                    self._start(one)
                case "starting" | "ready":
                    self._watch(one)
        if self._clock() >= self._next_bound:
            self._next_bound = self._clock() + 5
            for one in self.running.values():
                logfile.bound(self._log(one))

    def stop(self, hurry: Callable[[], bool] = lambda: False) -> None:
        """End all, stage by stage; kill what takes too long, or everything once `hurry` says so."""
        by_stage = sorted(self.running.values(), key=lambda one: one.part.stage)
        for _, stage in groupby(by_stage, key=lambda one: one.part.stage):
            self._end(list(stage), hurry)

    def _has_what_it_needs(self, one: Running) -> bool:
        return all(self.running[name].state == "ready" for name in one.part.needs)

    def _start(self, one: Running) -> None:
        one.child = Child(one.part.command, self._log(one))
        one.state, one.since, one.overdue = "starting", self._clock(), False
        self._tell(Happening(one.part.name, "starting", f"pid {one.child.pid}", 0.0))

    def _watch(self, one: Running) -> None:
        assert one.child is not None
        code = one.child.exit_code()
        elapsed = self._clock() - one.since
        if code is not None:
            self._bury(one, one.child, code)
        elif one.state == "starting" and (address := one.part.ready(one.child.pid)) is not None:
            one.state, one.since, one.address = "ready", self._clock(), address
            one.was_ready, one.fruitless = True, 0
            self._tell(Happening(one.part.name, "ready", address, elapsed))
        elif one.state == "starting" and elapsed > one.part.patience:
            one.overdue = True
            one.child.kill()  # its death is seen at the next tick

    def _bury(self, one: Running, child: Child, code: int) -> None:
        name, now = one.part.name, self._clock()
        lived = now - one.since
        child.kill()  # what it left behind must not stand in its successor's way
        child.release()
        if code == 0 and one.part.may_finish:
            one.state = "ended"
            self._tell(Happening(name, "ended", "", lived))
            return
        if code in (1, 2) and not one.was_ready:
            one.state = "ended"
            raise StartFailed(f"cannot start {name}: {child.words()}")
        one.fruitless += one.state == "starting"
        one.deaths.append(now)
        while now - one.deaths[0] > self._policy.within:
            one.deaths.popleft()
        if max(len(one.deaths), one.fruitless) >= self._policy.deaths:
            one.state = "ended"
            raise self._gave_up(one, code)
        quick = max(len(one.deaths), one.fruitless)
        pause = min(self._policy.backoff * 2 ** (quick - 1), self._policy.longest_backoff)
        one.state, one.due, one.restarts = "restarting", now + pause, one.restarts + 1
        text = f"{_cause(one, code)}; starting it again in {pause:.1f} s"
        self._tell(Happening(name, "died", text, lived))

    def _gave_up(self, one: Running, code: int) -> GaveUp:
        name, log = one.part.name, self._log(one)
        deaths = max(len(one.deaths), one.fruitless)
        last = "\n".join(f"  {line}" for line in logfile.tail(log, TAIL))
        return GaveUp(
            f"{name} does not stay up: it died {deaths} times, last by {_cause(one, code)}",
            remedy=f"read {log}, which ends with\n{last}",
        )

    def _end(self, stage: list[Running], hurry: Callable[[], bool]) -> None:
        live = [one for one in stage if one.state in ("starting", "ready")]
        started = self._clock()
        for one in live:
            assert one.child is not None
            self._tell(Happening(one.part.name, "ending", f"pid {one.child.pid}", 0.0))
            one.child.ask_to_end()
        while live:
            elapsed = self._clock() - started
            for one in list(live):
                assert one.child is not None
                late = elapsed > one.part.grace or hurry()
                if late:
                    one.child.kill()
                # One that cannot even be killed (it waits for a broken disk) must not keep us here.
                if self._is_gone(one.child) or elapsed > one.part.grace + UNKILLABLE:
                    one.state = "ended"
                    live.remove(one)
                    self._tell(Happening(one.part.name, "killed" if late else "ended", "", elapsed))
            time.sleep(0.02)

    @staticmethod
    def _is_gone(child: Child) -> bool:
        if child.exit_code() is None or child.group():
            return False
        child.release()
        return True

    def _log(self, one: Running) -> Path:
        return self._logs / f"{one.part.log or one.part.name}.log"


def _cause(one: Running, code: int) -> str:
    if one.overdue:
        return f"our hand, not ready after {one.part.patience:.0f} s"
    return describe_exit(code)
