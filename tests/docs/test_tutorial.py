"""docs/tutorial.md: its commands give the output that the page shows, and its test passes."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.docs.pages import read, snippets
from tests.end_to_end.conftest import StartSystem, System

from millstream.cli.group import millstream

PAGE = read("docs/tutorial.md")
FIRST, ADDED, TEST = (code for _, code in snippets(PAGE))
[ORDERS] = re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)


def _commands(text: str) -> list[tuple[str, str]]:
    """Each command in the console blocks, and the output that the page shows for it."""
    return [
        (command, output)
        for block in re.findall(r"```console\n(.*?)```", text, re.DOTALL)
        for command, output in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", block, re.MULTILINE)
    ]


class Terminal:
    """A terminal in the folder of the system: `millstream` and the ports are the system's."""

    def __init__(self, system: System) -> None:
        self._system = system
        self._variables: dict[str, str] = {}

    def type(self, command: str) -> str:
        """Run a command and return what it shows, without colours."""
        for port, url in ((8400, self._system.collect_url), (8500, self._system.serve_url)):
            command = command.replace(f"http://127.0.0.1:{port}", url)
        if assigned := re.fullmatch(r"(\w+)=\$\((.*)\)", command):
            self._variables[assigned[1]] = self.type(assigned[2]).strip()
            return ""
        shown = self._run(command) if "millstream" not in command else self._on_a_terminal(command)
        plain = re.sub(r"\x1b\[[?\d;]*[A-Za-z]|\r", "", shown)
        return re.sub(r"^━+ +\d+/\d+ bytes.*\n", "", plain, flags=re.MULTILINE)  # a progress bar

    def _on_a_terminal(self, command: str) -> str:
        command = re.sub(r"\bmillstream\b", f"{sys.executable} -m millstream", command)
        for name, value in self._variables.items():
            command = command.replace(f"${name}", value)
        return self._run(f"script -qec {_quoted(command)} /dev/null")

    def _run(self, command: str) -> str:
        done = subprocess.run(
            ["bash", "-c", command],
            capture_output=True,
            text=True,
            timeout=60,
            cwd=self._system.pipeline.parent,
            env={
                **self._system.environment(),
                **{"COLUMNS": "160", "MILLSTREAM_HOME": str(self._system.home.path)},
            },
        )
        return done.stdout


def _quoted(command: str) -> str:
    return "'" + command.replace("'", "'\\''") + "'"


def _pattern(expected: str) -> re.Pattern[str]:
    """The page's output, in which … is anything."""
    parts = map(re.escape, expected.strip().split("…"))
    return re.compile(".*?".join(parts).replace(r"\ \n", r"\s*\n"), re.DOTALL)


def _check(system: System, commands: list[tuple[str, str]]) -> None:
    terminal = Terminal(system)
    for command, expected in commands:
        pattern, shown = _pattern(expected), ""

        def agrees(command: str = command, pattern: re.Pattern[str] = pattern) -> bool:
            nonlocal shown
            shown = "\n".join(line.rstrip() for line in terminal.type(command).splitlines())
            return pattern.fullmatch(shown.strip()) is not None

        if "8400" in command or " send " in command:  # sent once, whatever it shows
            assert agrees(), f"{command}\n{shown}"
            continue
        try:
            system.until(agrees, 60)
        except pytest.fail.Exception:
            pytest.fail(f"{command}\nshows\n{shown}\ninstead of\n{expected}")


def test_every_command_shows_what_the_page_shows(start_system: StartSystem) -> None:
    before, _, after = PAGE.partition("## 8. ")
    assert (len(_commands(before)), len(_commands(after))) == (9, 3)
    with start_system(FIRST, files={"orders.ndjson": ORDERS}) as system:
        _check(system, _commands(before))
    with start_system(f"{FIRST}\n\n{ADDED}", home=system.home.path) as system:
        _check(system, _commands(after))


@pytest.mark.usefixtures("spark")
def test_the_test_of_the_tutorial_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "shop.py").write_text(FIRST, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    names: dict[str, Callable[[], None]] = {}
    exec(TEST, names)
    names["test_orders_are_counted_by_city"]()


def test_every_command_of_the_tutorial_exists() -> None:
    used = set(re.findall(r"^(?:\$ )?millstream (\w+)", PAGE, re.MULTILINE))
    assert {"doctor", "plan", "run", "send", "query"} <= used <= set(millstream.commands)
