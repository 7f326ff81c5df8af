"""What a collector counts of its events, and whether that adds up; what a killed one leaves."""

from __future__ import annotations

import re
from pathlib import Path

from tests.collect.conftest import Collector

from millstream.collect.journal import Journal, JournalSettings
from millstream.collect.raw_message import RawMessage, encode
from millstream.runtime.home import Home


async def counts(collector: Collector) -> dict[str, int]:
    """All that its metrics count, by name and, in parentheses, stream."""
    found = {}
    for line in (await collector.http.get("/metrics")).text.splitlines():
        if match := re.fullmatch(r'millstream_collect_(\w+)(?:\{stream="(\w+)"\})? (\d+)', line):
            name, stream, value = match.groups()
            found[f"{name}({stream})" if stream else name] = int(value)
    return found


async def counted(collector: Collector, name: str, stream: str = "clicks") -> int:
    """One of a stream's counts; of the whole collector's if `stream` is empty."""
    return (await counts(collector))[f"{name}({stream})" if stream else name]


async def balance(collector: Collector, stream: str = "clicks") -> int:
    """How many of a stream's accepted events are accounted for nowhere."""
    told = await counts(collector)
    ends = ("logged", "rejected", "failed", "shed", "duplicates")
    parts = [told[f"{name}_total({stream})"] for name in ends]
    return told[f"accepted_total({stream})"] - sum(parts) - told[f"pending({stream})"]


async def leave_in_journal(home: Path, *messages: RawMessage) -> None:
    """What a collector leaves that is killed when these are on disk, and nothing else is done."""
    journal = await Journal.open(Home(home).journal / "0", JournalSettings())
    try:
        for message in messages:
            await journal.append(encode(message))[1]
    finally:
        await journal.close()


async def is_at_rest(collector: Collector) -> bool:
    health = (await collector.http.get("/health/ready")).json()
    return bool(health["journal"]["pending_entries"] == 0)
