"""The display of a run as plain lines: for files, CI and `--plain`."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any, Protocol, TextIO

from millstream.supervise.status_tables import status_line
from millstream.supervise.supervisor import ProcessEvent, Supervisor


class Display(Protocol):
    """Shows a run to the user. Nothing here may block."""

    def step(self, text: str) -> None:
        """Show what `run` itself does before the processes start."""

    def process_event(self, event: ProcessEvent) -> None:
        """Show that a process started, is ready, died or ended."""

    def ready(self, supervisor: Supervisor, lines: list[str]) -> None:
        """All processes are ready for the first time; show `lines`, which name the addresses."""

    def tick(self, supervisor: Supervisor, system: dict[str, Any] | None) -> None:
        """Called often while the system runs, with the newest metrics."""

    def close(self) -> None:
        """The run ends; later events must still be shown."""


def describe_event(event: ProcessEvent) -> str:
    """`ready on http://127.0.0.1:8400 after 1.2 s`."""
    text, seconds = event.text, f"{event.seconds:.1f} s"
    match event.kind:
        case "ready":
            where = f"on {text}" if ":" in text else f"({text})"
            return f"ready {where} after {seconds}"
        case "died":
            return f"died after {seconds} by {text}"
        case "failing":
            return f"KEEPS DYING: {text}"
        case "recovered":
            return f"stays up again for {seconds}, {text}"
        case "ended" | "killed":
            return f"{event.kind} after {seconds}"
    return f"{event.kind} ({text})"


class PlainOutput:
    """One line per event, with the seconds since the start; a status line every 10 s."""

    def __init__(
        self,
        out: TextIO | None = None,
        every: float = 10.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._out = out or sys.stdout
        self._every = every
        self._clock = clock
        self._start = clock()
        self._due = float("inf")

    def step(self, text: str) -> None:
        print(f"{self._clock() - self._start:7.1f} s  {text}", file=self._out, flush=True)

    def process_event(self, event: ProcessEvent) -> None:
        self.step(f"{event.process:<10} {describe_event(event)}")
        for line in event.lines:
            self.step(f"{event.process:<10} | {line}")

    def ready(self, supervisor: Supervisor, lines: list[str]) -> None:
        for line in lines:
            self.step(line)
        self._due = self._clock() + self._every

    def tick(self, supervisor: Supervisor, system: dict[str, Any] | None) -> None:
        if self._clock() >= self._due:
            self._due = self._clock() + self._every
            restarts = sum(process.restarts for process in supervisor.processes.values())
            self.step(status_line(system, restarts, supervisor.failures()))

    def close(self) -> None:
        self._due = float("inf")
