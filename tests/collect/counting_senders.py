"""Senders that send increasing numbers, each once, and the check of what is in the log."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from millstream.log.consumer import bounds, read_range
from millstream.log.settings import LogSettings
from millstream.log.topic_names import stream_topic
from millstream.pipeline.app import App


def pipeline(name: str) -> App:
    """A pipeline with one stream, keyed by sender."""
    app = App(name)
    app.stream("counts", schema="sender STRING NOT NULL, n LONG NOT NULL", key="sender")
    return app


class NotConnected(Exception):
    """Nothing was sent."""


class NoAnswer(Exception):
    """The request may have been accepted or not."""


@dataclass
class Sender:
    """Sends one request after the other, on its own connection."""

    name: str
    ack: str
    batch: int
    size: int = 0  # additional bytes of each event
    acknowledged: list[int] = field(default_factory=list)  # answered with 200 or 202
    unclear: list[int] = field(default_factory=list)  # no answer
    statuses: Counter[int] = field(default_factory=Counter)
    waits: list[int] = field(default_factory=list)  # the seconds that a 503 asked to wait
    _reader: asyncio.StreamReader | None = None
    _writer: asyncio.StreamWriter | None = None

    async def send(self, port: int, stop: asyncio.Event) -> None:
        """Send until `stop`."""
        try:
            await self._send(port, stop)
        finally:
            self._close()

    async def _send(self, port: int, stop: asyncio.Event) -> None:
        n, more = 0, "x" * self.size
        while not stop.is_set():
            numbers = range(n, n + self.batch)
            lines = (f'{{"sender":"{self.name}","n":{each},"more":"{more}"}}' for each in numbers)
            n += self.batch
            try:
                status, headers, content = await self._post(port, "\n".join(lines).encode())
            except NotConnected:
                n -= self.batch
                await asyncio.sleep(0.01)
                continue
            except NoAnswer:
                self.unclear += numbers
                continue
            self.statuses[status] += 1
            if status in (200, 202):
                assert json.loads(content)["accepted"] == self.batch
                self.acknowledged += numbers
            else:
                assert status == 503, content
                self.waits.append(int(headers["retry-after"]))
                await asyncio.sleep(0.01)

    async def _post(self, port: int, body: bytes) -> tuple[int, dict[str, str], bytes]:
        try:
            if self._writer is None or self._reader is None:
                self._reader, self._writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            raise NotConnected from None
        request = (
            f"POST /v1/streams/counts?ack={self.ack} HTTP/1.1\r\nhost: 127.0.0.1\r\n"
            f"content-type: application/x-ndjson\r\ncontent-length: {len(body)}\r\n\r\n"
        )
        try:
            async with asyncio.timeout(60):
                self._writer.write(request.encode() + body)
                head = (await self._reader.readuntil(b"\r\n\r\n")).decode().lower().splitlines()
                headers = dict(line.split(": ", 1) for line in head[1:-1])
                content = await self._reader.readexactly(int(headers["content-length"]))
        except (OSError, EOFError):
            self._close()
            raise NoAnswer from None
        if headers.get("connection") == "close":
            self._close()
        return int(head[0].split()[1]), headers, content

    def _close(self) -> None:
        if self._writer is not None:
            self._writer.close()
        self._reader = self._writer = None


@dataclass(frozen=True)
class SenderGroup:
    """The senders of a run."""

    senders: list[Sender]

    @property
    def acknowledged(self) -> int:
        """The number of acknowledged events."""
        return sum(len(sender.acknowledged) for sender in self.senders)

    @property
    def statuses(self) -> Counter[int]:
        """Requests by status."""
        return sum((each.statuses for each in self.senders), Counter())

    def __str__(self) -> str:
        unclear = sum(len(each.unclear) for each in self.senders)
        return (
            f"{self.acknowledged} events answered, {unclear} unclear, "
            f"requests by status {dict(self.statuses)}"
        )

    def violations(self, log: LogSettings, app: str) -> list[str]:
        """Every broken promise; reads the whole topic."""
        topic = stream_topic(app, "counts")
        first, end = bounds(log, topic)[0]
        logged: dict[str, list[int]] = {sender.name: [] for sender in self.senders}
        for record in read_range(log, topic, 0, first, end):
            event = json.loads(record.value or b"")
            logged[event["sender"]].append(event["n"])
        return [wrong for each in self.senders for wrong in _violations(each, logged[each.name])]


def _violations(sender: Sender, there: list[int]) -> Iterable[str]:
    times = Counter(there)
    if lost := [n for n in sender.acknowledged if not times[n]]:
        yield f"{sender.name}: answered but not in the log: {lost[:5]}"
    if doubled := [n for n, count in times.items() if count > 1]:
        yield f"{sender.name}: in the log more than once: {doubled[:5]}"
    if unknown := set(there) - set(sender.acknowledged) - set(sender.unclear):
        yield f"{sender.name}: refused but in the log: {sorted(unknown)[:5]}"
    if not doubled and there != sorted(there):
        yield f"{sender.name}: out of order"
