"""The display of a run on a terminal: spinners during the start, then one live screen."""

from __future__ import annotations

import time
from collections import deque
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from millstream.supervise.plain_output import describe_event
from millstream.supervise.status_tables import (
    analyze_section,
    collect_section,
    failure_lines,
    grid,
    milliseconds,
    missing_report,
    state_text,
    tier_row,
    warning_lines,
)
from millstream.supervise.supervisor import ProcessEvent, SupervisedProcess, Supervisor

START_EVERY, SCREEN_EVERY = 0.1, 0.5  # seconds between two updates
_STYLES = {
    "ready": "green",
    "recovered": "green",
    "died": "red",
    "killed": "red",
    "failing": "bold red",
}


class TerminalScreen:
    """Spinners in place during the start, the alternate screen while all run, lines at the end."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console()
        self._start = time.monotonic()
        self._live: Live | None = None
        self._due = 0.0
        self._recent: deque[Text] = deque(maxlen=6)
        self._lines: list[str] = []
        self._spinners: dict[str, Spinner] = {}
        self._took: dict[str, float] = {}  # seconds until a process was ready

    def step(self, text: str) -> None:
        self._print(Text(text))

    def process_event(self, event: ProcessEvent) -> None:
        if event.kind == "ready":
            self._took[event.process] = event.seconds
        style = _STYLES.get(event.kind, "dim")
        line = Text(f"{event.process:<10} ").append(describe_event(event), style=style)
        self._recent.append(self._stamped(line))
        # The live display shows the rest; only problems get a line of their own.
        if self._live is None or event.kind in ("died", "failing", "killed"):
            self._print(line)
            for each in event.lines:
                self._print(Text(f"{event.process:<10} | {each}", style="dim"))

    def ready(self, supervisor: Supervisor, lines: list[str]) -> None:
        if self._live is not None:
            self._live.update(self._start_table(supervisor.processes), refresh=True)
        self._lines = lines
        self._stop_live()
        for line in lines:
            self._print(Text(line, style="bold"))
        self._live = Live(console=self._console, screen=True, auto_refresh=False)
        self._live.start()

    def tick(self, supervisor: Supervisor, system: dict[str, Any] | None) -> None:
        now = time.monotonic()
        if now < self._due:
            return
        self._due = now + (SCREEN_EVERY if self._lines else START_EVERY)
        if self._live is None:
            self._live = Live(console=self._console, auto_refresh=False)
            self._live.start()
        if self._lines:
            self._live.update(self._screen(supervisor, system), refresh=True)
        else:
            self._live.update(self._start_table(supervisor.processes), refresh=True)

    def close(self) -> None:
        self._stop_live()
        self._lines = []

    def _stop_live(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _print(self, line: Text) -> None:
        self._console.print(self._stamped(line), highlight=False)

    def _stamped(self, line: Text) -> Text:
        return Text(f"{time.monotonic() - self._start:6.1f} s  ", style="dim").append(line)

    def _start_table(self, processes: dict[str, SupervisedProcess]) -> Table:
        table = Table.grid(padding=(0, 2))
        for name, process in processes.items():
            seconds = f"{time.monotonic() - process.since:.0f} s" if process.since else ""
            match process.state:
                case "ready":
                    took = Text(f"{process.address} after {self._took.get(name, 0.0):.1f} s")
                    row: tuple[RenderableType, ...] = (Text("✓", "green"), name, took)
                case "waiting":
                    awaited = ", ".join(process.spec.depends_on)
                    row = ("·", Text(name, "dim"), Text(f"waits for {awaited}", "dim"))
                case _:
                    spinner = self._spinners.setdefault(name, Spinner("dots"))
                    row = (spinner, name, Text(f"{process.state} {seconds}", "yellow"))
            table.add_row(*row)
        return table

    def _screen(self, supervisor: Supervisor, system: dict[str, Any] | None) -> RenderableType:
        parts: list[RenderableType] = [processes_table(supervisor.processes, system), ""]
        if failures := supervisor.failures():
            parts += [*failure_lines(failures), ""]
        if system is None:
            parts.append(Text("serve does not answer: no metrics", style="yellow"))
        else:
            parts += [*collect_section(system), *analyze_section(system)]
            end_to_end = milliseconds(system.get("end_to_end_ms"))
            parts.append(Text(f"end to end {end_to_end} (p50 / p99)", style="bold"))
            parts += warning_lines(system)
        parts += ["", *self._recent]
        title = f"millstream · up {_clock_time(time.monotonic() - self._start)}"
        hint = " · ".join([*self._lines[:1], "Ctrl-C ends all"]).removeprefix("all ready: ")
        return Panel(Group(*parts), title=title, subtitle=hint, border_style="dim", padding=(1, 2))


def processes_table(
    processes: dict[str, SupervisedProcess], system: dict[str, Any] | None
) -> Table:
    """Each process: its state, address, metrics and restarts."""
    table = grid("process", "state", "address", ">pid", ">rate", ">p50 / p99", ">restarts")
    for name, process in processes.items():
        is_silent = process.state == "ready" and missing_report(system, name)
        speed, latency = tier_row(system, name)
        table.add_row(
            Text(name, style="bold"),
            state_text("silent" if is_silent else process.state),
            Text(process.address if ":" in process.address else ""),
            str(process.child.pid) if process.child else "",
            speed,
            latency,
            Text(str(process.restarts), style="red" if process.restarts else ""),
        )
    return table


def _clock_time(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}"
