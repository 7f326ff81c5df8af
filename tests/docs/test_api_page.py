"""docs/reference/api.md and codes.md: every example runs, and nothing is missing."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import inspect
import itertools
import json
import os
import re
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from confluent_kafka import Producer
from picows import WSCloseCode
from tests.collect.conftest import collect
from tests.docs.pages import read
from tests.serve.pipeline import SECONDS, Pipeline
from tests.wait_until import until
from websockets.asyncio.client import connect

from millstream.collect.http import application as collect_http
from millstream.log.settings import LogSettings
from millstream.log.topic_names import audit_topic, ledger_topic
from millstream.pipeline.load import load
from millstream.serve import routes as serve_http
from millstream.serve import service
from millstream.serve.connections import ConnectionReport, SubscriptionReport
from millstream.serve.description.messages import (
    SENT,
    Poll,
    ProblemDetails,
    Query,
    Table,
    ViewRow,
    ViewRows,
)
from millstream.serve.transports import client_messages, connection, frames
from millstream.values.ledger_entry import LedgerEntry
from millstream.values.ledger_entry import encode as encode_entry
from millstream.values.report import ProcessReport, StreamCounts, ViewCounts

PAGE = read("docs/reference/api.md")
CODES = read("docs/reference/codes.md")
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", PAGE, re.DOTALL)
WINDOW = {"start": "2026-11-17T12:00:00.000000Z", "end": "2026-11-17T12:01:00.000000Z"}
CLOSED, SEEN = 1_794_917_100_000, 1_794_917_160_000  # 12:05 and 12:06 of that day
_SHOWN = re.compile(r'"op":"upsert","key":(\[.*?\]),"row":(\{"city".*?\})')
_END = b"\x1e"


@dataclass
class Place:
    """The servers that the page talks to, and the hand of `analyze`."""

    pipeline: Pipeline
    serve: str
    collect: str

    def local(self, text: str) -> str:
        """The page's text with the addresses of this test."""
        for port, url in ((8500, self.serve), (8400, self.collect)):
            text = text.replace(f"127.0.0.1:{port}", url.removeprefix("http://"))
        return text

    def plain(self, text: str) -> str:
        """What a program wrote, as it would with the page's pipeline."""
        return text.replace(self.pipeline.app.name, "meetup").replace("\r", "")

    def show(self, expected: str) -> None:
        """Write the row that the page shows next."""
        if (found := _SHOWN.search(expected)) is not None:
            row = json.loads(found[2])
            self.pipeline.put("by_city", json.loads(found[1]), row, row["n"])
            self.pipeline.flush()


@pytest.fixture
async def place(log_settings: LogSettings, app_name: str, tmp_path: Path) -> AsyncIterator[Place]:
    file = tmp_path / "pipeline.py"
    code = next(text for kind, text in BLOCKS if kind == "python")
    file.write_text(code.replace('"meetup"', f'"{app_name}"'), encoding="utf-8")
    pipeline = Pipeline(app_name, log_settings, load(file))
    fill(pipeline)
    async with (
        pipeline.server() as server,
        collect(pipeline.app, log_settings, tmp_path / "home") as collector,
    ):
        views, queries = server.context.views, server.context.queries.served
        await until(lambda: views["per_minute"].watermark == CLOSED)
        await until(lambda: queries["top_cities"].columns)
        yield Place(pipeline, server.url, collector.url)


def fill(pipeline: Pipeline) -> None:
    """What the page's examples find."""
    pipeline.count("Berlin", 2)
    pipeline.count("Köln", 1)
    pipeline.put("per_minute", [WINDOW], {"window": WINDOW, "n": 3, "_state": "final"}, 3)
    for number, city in ((1, "Berlin"), (2, "Köln")):
        pipeline.append(number, city)
    pipeline.event(id=1, city="Berlin")
    entry = LedgerEntry("6f1c", [WINDOW], "assertion", {"n": 3}, [], "2026-11-17T12:05:00.000Z")
    now = 2 * 10**12  # in the future, so that it is fresh whatever the clock says
    views = {"per_minute": ViewCounts(state="running", watermark=CLOSED)}
    streams = {"rsvps": StreamCounts(watermark=SEEN)}
    report = ProcessReport("analyze", "a", now, now, views=views, streams=streams)
    producer = Producer({"bootstrap.servers": pipeline.log.bootstrap})
    producer.produce(ledger_topic(pipeline.app.name, "per_minute"), encode_entry(entry), "k")
    producer.produce(audit_topic(pipeline.app.name), msgspec.json.encode(report))
    assert producer.flush(10) == 0
    pipeline.flush()


def pattern(expected: str) -> re.Pattern[str]:
    """The page's output: broken lines are one, and … is anything."""
    joined = re.sub(r"\n (?=\S)", "", expected.strip())
    return re.compile(".*?".join(re.escape(part) for part in joined.split("…")), re.DOTALL)


class Shell:
    """A bash that keeps its variables from command to command."""

    def __init__(self, process: asyncio.subprocess.Process, place: Place) -> None:
        self._process = process
        self._place = place

    async def run(self, command: str, expected: str) -> None:
        """Give it a command, and wait for the output that the page has."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{self._place.local(command)}\nprintf '\\036'\n".encode())
        written = b""
        if (shown := _SHOWN.search(expected)) is not None:
            before = expected[: shown.start()].rpartition("\n\n")[0]
            written = await self._until(written, pattern(before).match)
            self._place.show(expected)
        endless = " -N " in command
        match = pattern(expected).match if endless else pattern(expected).fullmatch
        await self._until(written, match, ended=not endless)

    async def _until(
        self, written: bytes, match: Callable[[str], Any], *, ended: bool = False
    ) -> bytes:
        assert self._process.stdout is not None
        deadline = time.monotonic() + SECONDS
        while True:
            text = self._place.plain(written.partition(_END)[0].decode()).strip()
            if (_END in written or not ended) and match(text):
                return written
            assert _END not in written, f"the page has another output than\n{text}"
            left = deadline - time.monotonic()
            try:
                written += await asyncio.wait_for(self._process.stdout.read(65_536), left)
            except TimeoutError:
                raise AssertionError(f"the page has more output than\n{text}") from None


@contextlib.asynccontextmanager
async def shell(place: Place) -> AsyncIterator[Shell]:
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        "bash", stdin=pipe, stdout=pipe, stderr=asyncio.subprocess.STDOUT, start_new_session=True
    )
    try:
        yield Shell(process, place)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        await process.communicate()


def commands(block: str) -> Iterator[tuple[str, str]]:
    """Each command of a console block, and its output."""
    for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
        command, _, output = part.partition("\n")
        while command.endswith(("\\", "|")):
            more, _, output = output.partition("\n")
            command += "\n" + more
        yield command, output


async def run_console(place: Place, block: str) -> None:
    async with shell(place) as bash:
        for command, output in commands(block):
            await bash.run(command, output)


async def run_socket(place: Place, block: str) -> None:
    url = place.serve.replace("http", "ws") + "/v1/connect"
    async with connect(url) as connection:
        for line in block.splitlines():
            arrow, _, text = line.partition(" ")
            if arrow == "→":
                await connection.send(text)
                continue
            place.show(text)
            received = await asyncio.wait_for(connection.recv(), SECONDS)
            assert pattern(text).fullmatch(str(received)), f"{received!r}\nis not {text!r}"


async def test_every_command_gives_what_the_page_shows(place: Place) -> None:
    different = []
    for kind, block in BLOCKS:
        if kind in ("console", "text"):
            try:
                await (run_console if kind == "console" else run_socket)(place, block)
            except AssertionError as error:  # the others are to be seen, too
                different.append(f"{block}\n{error}")
    assert not different, "\n\n".join(different)


SNIPPETS = [
    (
        ["node", "--experimental-eventsource", "--experimental-websocket", "--input-type=module"],
        code,
    )
    for kind, code in BLOCKS
    if kind == "javascript"
] + [([sys.executable, "-u", "-"], code) for kind, code in BLOCKS if "asyncio.run" in code]


async def test_every_snippet_gets_the_change(place: Place) -> None:
    assert len(SNIPPETS) == 5
    numbers = itertools.count(1)
    for program, code in SNIPPETS:
        process = await asyncio.create_subprocess_exec(
            *program, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
        )
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(place.local(code).encode())
        process.stdin.write_eof()
        try:
            await gets_a_change(place, process.stdout, numbers)
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()


async def gets_a_change(place: Place, output: asyncio.StreamReader, numbers: Iterator[int]) -> None:
    """Write rows until the program prints one."""
    printed, deadline = "", time.monotonic() + SECONDS
    while not re.search("(change|upsert).*Oslo", printed):
        assert time.monotonic() < deadline, printed
        assert not output.at_eof(), f"the program has ended: {printed}"
        place.pipeline.count("Oslo", next(numbers))
        place.pipeline.flush()
        with contextlib.suppress(TimeoutError):
            printed += (await asyncio.wait_for(output.read(65_536), 0.5)).decode()


# --- nothing is missing ---------------------------------------------------------------------------


def routes() -> set[str]:
    """What serve's HTTP matches: the cases of its `match`, but for the dashboard's files."""
    found = set()
    for node in ast.walk(ast.parse(inspect.getsource(serve_http))):
        if isinstance(node, ast.match_case) and isinstance(node.pattern, ast.MatchSequence):
            first, *parts = node.pattern.patterns
            if node.guard is None and isinstance(first, ast.MatchValue):
                found.add(f"{_part(first)} /{'/'.join(map(_part, parts))}")
    return found


def _part(pattern: ast.pattern) -> str:
    if isinstance(pattern, ast.MatchValue):
        return str(ast.literal_eval(pattern.value))
    return "{}"


def documented(tier: str) -> set[str]:
    """The calls in the page's table of endpoints."""
    table = PAGE.partition(f"| {tier} | ")[2].partition("\n\n")[0]
    calls = re.findall(r"`((?:GET|POST|DELETE) /[^`]*)`", table)
    return {re.sub(r"\{\w+\}", "{}", call) for call in calls}


def test_every_endpoint_of_serve_is_on_the_page() -> None:
    assert len(routes()) >= 13
    assert documented("serve") == routes() | {"GET /v1/connect", "GET /"}


def test_every_endpoint_of_collect_is_on_the_page() -> None:
    texts = {
        node.value
        for node in ast.walk(ast.parse(inspect.getsource(collect_http)))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    paths = {re.sub("/$", "/{}", text) for text in texts if re.fullmatch(r"/\w[\w./]*", text)}
    assert documented("collect") == {
        f"{'POST' if path == '/v1/streams/{}' else 'GET'} {path}" for path in paths
    }


def _fields(section: str) -> set[str]:
    """The names in the first table of fields."""
    table = section.partition("\n| field |")[2].partition("\n\n")[0]
    names = [row.split("|")[1] for row in table.splitlines() if row.startswith("| `")]
    return {name for row in names for name in re.findall(r"`(\w+)`", row)}


@pytest.mark.parametrize(
    "message", [*client_messages.RECEIVED, *SENT], ids=lambda each: each.__name__
)
def test_every_message_and_each_of_its_fields_is_on_the_page(message: type[msgspec.Struct]) -> None:
    # Both sides may send a message of one type.
    sections = re.split(rf"\n\*\*`{message.__struct_config__.tag}`\*\*[ :]", PAGE)[1:]
    assert {"type", *message.__struct_fields__} in [_fields(section) for section in sections]


@pytest.mark.parametrize(
    ("heading", "answer"),
    [
        ("Errors", ProblemDetails),
        ("Views and rows", ViewRows),
        ("Views and rows", ViewRow),
        ("Long poll", Poll),
        ("SQL", Table),
        ("Named queries", Query),
        ("Connections", ConnectionReport),
        ("Connections", SubscriptionReport),
    ],
)
def test_every_member_of_an_answer_is_in_its_section(
    heading: str, answer: type[msgspec.Struct]
) -> None:
    section = PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    for name in answer.__struct_fields__:
        assert f"`{name}`" in section


def test_every_close_code_is_on_the_page() -> None:
    table = CODES.partition("## Close codes\n")[2].partition("\n\nA connection")[0]
    assert close_codes() <= {int(code) for code in re.findall(r"^\| (\d+) \|", table, re.MULTILINE)}


def close_codes() -> set[int]:
    """The codes with which serve closes: in its calls, and in the errors that lead to them."""
    found = set()
    for module in (connection, frames, service):
        for node in ast.walk(ast.parse(inspect.getsource(module))):
            match node:
                case ast.Call(func=ast.Attribute(attr="close" | "send_close"), args=[code, *_]):
                    found |= set(_codes(code))
                case ast.Call(func=ast.Name(id="ProtocolError"), args=[code, *_]):
                    found |= set(_codes(code))
    assert connection.TOO_SLOW in found
    return found


def _codes(value: ast.expr) -> Iterator[int]:
    for node in ast.walk(value):
        match node:
            case ast.Constant(value=int() as code):
                yield code
            case ast.Attribute(value=ast.Name(id="WSCloseCode"), attr=name) if name != "NO_INFO":
                yield int(getattr(WSCloseCode, name))
            case ast.Name(id=name) if isinstance(getattr(connection, name, None), int):
                yield getattr(connection, name)


async def test_openapi_has_every_endpoint_and_the_page_every_parameter(place: Place) -> None:
    async with httpx.AsyncClient(base_url=place.serve, timeout=SECONDS) as client:
        paths = (await client.get("/v1/openapi.json")).json()["paths"]
    app = place.pipeline.app
    names = "|".join((*app.views, *app.streams, *app.queries))
    found = {
        (f"{method.upper()} {re.sub(rf'/(?:{names})(?=/|$)', '/{}', path)}")
        .replace("{key}", "{}")
        .replace("{id}", "{}")
        .replace("{name}", "{}")
        for path, methods in paths.items()
        for method in methods
    }
    assert found == documented("serve") - {"GET /"}
    for methods in paths.values():
        for call in methods.values():
            for parameter in call.get("parameters", ()):
                if parameter["in"] != "path":
                    assert f"`{parameter['name']}`" in PAGE


async def test_every_metric_is_in_the_reference(place: Place) -> None:
    page = read("docs/reference/metrics.md")
    async with httpx.AsyncClient(timeout=SECONDS) as client:
        texts = [(await client.get(f"{url}/metrics")).text for url in (place.serve, place.collect)]
    families = set(re.findall(r"^# TYPE (\w+) ", "\n".join(texts), re.MULTILINE))
    assert len(families) > 25
    assert not [name for name in families if _metric(name) not in page]


def _metric(name: str) -> str:
    """A metric as the page writes it: the collector's without their prefix."""
    return f"`{name.removeprefix('millstream_collect_').removesuffix('_total')}"
