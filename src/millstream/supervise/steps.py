"""The start-up, the figures and the end as plain lines: for files, CI and `--plain`."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any, Protocol, TextIO

from millstream.supervise.supervisor import Happening, Supervisor
from millstream.supervise.tables import one_line


class Show(Protocol):
    """What the user sees of a run. Nothing here may block."""

    def step(self, text: str) -> None:
        """Something that `run` itself does before the parts start."""

    def happened(self, happening: Happening) -> None: ...

    def ready(self, supervisor: Supervisor, lines: list[str]) -> None:
        """All parts are ready for the first time; `lines` say where to look."""

    def tick(self, supervisor: Supervisor, system: dict[str, Any] | None) -> None:
        """Called often while the system runs."""

    def close(self) -> None:
        """The run ends; what happens from now on must still be seen."""


def sentence(happening: Happening) -> str:
    """`ready on http://127.0.0.1:8400 after 1.2 s`."""
    text, seconds = happening.text, f"{happening.seconds:.1f} s"
    match happening.kind:
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
            return f"{happening.kind} after {seconds}"
    return f"{happening.kind} ({text})"


class PlainShow:
    """One line per happening, with the seconds since the start; a status line every 10 s."""

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

    def happened(self, happening: Happening) -> None:
        self.step(f"{happening.part:<10} {sentence(happening)}")
        for line in happening.lines:
            self.step(f"{happening.part:<10} | {line}")

    def ready(self, supervisor: Supervisor, lines: list[str]) -> None:
        for line in lines:
            self.step(line)
        self._due = self._clock() + self._every

    def tick(self, supervisor: Supervisor, system: dict[str, Any] | None) -> None:
        if self._clock() >= self._due:
            self._due = self._clock() + self._every
            restarts = sum(one.restarts for one in supervisor.running.values())
            self.step(one_line(system, restarts, supervisor.failures()))

    def close(self) -> None:
        self._due = float("inf")
