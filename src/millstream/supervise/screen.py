"""The same on a terminal: steps with spinners, then one live screen."""

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

from millstream.supervise.steps import sentence
from millstream.supervise.supervisor import Happening, Running, Supervisor
from millstream.supervise.tables import (
    analyze_parts,
    collect_parts,
    failing_parts,
    grid,
    milliseconds,
    silence,
    state_text,
    tier_row,
)

STEPS_EVERY, SCREEN_EVERY = 0.1, 0.5
_STYLES = {
    **{"ready": "green", "recovered": "green"},
    **{"died": "red", "killed": "red", "failing": "bold red"},
}


class TerminalShow:
    """In place while parts start, on the alternate screen while all run, and lines at the end."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console()
        self._start = time.monotonic()
        self._live: Live | None = None
        self._due = 0.0
        self._recent: deque[Text] = deque(maxlen=6)
        self._lines: list[str] = []
        self._spinners: dict[str, Spinner] = {}
        self._took: dict[str, float] = {}  # seconds until a part was ready

    def step(self, text: str) -> None:
        self._print(Text(text))

    def happened(self, happening: Happening) -> None:
        if happening.kind == "ready":
            self._took[happening.part] = happening.seconds
        style = _STYLES.get(happening.kind, "dim")
        line = Text(f"{happening.part:<10} ").append(sentence(happening), style=style)
        self._recent.append(self._stamped(line))
        # While parts start, the picture says it; only what went wrong deserves a line of its own.
        if self._live is None or happening.kind in ("died", "failing", "killed"):
            self._print(line)
            for each in happening.lines:
                self._print(Text(f"{happening.part:<10} | {each}", style="dim"))

    def ready(self, supervisor: Supervisor, lines: list[str]) -> None:
        if self._live is not None:
            self._live.update(self._steps(supervisor.running), refresh=True)
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
        self._due = now + (SCREEN_EVERY if self._lines else STEPS_EVERY)
        if self._live is None:
            self._live = Live(console=self._console, auto_refresh=False)
            self._live.start()
        picture = (
            self._screen(supervisor, system) if self._lines else self._steps(supervisor.running)
        )
        self._live.update(picture, refresh=True)

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

    def _steps(self, running: dict[str, Running]) -> Table:
        table = Table.grid(padding=(0, 2))
        for name, one in running.items():
            seconds = f"{time.monotonic() - one.since:.0f} s" if one.since else ""
            match one.state:
                case "ready":
                    took = Text(f"{one.address} after {self._took.get(name, 0.0):.1f} s")
                    row: tuple[RenderableType, ...] = (Text("✓", "green"), name, took)
                case "waiting":
                    row = ("·", Text(name, "dim"), Text(f"waits for {_names(one)}", "dim"))
                case _:
                    spinner = self._spinners.setdefault(name, Spinner("dots"))
                    row = (spinner, name, Text(f"{one.state} {seconds}", "yellow"))
            table.add_row(*row)
        return table

    def _screen(self, supervisor: Supervisor, system: dict[str, Any] | None) -> RenderableType:
        parts: list[RenderableType] = [parts_table(supervisor.running, system), ""]
        if failures := supervisor.failures():
            parts += [*failing_parts(failures), ""]
        if system is None:
            parts.append(Text("serve does not answer: no figures", style="yellow"))
        else:
            parts += [*collect_parts(system), *analyze_parts(system)]
            end_to_end = milliseconds(system.get("end_to_end_ms"))
            parts.append(Text(f"end to end {end_to_end} (p50 / p99)", style="bold"))
        parts += ["", *self._recent]
        title = f"millstream · up {_clock_time(time.monotonic() - self._start)}"
        hint = " · ".join([*self._lines[:1], "Ctrl-C ends all"]).removeprefix("all ready: ")
        return Panel(Group(*parts), title=title, subtitle=hint, border_style="dim", padding=(1, 2))


def parts_table(running: dict[str, Running], system: dict[str, Any] | None) -> Table:
    """Each process: its state, address, figures and restarts."""
    table = grid("process", "state", "address", ">pid", ">rate", ">p50 / p99", ">restarts")
    for name, one in running.items():
        speed, latency = tier_row(system, name)
        table.add_row(
            Text(name, style="bold"),
            state_text("silent" if one.state == "ready" and silence(system, name) else one.state),
            Text(one.address if ":" in one.address else ""),
            str(one.child.pid) if one.child else "",
            speed,
            latency,
            Text(str(one.restarts), style="red" if one.restarts else ""),
        )
    return table


def _names(one: Running) -> str:
    return ", ".join(one.part.needs)


def _clock_time(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}"
