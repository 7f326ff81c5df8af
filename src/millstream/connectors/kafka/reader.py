"""Reader of a Kafka topic that another system writes."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future

from millstream.connectors.interface import ReaderOutput
from millstream.connectors.kafka.description import KafkaTopicSource
from millstream.connectors.kafka.topic_consumer import TopicConsumer, decode_bookmark
from millstream.connectors.reading.reconnecting_reader import ReconnectingReader
from millstream.connectors.settings import SourceSettings

_WAIT = 0.1  # seconds; the longest time until the thread notices that it should end
_CLOSE_SECONDS = 5.0


class KafkaTopicReader(ReconnectingReader[KafkaTopicSource]):
    """One thread polls Kafka, passes each batch to the event loop, and waits until it is offered.

    The Kafka client is created, used and closed in that thread only.
    """

    def __init__(self, stream: str, source: KafkaTopicSource, settings: SourceSettings) -> None:
        super().__init__(stream, source, settings)
        self.behind_unit = "messages"
        self._offsets: dict[int, int] | None = None  # the next offset to read, by partition

    async def read(self, output: ReaderOutput) -> None:
        """Read until Kafka is lost."""
        if self._offsets is None:
            self._offsets = decode_bookmark(output.bookmark)
        loop, ending = asyncio.get_running_loop(), threading.Event()
        ended: asyncio.Future[BaseException | None] = loop.create_future()

        def run() -> None:
            error: BaseException | None = None
            try:
                self._run(output, loop, ending)
            except BaseException as raised:
                error = raised
            loop.call_soon_threadsafe(ended.set_result, error)

        threading.Thread(target=run, name=f"kafka source {self.stream}", daemon=True).start()
        try:
            if (error := await asyncio.shield(ended)) is not None:
                raise error
        finally:
            ending.set()
            self.behind = None
            await asyncio.wait([ended], timeout=_CLOSE_SECONDS)

    def _run(
        self, output: ReaderOutput, loop: asyncio.AbstractEventLoop, ending: threading.Event
    ) -> None:
        assert self._offsets is not None
        with TopicConsumer(self.source, self.settings, self._offsets, ending) as topic:
            missed = topic.open()
            if ending.is_set():
                return
            loop.call_soon_threadsafe(self.connected)
            if missed:
                why = "they were deleted from the topic before they could be read"
                loop.call_soon_threadsafe(self.missed, missed, why)
            while not ending.is_set():
                batches = topic.read(_WAIT)
                self.behind = topic.behind
                if topic.oversized:
                    why = "larger than collect.max_body"
                    loop.call_soon_threadsafe(self.missed, topic.oversized, why)
                    topic.oversized = 0
                if batches:
                    handed_over = asyncio.run_coroutine_threadsafe(
                        self.hand_over(output, batches), loop
                    )
                    self._await(handed_over, topic, ending)

    def _await(self, done: Future[None], topic: TopicConsumer, ending: threading.Event) -> None:
        """Wait until the event loop has offered the batches, or the reader should end."""
        while not ending.is_set():
            try:
                return done.result(_WAIT)
            except TimeoutError:
                topic.update_lag()
                self.behind = topic.behind
        done.cancel()
