"""Journals whose process no longer exists: another process sends the events that wait in them.

`collect.workers` was lowered. An empty folder stays: it keeps the collector's identity and the
bookmarks of its sources, and a process of that number may come back.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import NamedTuple

from millstream.collect.intake.intake import Intake
from millstream.collect.intake.recovery import resume
from millstream.collect.journal import Journal
from millstream.collect.reporter import Reporter
from millstream.log.settings import LogSettings

_LOOK_SECONDS = 0.2

_log = logging.getLogger(__name__)


def orphaned_journals(journals: Iterable[int], worker: int, workers: int) -> list[int]:
    """The numbers of the orphaned journals that process `worker` has to send."""
    return [number for number in journals if number >= workers and number % workers == worker]


class OrphanedJournal(NamedTuple):
    """An orphaned journal with pending or lost entries, and its way to the log."""

    journal: Journal
    intake: Intake
    reporter: Reporter


async def take_over(
    journals: Iterable[Journal],
    intake_of: Callable[[Journal], Awaitable[Intake]],
    reporter_of: Callable[[Intake], Reporter],
    log: LogSettings,
) -> list[OrphanedJournal]:
    """Recover the journals with pending or lost entries; the others are closed.

    Losses are reported once more.
    """
    orphaned = []
    for journal in journals:
        if not journal.pending_entries and not journal.damage.lost():
            await journal.close()
            continue
        intake = await intake_of(journal)
        await resume(intake, log)
        orphaned.append(OrphanedJournal(journal, intake, reporter_of(intake)))
    return orphaned


async def send(orphaned: Iterable[OrphanedJournal]) -> None:
    """Send all pending entries, and close each journal when it is empty.

    LogError if the Kafka producer fails. If cancelled, the rest waits for the next start.
    """
    for each in orphaned:
        await _send(each.journal, each.intake, each.reporter)


async def _send(journal: Journal, intake: Intake, reporter: Reporter) -> None:
    waiting = journal.pending_entries
    tasks = [asyncio.create_task(intake.forwarder.run()), asyncio.create_task(reporter.run())]
    try:
        while journal.pending_entries:
            await asyncio.wait(tasks, timeout=_LOOK_SECONDS, return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                if task.done():
                    task.result()
        _log.info("sent %d entries that collector %s had left", waiting, intake.collector)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await intake.forwarder.drain(0.0)
    reporter.end()
    await journal.close()
