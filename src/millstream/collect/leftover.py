"""Journals of workers that are no more: what waits in them is sent by those that there are.

A folder stays when it is empty: it keeps its collector's name and the bookmarks of its sources, and
a worker of that number may come back.
"""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

from millstream.collect.intake import Intake
from millstream.collect.journal import Journal
from millstream.collect.reporter import Reporter

_LOOK_SECONDS = 0.2

_logger = logging.getLogger(__name__)


def left_over(journals: Path, worker: int, workers: int) -> list[int]:
    """The numbers of the journals without a worker that this one has to care for."""
    if not journals.is_dir():
        return []
    numbers = sorted(int(path.name) for path in journals.iterdir() if path.name.isdigit())
    return [number for number in numbers if number >= workers and number % workers == worker]


async def send_left_over(journal: Journal, intake: Intake, reporter: Reporter) -> None:
    """Send everything that waits in such a journal, and close it; its forwarder is open."""
    waiting = journal.pending_entries
    tasks = [asyncio.create_task(intake.forwarder.run()), asyncio.create_task(reporter.run())]
    try:
        while journal.pending_entries:
            await asyncio.wait(tasks, timeout=_LOOK_SECONDS, return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                if task.done():
                    task.result()
        _logger.info("sent %d entries that collector %s had left behind", waiting, intake.collector)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await intake.forwarder.drain(0.0)
    reporter.report()
    await journal.close()
