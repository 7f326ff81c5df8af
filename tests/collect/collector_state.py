"""The counts of a running collector, and the journal that a killed one leaves."""

from __future__ import annotations

import re
from pathlib import Path

from tests.collect.conftest import Collector

from millstream.collect.journal import Journal, JournalSettings
from millstream.collect.raw_message import RawMessage, encode
from millstream.runtime.home import Home


async def counts(collector: Collector) -> dict[str, int]:
    """All counts in its metrics, by name and, in parentheses, stream."""
    found = {}
    for line in (await collector.http.get("/metrics")).text.splitlines():
        if match := re.fullmatch(r'millstream_collect_(\w+)(?:\{stream="(\w+)"\})? (\d+)', line):
            name, stream, value = match.groups()
            found[f"{name}({stream})" if stream else name] = int(value)
    return found


async def counted(collector: Collector, name: str, stream: str = "clicks") -> int:
    """One count of a stream; of the whole collector if `stream` is empty."""
    return (await counts(collector))[f"{name}({stream})" if stream else name]


async def balance(collector: Collector, stream: str = "clicks") -> int:
    """The number of a stream's accepted events that no other count has."""
    found = await counts(collector)
    ends = ("logged", "rejected", "failed", "shed", "duplicates")
    parts = [found[f"{name}_total({stream})"] for name in ends]
    return found[f"accepted_total({stream})"] - sum(parts) - found[f"pending({stream})"]


async def leave_in_journal(home: Path, *messages: RawMessage) -> None:
    """Write a journal as a collector leaves it that is killed right after storing these."""
    journal = await Journal.open(Home(home).journal / "0", JournalSettings())
    try:
        for message in messages:
            await journal.append(encode(message))[1]
    finally:
        await journal.close()


async def is_at_rest(collector: Collector) -> bool:
    health = (await collector.http.get("/health/ready")).json()
    return bool(health["journal"]["pending_entries"] == 0)
