"""Reading old changes for a client that may disconnect at any moment."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Generator

from millstream.log.record import Record
from millstream.serve.views.replay import RecordChunks


async def test_a_read_in_progress_is_closed_after_it_ends() -> None:
    reading, go_on, closed = threading.Event(), threading.Event(), threading.Event()

    def records() -> Generator[Record, None, None]:
        try:
            reading.set()
            go_on.wait(10)
            yield Record("topic", 0, 0, 0, None, None, ())
        finally:
            closed.set()

    chunks = RecordChunks(records())
    taking = asyncio.create_task(asyncio.to_thread(chunks.read))
    await asyncio.to_thread(reading.wait, 10)
    taking.cancel()
    closing = asyncio.create_task(asyncio.to_thread(chunks.close))
    await asyncio.sleep(0)
    go_on.set()
    await closing
    assert closed.is_set()
