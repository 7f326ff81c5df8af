"""Readers that keep views up to date. Every server reads each view's topic from the beginning.

If a view's query changes, its topic may be created again. The topic then has another id, which is
a new epoch: the view starts empty, and clients get a gap and a snapshot. A view can also switch to
another topic, which was filled while the old one was served. The new topic is read to its end
first, so that the first snapshot of the new epoch is complete.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from functools import partial

from confluent_kafka import KafkaException

from millstream.errors import LogError
from millstream.log.consumer import Reader, bounds
from millstream.log.record import Record
from millstream.log.settings import LogSettings
from millstream.log.topics import topic_ids
from millstream.serve.views.served_view import ServedView
from millstream.values.view_description import ViewDescription

_log = logging.getLogger(__name__)
_CHECK_SECONDS = 5.0
_FAST_CHECK_SECONDS = 0.25
_FAST_CHECKS_FOR_SECONDS = 10.0


class ViewReader:
    """Reads one topic into a `ServedView`, from its beginning or from its newest records on."""

    def __init__(
        self,
        log: LogSettings,
        served: ServedView,
        *,
        newest: int | None = None,
        on_caught_up: Callable[[], None] | None = None,
        lost: Callable[[], None] | None = None,
    ) -> None:
        self._settings = log
        self.served = served
        self._on_caught_up = on_caught_up
        self._newest = newest
        self._lost = lost
        self._reader: Reader | None = None
        self._next: Reader | None = None  # of the topic that the view switches to
        self.caught_up = asyncio.Event()

    async def start(self, epoch: str) -> None:
        """Read the topic of that id; continue where reading stopped if the log still allows it."""
        self.stop()
        held = await asyncio.to_thread(bounds, self._settings, self.served.topic)
        starts = dict(enumerate(self.served.table.offsets))
        if not (epoch == self.served.epoch and _holds(held, starts)):
            starts = _starts(held, self._newest)
            self.served.metrics.is_current = False
            self.served.reset(epoch, starts)
            self.caught_up.clear()
        self._reader = _read(
            self._settings,
            self.served.topic,
            starts,
            self.served.apply,
            self._handle_caught_up,
            self._handle_lost,
        )

    async def switch_topic(self, description: ViewDescription, topic: str, epoch: str) -> None:
        """Read another topic while the old one is served; switch when its end is reached."""
        served = self.served
        starts = _starts(await asyncio.to_thread(bounds, self._settings, topic))
        table = served.table_for(description, starts)

        def deliver(records: list[Record]) -> None:
            if served.table is table:
                served.apply(records)
                return
            for each in records:
                table.apply(each.partition, each.offset, each.timestamp, each.key, each.value)

        def switch() -> None:
            self.stop()
            self._reader, self._next = self._next, None
            served.switch_topic(description, topic, epoch, table)
            self._handle_caught_up()

        self._stop_next()
        self._next = _read(self._settings, topic, starts, deliver, switch, self._handle_lost)

    def stop(self) -> None:
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    def _stop_next(self) -> None:
        if self._next is not None:
            self._next.close()
            self._next = None

    def close(self) -> None:
        """Stop reading both topics."""
        self.stop()
        self._stop_next()

    def _handle_caught_up(self) -> None:
        self.served.metrics.is_current = True
        self.caught_up.set()
        if self._on_caught_up is not None:
            self._on_caught_up()

    def _handle_lost(self, topic: str, partition: int) -> None:
        _log.info("topic %s, partition %d changed; checking the topic again", topic, partition)
        if self._lost is not None:
            self._lost()


def _read(
    settings: LogSettings,
    topic: str,
    starts: Mapping[int, int],
    deliver: Callable[[list[Record]], None],
    caught_up: Callable[[], None],
    lost: Callable[[str, int], None] | None = None,
) -> Reader:
    offsets = {(topic, partition): offset for partition, offset in starts.items()}
    loop = asyncio.get_running_loop()
    return Reader(settings, offsets, deliver, loop=loop, caught_up=caught_up, lost=lost)


def _starts(held: Mapping[int, tuple[int, int]], newest: int | None = None) -> dict[int, int]:
    """By partition, the first offset to read: the oldest, or that of the `newest` last records."""
    return {
        partition: low if newest is None else max(low, high - newest)
        for partition, (low, high) in held.items()
    }


def _holds(held: Mapping[int, tuple[int, int]], starts: Mapping[int, int]) -> bool:
    """Whether a topic still has all records from `starts` on, in each of its partitions."""
    return held.keys() == starts.keys() and all(
        held[partition][0] <= offset <= held[partition][1] for partition, offset in starts.items()
    )


class ViewReaders:
    """The readers of all views. Watches the ids of their topics."""

    def __init__(self, log: LogSettings, views: Iterable[ServedView]) -> None:
        self._settings = log
        self._check = asyncio.Event()
        self._lost: set[str] = set()
        self._fast_until = 0.0
        self._readers = [
            ViewReader(
                log,
                view,
                on_caught_up=self._handle_caught_up,
                lost=partial(self._handle_lost, view.name),
            )
            for view in views
        ]
        self._switches: dict[str, tuple[ViewDescription, str]] = {}  # view → its next topic
        self.caught_up = asyncio.Event()  # set once every view has caught up
        self._handle_caught_up()

    def _handle_caught_up(self) -> None:
        if all(reader.caught_up.is_set() for reader in self._readers):
            self.caught_up.set()

    async def run(self) -> None:
        """Read until cancelled."""
        try:
            while True:
                self._check.clear()
                try:
                    await self._check_topics()
                except (LogError, KafkaException, TimeoutError) as error:
                    # Kafka is away. The views in memory are served meanwhile.
                    _log.warning("cannot check the views' topics: %s", error or "no answer")
                is_fast = asyncio.get_running_loop().time() < self._fast_until
                pause = _FAST_CHECK_SECONDS if is_fast else _CHECK_SECONDS
                try:
                    await asyncio.wait_for(self._check.wait(), pause)
                except TimeoutError:
                    continue
        finally:
            for reader in self._readers:
                reader.close()

    def expect_change(self) -> None:
        """Check often for a while: a view has a new plan, so its topic is about to be recreated."""
        self._fast_until = asyncio.get_running_loop().time() + _FAST_CHECKS_FOR_SECONDS
        self._check.set()

    def switch_topic(self, view: ServedView, description: ViewDescription, topic: str) -> None:
        """Switch the view to another topic, once that is read."""
        self._switches[view.name] = (description, topic)
        self._check.set()

    def _handle_lost(self, name: str) -> None:
        self._lost.add(name)
        self._check.set()

    async def _check_topics(self) -> None:
        topics = {reader.served.topic for reader in self._readers}
        topics |= {topic for _, topic in self._switches.values()}
        ids: Mapping[str, str] = await asyncio.to_thread(topic_ids, self._settings, list(topics))
        for reader in self._readers:
            view, name = reader.served, reader.served.name
            # A broker that just started may not know its topics for a moment: reading continues.
            # A topic that lost records (retention deleted them before we read them) is read again
            # from its beginning, because the view in memory lacks them.
            if view.topic in ids and (ids[view.topic] != view.epoch or name in self._lost):
                self._lost.discard(name)
                await reader.start(ids[view.topic])
            switch = self._switches.get(name)
            if switch is not None and switch[1] in ids:
                await reader.switch_topic(*switch, ids[switch[1]])
                if self._switches[name] is switch:
                    del self._switches[name]


class TopicTail:
    """Hands each record of a small topic to a function: view descriptions, reports."""

    def __init__(
        self, log: LogSettings, topic: str, handle: Callable[[Record], None], newest: int | None
    ) -> None:
        self._settings = log
        self._topic = topic
        self._handle = handle
        self._newest = newest
        self._reader: Reader | None = None
        self.caught_up = asyncio.Event()

    async def start(self) -> None:
        held = await asyncio.to_thread(bounds, self._settings, self._topic)
        starts = _starts(held, self._newest)
        self._reader = _read(self._settings, self._topic, starts, self._deliver, self.caught_up.set)

    def stop(self) -> None:
        if self._reader is not None:
            self._reader.close()

    def _deliver(self, records: list[Record]) -> None:
        for record in records:
            self._handle(record)
