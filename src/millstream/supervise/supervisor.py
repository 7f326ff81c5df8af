"""Keeps a system's parts running: starts each once what it needs is ready, restarts what dies."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path
from typing import Literal

from millstream.errors import MachineError, MillstreamError
from millstream.runtime.failing_processes import Failure
from millstream.supervise import logfile
from millstream.supervise.child import Child, describe_exit
from millstream.supervise.part import Part, Policy

State = Literal["waiting", "starting", "ready", "restarting", "ended"]
TAIL = 20
UNKILLABLE = 5.0
KEEPS_DYING = 3  # deaths without a healthy time between, after which it is news by itself
FULL = 1 << 20  # bytes; less is free on a full disk
_LINES, _LINE = 10, 300  # of a log, in a report


@dataclass(frozen=True, slots=True)
class Happening:
    """Something that the user may want to see: a part starts, is ready, died, ends, was killed.

    `failing` is a death of a part that keeps dying, `recovered` the end of that.
    """

    part: str
    kind: Literal["starting", "ready", "died", "failing", "recovered", "ending", "ended", "killed"]
    text: str
    seconds: float  # since this part was started, or asked to end
    lines: tuple[str, ...] = ()  # the end of its log, if it is failing


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
    deaths: int = 0  # since it was last healthy for a while
    reason: str = ""  # of the last death
    died_at: str = ""
    last_lines: tuple[str, ...] = ()  # of its log, at the last death
    next_told: int = 1  # the death that is told next: those of one that keeps dying get rarer
    quiet: bool = False  # its last death was not told, so its next start is not either
    due: float = 0.0
    overdue: bool = False  # it did not become ready in time, and we killed it

    @property
    def is_failing(self) -> bool:
        """Whether the user must know: it is away after a death, or keeps dying."""
        return self.deaths >= KEEPS_DYING or (self.deaths > 0 and self.state != "ready")


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

    def failures(self) -> list[Failure]:
        """The parts that died and are not healthy again."""
        return [
            Failure(
                process=name,
                state=one.state,
                deaths=one.deaths,
                reason=one.reason,
                died_at=one.died_at,
                log=str(self._log(one)),
                lines=one.last_lines,
            )
            for name, one in self.running.items()
            if one.is_failing
        ]

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
        one.state, one.since, one.overdue = "starting", self._clock(), False
        try:
            one.child = Child(one.part.command, self._log(one))
        except OSError as error:  # no memory for a process, or no room for its log
            self._retry(one, f"not being started: {error}")
            return
        self._tell_of_start(one, Happening(one.part.name, "starting", f"pid {one.child.pid}", 0.0))

    def _watch(self, one: Running) -> None:
        assert one.child is not None
        code = one.child.exit_code()
        elapsed = self._clock() - one.since
        if code is not None:
            self._bury(one, one.child, code)
        elif one.state == "ready":
            if one.deaths and elapsed >= self._policy.healthy:
                self._recover(one, elapsed)
        elif (address := one.part.ready(one.child.pid)) is not None:
            one.state, one.since, one.address = "ready", self._clock(), address
            one.was_ready = True
            self._tell_of_start(one, Happening(one.part.name, "ready", address, elapsed))
            self._hasten(one.part.name)
        elif elapsed > one.part.patience:
            one.overdue = True
            one.child.kill()  # its death is seen at the next tick

    def _bury(self, one: Running, child: Child, code: int) -> None:
        name, lived = one.part.name, self._clock() - one.since
        child.kill()  # what it left behind must not stand in its successor's way
        child.release()
        if code == 0 and one.part.may_finish:
            one.state, one.deaths = "ended", 0
            self._tell(Happening(name, "ended", "", lived))
            return
        # Without what it needs it cannot start: that is no mistake of the user's.
        if code in (1, 2) and not one.was_ready and self._has_what_it_needs(one):
            one.state = "ended"
            # A full disk keeps it from saying why.
            words = child.words() or describe_exit(code) + self._full_disk()
            raise StartFailed(f"cannot start {name}: {words}")
        self._retry(one, _cause(one, code) + self._full_disk())

    def _retry(self, one: Running, reason: str) -> None:
        """Count a death and set the time of the next start; GaveUp if the policy says so."""
        now, policy = self._clock(), self._policy
        if one.state == "ready" and now - one.since >= policy.healthy:
            one.deaths, one.next_told = 0, 1
        lived, one.since = now - one.since, now
        one.deaths, one.reason, one.died_at = one.deaths + 1, reason, _utc_now()
        one.last_lines = tuple(line[:_LINE] for line in logfile.tail(self._log(one), _LINES))
        if policy.give_up and one.deaths >= policy.deaths:
            one.state = "ended"
            raise self._gave_up(one)
        pause = min(policy.backoff * 2 ** min(one.deaths - 1, 16), policy.longest_backoff)
        one.state, one.due, one.restarts = "restarting", now + pause, one.restarts + 1
        self._tell_of_death(one, lived, pause)

    def _tell_of_death(self, one: Running, lived: float, pause: float) -> None:
        one.quiet = one.deaths < one.next_told
        if one.quiet:
            return
        name, keeps = one.part.name, one.deaths >= KEEPS_DYING
        one.next_told = 2 * one.deaths if keeps else one.deaths + 1
        text = f"{one.reason}; starting it again in {pause:.1f} s"
        if not keeps:
            self._tell(Happening(name, "died", text, lived))
            return
        text = (
            f"{one.deaths} times, last by {text}, and so on without end; the others go on. "
            f"{self._log(one)} ends with"
        )
        self._tell(Happening(name, "failing", text, lived, one.last_lines))

    def _tell_of_start(self, one: Running, happening: Happening) -> None:
        if not one.quiet:
            self._tell(happening)

    def _recover(self, one: Running, elapsed: float) -> None:
        if one.deaths >= KEEPS_DYING:
            text = f"after {one.deaths} deaths"
            self._tell(Happening(one.part.name, "recovered", text, elapsed))
        one.deaths, one.next_told, one.quiet = 0, 1, False

    def _hasten(self, name: str) -> None:
        """Start at once what needs this part: its absence may be why they died."""
        for one in self.running.values():
            if one.state == "restarting" and name in one.part.needs:
                one.due = self._clock()

    def _full_disk(self) -> str:
        """The likely cause, where a full disk kept the part from logging it."""
        try:
            free = shutil.disk_usage(self._logs).free
        except OSError:
            return ""
        return f" (the disk of {self._logs.parent} is full)" if free < FULL else ""

    def _gave_up(self, one: Running) -> GaveUp:
        name, log = one.part.name, self._log(one)
        last = "\n".join(f"  {line}" for line in logfile.tail(log, TAIL))
        return GaveUp(
            f"{name} does not stay up: it died {one.deaths} times, last by {one.reason}",
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


def _utc_now() -> str:
    return f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"
