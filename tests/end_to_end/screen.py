"""A browser that shows the dashboard, and a server whose views the tests write themselves."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import socket
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

import msgspec
from confluent_kafka import Producer
from playwright.async_api import (
    Browser,
    ConsoleMessage,
    Locator,
    Page,
    WebSocket,
    async_playwright,
    expect,
)

from millstream.log.settings import LogSettings
from millstream.log.topic_names import audit_topic, view_topic, views_topic
from millstream.pipeline.load import load
from millstream.pipeline.pipeline_topics import ensure_topics
from millstream.values.report import ProcessReport
from millstream.values.view_description import ViewColumn, ViewDescription

SECONDS = 120.0
_FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
_WINDOW = "struct<start:timestamp,end:timestamp>"
_PIPELINE = """
from millstream import App

app = App("{name}")
app.stream("rsvps", schema="id LONG NOT NULL, city STRING, mtime TIMESTAMP", key="id")
app.view("by_city", key=["city"], sql="SELECT city, count(*) AS n FROM rsvps GROUP BY 1")
app.view("by_id", key=["id"], sql="SELECT id, count(*) AS n FROM rsvps GROUP BY 1")
app.view("newest", sql="SELECT id, city, 0.5D AS lat, 0.5D AS lon FROM rsvps")
app.view(
    "trending",
    key=["window", "city"],
    sql="SELECT window(mtime, '1 hour') AS window, city, count(*) AS n FROM rsvps GROUP BY 1, 2",
)
"""


async def until(condition: Callable[[], Awaitable[Any]], what: str) -> None:
    """Wait for a condition that no locator can express."""
    deadline = time.monotonic() + SECONDS
    while not await condition():
        assert time.monotonic() < deadline, f"{what} did not come"
        await asyncio.sleep(0.05)


class Screen:
    """One page of the dashboard, and all that went over its wire."""

    def __init__(self, page: Page, url: str) -> None:
        self.page = page
        self.url = url
        self.sent: list[dict[str, Any]] = []
        self.received: list[dict[str, Any]] = []
        self.requests: list[str] = []
        self.complaints: list[str] = []
        page.on("websocket", self._listen)
        page.on("request", lambda request: self.requests.append(request.url))
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("console", self._record_error)

    async def open(self) -> None:
        """Load the page, or load it again; what went over the wire before is forgotten."""
        self.sent.clear()
        self.received.clear()
        await self.page.goto(self.url)

    def rows(self, view: str) -> Locator:
        return self.page.locator(f"[data-view={view}] .rows tbody tr")

    async def filter(self, view: str, where: str) -> None:
        box = self.page.locator(f"#where-{view}")
        await box.fill(where)
        await box.press("Enter")

    def got(self, kind: str, view: str) -> list[dict[str, Any]]:
        ids = {message["id"] for message in self.asked(view)}
        return [m for m in self.received if m["type"] == kind and m.get("id") in ids]

    def asked(self, view: str) -> list[dict[str, Any]]:
        return [m for m in self.sent if m["type"] == "subscribe" and m["view"] == view]

    async def stored(self, app: str, view: str) -> str | None:
        """The position that the browser keeps for the view."""
        position: str | None = await self.page.evaluate(
            """(name) => new Promise((resolve, reject) => {
                const opening = indexedDB.open("millstream");
                opening.onerror = () => reject(opening.error);
                opening.onsuccess = () => {
                    const database = opening.result;
                    const asked = database.transaction("views").objectStore("views").get(name);
                    asked.onsuccess = () => resolve(asked.result?.position ?? null);
                    asked.onerror = () => reject(asked.error);
                    database.close();
                };
            })""",
            f"{app}/{view}",
        )
        return position

    def strangers(self) -> list[str]:
        """Requests to anywhere but the server."""
        home = urlsplit(self.url).netloc
        return [url for url in self.requests if urlsplit(url).netloc != home]

    def _record_error(self, line: ConsoleMessage) -> None:
        if line.type == "error":
            self.complaints.append(line.text)

    def _listen(self, connection: WebSocket) -> None:
        self.requests.append(connection.url)
        connection.on("framesent", lambda text: self.sent.append(json.loads(text)))
        connection.on("framereceived", lambda text: self.received.append(json.loads(text)))


@contextlib.asynccontextmanager
async def chromium() -> AsyncIterator[Browser]:
    """A browser; starting it takes longer than most of what is tested with it."""
    expect.set_options(timeout=SECONDS * 1000)
    program = shutil.which("chromium") or shutil.which("chromium-browser")
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=program, args=_FLAGS)
        yield browser
        await browser.close()


@contextlib.asynccontextmanager
async def screen(browser: Browser, url: str) -> AsyncIterator[Screen]:
    """The dashboard at `url`, in a profile of its own: nothing is stored there yet."""
    async with await browser.new_context(viewport={"width": 1440, "height": 900}) as profile:
        shown = Screen(await profile.new_page(), url)
        shown.page.set_default_timeout(SECONDS * 1000)
        await shown.open()
        yield shown


class Stage:
    """An app whose result records are written here, and `millstream serve` over them."""

    def __init__(self, name: str, log: LogSettings, folder: Path) -> None:
        self.name = name
        self._log = log
        self._folder = folder
        self.home = folder / "home"
        self._path = folder / "pipeline.py"
        self._path.write_text(_PIPELINE.format(name=name))
        ensure_topics(load(self._path), log)
        self._producer = Producer({"bootstrap.servers": log.bootstrap, "linger.ms": 0})
        self._revisions = self._numbers()
        self._describe("by_city", ["city"], city="string", n="bigint")
        self._describe("by_id", ["id"], id="bigint", n="bigint")
        self._describe("newest", None, id="bigint", city="string", lat="double", lon="double")
        self._describe("trending", ["window", "city"], window=_WINDOW, city="string", n="bigint")
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._port = free.getsockname()[1]

    def put(self, view: str, key: list[str], **row: Any) -> None:
        """Write a row of a table."""
        lineage = {"_revision": next(self._revisions), "_received_at": _stamp()}
        self._produce(view, json.dumps([row[name] for name in key]), {**row, **lineage})

    def append(self, view: str, **row: Any) -> None:
        """Write a row of a view without key."""
        place = {"source": "rsvps", "partition": 0, "offset": next(self._revisions), "row": 0}
        self._produce(view, "rsvps/0", {**row, "_position": place, "_received_at": _stamp()})

    def report(self, tier: Literal["collect", "analyze"] = "analyze", **told: Any) -> None:
        """Say what that tier would; it counts as alive for a minute, however slow the test is."""
        now = time.time_ns() // 1_000_000
        report = ProcessReport(tier, "test", now + 60_000, now, **told)
        self._producer.produce(audit_topic(self.name), msgspec.json.encode(report))
        assert self._producer.flush(10) == 0

    @contextlib.asynccontextmanager
    async def serving(self, *settings: str) -> AsyncIterator[str]:
        """The address of a server process, always the same; it is killed at the end."""
        flags = [f"log.bootstrap={self._log.bootstrap}", *settings]
        with (self._folder / "serve.log").open("ab") as errors:
            process = await asyncio.create_subprocess_exec(
                *[sys.executable, "-m", "millstream", "serve", str(self._path)],
                *["--home", str(self.home), "--serve-port", str(self._port)],
                *[part for flag in flags for part in ("--set", flag)],
                stdout=asyncio.subprocess.PIPE,
                stderr=errors,
            )
        try:
            assert process.stdout is not None
            line = await asyncio.wait_for(process.stdout.readline(), SECONDS)
            assert b"ready on" in line, (self._folder / "serve.log").read_text()
            yield line.decode().split()[-1]
        finally:
            if process.returncode is None:
                process.kill()
            await process.communicate()

    def _describe(self, view: str, key: list[str] | None, **columns: str) -> None:
        description = ViewDescription(
            name=view,
            inputs=["rsvps"],
            key=key,
            columns=[ViewColumn(name, type_) for name, type_ in columns.items()],
            mode="real_time",
            reason="every operator runs in real-time mode",
            guarantee="exactly once",
            lineage="revision" if key else "position",
            generation="1",
            window="window" if "window" in columns else None,
        )
        self._producer.produce(views_topic(self.name), msgspec.json.encode(description), view)
        assert self._producer.flush(10) == 0

    def _produce(self, view: str, key: str, row: dict[str, Any]) -> None:
        self._producer.produce(view_topic(self.name, view), json.dumps(row), key)
        assert self._producer.flush(10) == 0

    @staticmethod
    def _numbers() -> Iterator[int]:
        number = 0
        while True:
            yield (number := number + 1)


def _stamp() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S.000000Z", time.gmtime())
