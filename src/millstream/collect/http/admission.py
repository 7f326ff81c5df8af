"""Admits requests: accepts each message when there is room, or makes it wait, or refuses it.

A message that skips the journal needs room in the window to Kafka, any other needs room in the
journal. Before that, a body needs memory to be read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

import msgspec

from millstream.collect.capacity.body_memory import BodyMemory
from millstream.collect.capacity.wait_queue import WaitQueue, WaitQueues
from millstream.collect.intake.entry import Entry
from millstream.collect.intake.intake import Ack, Intake
from millstream.collect.intake.stream_intake import StreamIntake
from millstream.collect.raw_message import RawMessage, is_small
from millstream.collect.settings import CollectSettings

Append = Callable[[RawMessage], None]
OnRefused = Callable[[Exception], None]


class Admission:
    """Admits requests in the order of their arrival. Belongs to one intake and one event loop."""

    def __init__(self, intake: Intake, settings: CollectSettings, queues: WaitQueues) -> None:
        self._intake = intake
        self._queues = queues
        self.body_memory = BodyMemory(settings.max_body_memory, settings.max_body, queues.memory)
        self._queued: set[asyncio.Task[None]] = set()

    @property
    def waiting(self) -> int:
        """The number of requests that wait for room."""
        return len(self._queues)

    def may_try(self, ack: Ack) -> bool:
        """Whether no request waits for the same room, so that a new one may try at once."""
        return self._queue(ack).is_empty

    async def admit(self, stream: StreamIntake, message: RawMessage, ack: Ack) -> Entry:
        """Accept a message when there is room for it; then await `entry.done`, if it is set.

        Errors as of `Intake.append`; one of NO_ROOM if there is no room in time, with no change.
        """
        return await self._queue(ack).run(partial(self._append, stream, message, ack))

    def enqueue(self, ack: Ack, message: RawMessage, append: Append, on_refused: OnRefused) -> None:
        """Queue a message: `append` is called when there is room, `on_refused` if that fails.

        `append` raises one of NO_ROOM as long as there is no room, and has changed nothing then.
        """
        task = asyncio.get_running_loop().create_task(
            self._append_queued(ack, message, append, on_refused)
        )
        self._queued.add(task)
        task.add_done_callback(self._queued.discard)

    def release_waiting(self) -> None:
        """End every wait for room: the collector stops."""
        self._queues.release_all()

    async def _append(self, stream: StreamIntake, message: RawMessage, ack: Ack) -> Entry:
        intake, message = self._intake, self._received_now(message)
        if ack == "none":
            if is_small(message):
                return intake.direct_sender.send(stream, message)
            return await intake.direct_sender.send_large(stream, message)
        if intake.must_check_first(stream, message):
            return await intake.check_and_append(stream, message, ack)
        return intake.append(stream, message, ack)

    async def _append_queued(
        self, ack: Ack, message: RawMessage, append: Append, on_refused: OnRefused
    ) -> None:
        async def attempt() -> None:
            append(self._received_now(message))

        try:
            with self.body_memory.hold(len(message.body)):
                await self._queue(ack).run_queued(attempt)
        except Exception as error:
            on_refused(error)

    def _received_now(self, message: RawMessage) -> RawMessage:
        """The message with the current time: a message that waited was not accepted before."""
        now = self._intake.now()
        if message.received_at == now:
            return message
        return msgspec.structs.replace(message, received_at=now)

    def _queue(self, ack: Ack) -> WaitQueue:
        return self._queues.kafka if ack == "none" else self._queues.journal
