"""Starts processes when their dependencies are ready, and restarts those that die."""

from __future__ import annotations

import shutil
import signal
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
from millstream.supervise.process_spec import ProcessSpec, RestartPolicy

State = Literal["waiting", "starting", "ready", "restarting", "ended"]
TAIL_LINES = 20
UNKILLABLE_SECONDS = 5.0
KEEPS_DYING = 3  # deaths in a row after which the user is warned
FULL_DISK_BYTES = 1 << 20  # less is free on a full disk
_FAILURE_LINES, _LINE_CHARACTERS = 10, 300  # of a log, in a failure report
_LOG_CHECK_SECONDS = 5


@dataclass(frozen=True, slots=True)
class ProcessEvent:
    """A process started, is ready, died, is ending, ended or was killed.

    `failing` is another death of a process that keeps dying; `recovered` means that it stays up.
    """

    process: str
    kind: Literal["starting", "ready", "died", "failing", "recovered", "ending", "ended", "killed"]
    text: str
    seconds: float  # since the process was started, or asked to stop
    lines: tuple[str, ...] = ()  # the end of its log, if it is failing


@dataclass(slots=True)
class SupervisedProcess:
    """A process and its current state."""

    spec: ProcessSpec
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
    next_reported: int = 1  # the death that is reported next; repeated deaths are reported rarely
    quiet: bool = False  # its last death was not reported, so its next start is not either
    due: float = 0.0  # time of the next start
    overdue: bool = False  # it was not ready in time, and the supervisor killed it

    @property
    def is_failing(self) -> bool:
        """Whether the user must know: it is down after a death, or keeps dying."""
        return self.deaths >= KEEPS_DYING or (self.deaths > 0 and self.state != "ready")


class StartFailed(MillstreamError):
    """A process ended with a user's error before it was ever ready."""


class GaveUp(MachineError):
    """A process does not stay up."""


class Supervisor:
    """Call `tick` often (it does not block), and `stop` at the end (it blocks for seconds)."""

    def __init__(
        self,
        specs: Iterable[ProcessSpec],
        logs: Path,
        report: Callable[[ProcessEvent], None],
        policy: RestartPolicy | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.processes = {spec.name: SupervisedProcess(spec) for spec in specs}
        self._logs = logs
        self._report = report
        self._policy = policy or RestartPolicy()
        self._clock = clock
        self._next_log_check = 0.0

    @property
    def all_ready(self) -> bool:
        return all(process.state in ("ready", "ended") for process in self.processes.values())

    def failures(self) -> list[Failure]:
        """The processes that died and are not healthy again."""
        return [
            Failure(
                process=name,
                state=process.state,
                deaths=process.deaths,
                reason=process.reason,
                died_at=process.died_at,
                log=str(self._log(process)),
                lines=process.last_lines,
            )
            for name, process in self.processes.items()
            if process.is_failing
        ]

    def tick(self) -> None:
        """Check every process once; StartFailed or GaveUp if the run cannot go on."""
        for process in self.processes.values():
            match process.state:
                case "waiting" if self._dependencies_ready(process):
                    self._start(process)
                case "restarting" if self._clock() >= process.due:
                    self._start(process)
                case "starting" | "ready":
                    self._check(process)
        if self._clock() >= self._next_log_check:
            self._next_log_check = self._clock() + _LOG_CHECK_SECONDS
            for process in self.processes.values():
                logfile.rotate(self._log(process))

    def stop(self, hurry: Callable[[], bool] = lambda: False, *, interrupted: bool = False) -> None:
        """Stop all, stage by stage; kill what is too slow, or all if `hurry` returns true.

        `interrupted`: somebody at a terminal waits, so nothing is drained.
        """
        by_stage = sorted(self.processes.values(), key=lambda process: process.spec.stop_stage)
        for _, stage in groupby(by_stage, key=lambda process: process.spec.stop_stage):
            self._stop_stage(list(stage), hurry, interrupted)

    def _dependencies_ready(self, process: SupervisedProcess) -> bool:
        return all(self.processes[name].state == "ready" for name in process.spec.depends_on)

    def _start(self, process: SupervisedProcess) -> None:
        process.state, process.since, process.overdue = "starting", self._clock(), False
        try:
            process.child = Child(process.spec.command, self._log(process))
        except OSError as error:  # no memory for a process, or no disk space for its log
            self._restart_later(process, f"not being started: {error}")
            return
        self._report_start(process, "starting", f"pid {process.child.pid}", 0.0)

    def _check(self, process: SupervisedProcess) -> None:
        assert process.child is not None
        code = process.child.exit_code()
        elapsed = self._clock() - process.since
        if code is not None:
            self._handle_exit(process, process.child, code)
        elif process.state == "ready":
            if process.deaths and elapsed >= self._policy.healthy:
                self._recover(process, elapsed)
        elif (address := process.spec.ready(process.child.pid)) is not None:
            process.state, process.since, process.address = "ready", self._clock(), address
            process.was_ready = True
            self._report_start(process, "ready", address, elapsed)
            self._restart_dependents_now(process.spec.name)
        elif elapsed > process.spec.start_timeout:
            process.overdue = True
            process.child.kill()  # the next tick sees its death

    def _handle_exit(self, process: SupervisedProcess, child: Child, code: int) -> None:
        name, lived = process.spec.name, self._clock() - process.since
        child.kill()  # its own children must not hold ports and locks that its successor needs
        child.reap()
        if code == 0 and process.spec.may_finish:
            process.state, process.deaths = "ended", 0
            self._report(ProcessEvent(name, "ended", "", lived))
            return
        # While a dependency is down it cannot start: that is no user's error.
        if code in (1, 2) and not process.was_ready and self._dependencies_ready(process):
            process.state = "ended"
            # On a full disk its log is empty.
            error = child.last_error() or describe_exit(code) + self._full_disk()
            raise StartFailed(f"cannot start {name}: {error}")
        self._restart_later(process, _cause(process, code) + self._full_disk())

    def _restart_later(self, process: SupervisedProcess, reason: str) -> None:
        """Count a death and set the time of the next start; GaveUp if the policy says so."""
        now, policy = self._clock(), self._policy
        if process.state == "ready" and now - process.since >= policy.healthy:
            process.deaths, process.next_reported = 0, 1
        lived, process.since = now - process.since, now
        process.deaths, process.reason = process.deaths + 1, reason
        process.died_at = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"
        lines = logfile.tail(self._log(process), _FAILURE_LINES)
        process.last_lines = tuple(line[:_LINE_CHARACTERS] for line in lines)
        if policy.give_up and process.deaths >= policy.deaths:
            process.state = "ended"
            raise self._gave_up(process)
        pause = min(policy.backoff * 2 ** min(process.deaths - 1, 16), policy.longest_backoff)
        process.state, process.due = "restarting", now + pause
        process.restarts += 1
        self._report_death(process, lived, pause)

    def _report_death(self, process: SupervisedProcess, lived: float, pause: float) -> None:
        process.quiet = process.deaths < process.next_reported
        if process.quiet:
            return
        name, keeps_dying = process.spec.name, process.deaths >= KEEPS_DYING
        process.next_reported = 2 * process.deaths if keeps_dying else process.deaths + 1
        text = f"{process.reason}; starting it again in {pause:.1f} s"
        if not keeps_dying:
            self._report(ProcessEvent(name, "died", text, lived))
            return
        text = (
            f"{process.deaths} times, last by {text}, and so on without end; the others go on. "
            f"{self._log(process)} ends with"
        )
        self._report(ProcessEvent(name, "failing", text, lived, process.last_lines))

    def _report_start(
        self,
        process: SupervisedProcess,
        kind: Literal["starting", "ready"],
        text: str,
        seconds: float,
    ) -> None:
        if not process.quiet:
            self._report(ProcessEvent(process.spec.name, kind, text, seconds))

    def _recover(self, process: SupervisedProcess, elapsed: float) -> None:
        if process.deaths >= KEEPS_DYING:
            text = f"after {process.deaths} deaths"
            self._report(ProcessEvent(process.spec.name, "recovered", text, elapsed))
        process.deaths, process.next_reported, process.quiet = 0, 1, False

    def _restart_dependents_now(self, name: str) -> None:
        """Restart without a pause what depends on this process: perhaps its death was the cause."""
        for process in self.processes.values():
            if process.state == "restarting" and name in process.spec.depends_on:
                process.due = self._clock()

    def _full_disk(self) -> str:
        """The likely cause if the disk is full: then the process could not log it."""
        try:
            free = shutil.disk_usage(self._logs).free
        except OSError:
            return ""
        return f" (the disk of {self._logs.parent} is full)" if free < FULL_DISK_BYTES else ""

    def _gave_up(self, process: SupervisedProcess) -> GaveUp:
        log = self._log(process)
        last = "\n".join(f"  {line}" for line in logfile.tail(log, TAIL_LINES))
        return GaveUp(
            f"{process.spec.name} does not stay up: it died {process.deaths} times, "
            f"last by {process.reason}",
            remedy=f"read {log}, which ends with\n{last}",
        )

    def _stop_stage(
        self, stage: list[SupervisedProcess], hurry: Callable[[], bool], interrupted: bool
    ) -> None:
        live = [
            (process, process.child)
            for process in stage
            if process.state in ("starting", "ready") and process.child is not None
        ]
        started = self._clock()
        for process, child in live:
            self._report(ProcessEvent(process.spec.name, "ending", f"pid {child.pid}", 0.0))
            is_quick = interrupted and process.spec.interruptible
            child.terminate(signal.SIGINT if is_quick else signal.SIGTERM)
        while live:
            elapsed = self._clock() - started
            for process, child in list(live):
                timeout = process.spec.stop_timeout
                is_late = elapsed > timeout or hurry()
                if is_late:
                    child.kill()
                # A process that cannot even be killed (a broken disk) must not block the others.
                if self._is_gone(child) or elapsed > timeout + UNKILLABLE_SECONDS:
                    process.state = "ended"
                    live.remove((process, child))
                    kind: Literal["killed", "ended"] = "killed" if is_late else "ended"
                    self._report(ProcessEvent(process.spec.name, kind, "", elapsed))
            time.sleep(0.02)

    @staticmethod
    def _is_gone(child: Child) -> bool:
        if child.exit_code() is None or child.group_members():
            return False
        child.reap()
        return True

    def _log(self, process: SupervisedProcess) -> Path:
        return self._logs / f"{process.spec.log or process.spec.name}.log"


def _cause(process: SupervisedProcess, code: int) -> str:
    if process.overdue:
        return f"the supervisor, not ready after {process.spec.start_timeout:.0f} s"
    return describe_exit(code)
