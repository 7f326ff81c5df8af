"""A collector process as users start it, with API keys."""

from __future__ import annotations

import contextlib
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from millstream.runtime.home import Home
from millstream.web.auth.api_keys import ApiKeyFile

PIPELINE = """
from millstream import App, WebSocketSource

app = App("{name}")
app.stream("clicks", schema="id LONG, name STRING, price DOUBLE, at TIMESTAMP", key="id",
           event_time="at")
app.stream("notes", schema="text STRING NOT NULL")
app.stream("ticks", schema="id LONG NOT NULL", delivery="at_most_once")
app.stream("pulled", schema="id LONG",
           source=WebSocketSource("ws://reader:hunter2@127.0.0.1:1/x?token=sesame"))
"""


@dataclass
class CollectorProcess:
    """A running collector."""

    process: subprocess.Popen[str]
    home: Path
    url: str
    keys: ApiKeyFile
    lines: list[str] = field(default_factory=list)
    at_start: int = 0  # bytes of memory

    def __post_init__(self) -> None:
        self.at_start = self.resident()

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def http(self, key: str = "") -> httpx.Client:
        headers = {"authorization": f"Bearer {key}"} if key else {}
        return httpx.Client(base_url=self.url, timeout=30.0, headers=headers, verify=False)

    def resident(self) -> int:
        """Its resident memory in bytes."""
        pages = Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")

    def printed(self) -> str:
        """Everything it has printed and logged."""
        return "".join(self.lines)


@contextlib.contextmanager
def collector_process(folder: Path, name: str, bootstrap: str) -> Iterator[CollectorProcess]:
    """Start a collector, wait until it is ready, and stop it at the end."""
    pipeline, home = folder / "pipeline.py", folder / "home"
    pipeline.write_text(PIPELINE.format(name=name))
    toml = f'[log]\nbootstrap = "{bootstrap}"\n[collect]\nauth = ["key"]\nmax_events = 1000\n'
    more = "max_line = 2000\nmax_depth = 50\nrate_burst = 1\n[output]\nlevel = 'debug'\n"
    (folder / "millstream.toml").write_text(toml + more)
    command = [sys.executable, "-P", "-m", "millstream", "collect", str(pipeline)]
    with subprocess.Popen(
        [*command, "--home", str(home), "--collect-port", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        lines: list[str] = []
        ready: queue.Queue[str] = queue.Queue()

        def read() -> None:
            assert process.stdout is not None
            for line in process.stdout:
                lines.append(line)
                if line.startswith("collect ready on "):
                    ready.put(line.split()[-1])
            ready.put("")

        thread = threading.Thread(target=read)
        thread.start()
        try:
            url = ready.get(timeout=90)
            assert url, "".join(lines)
            yield CollectorProcess(process, home, url, ApiKeyFile(Home(home).keys), lines)
        finally:
            process.terminate()
            process.wait(30)
            thread.join(30)
