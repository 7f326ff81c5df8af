"""Keeps views up to date from their topics: every server reads them whole, from the beginning.

A view's topic can be made anew (its query changed). The topic's id is then another: that is a new
epoch, the view starts over, and clients get a gap and a snapshot. A view can also go over to
another topic, which was filled beside the one that is served: that one is read to its end first, so
that the first snapshot of the new epoch is whole.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping

from confluent_kafka import KafkaException

from millstream.errors import LogError
from millstream.log.consumer import Reader, bounds
from millstream.log.record import Record
from millstream.log.settings import LogSettings
from millstream.log.topics import topic_ids
from millstream.serve.views.served_view import Live
from millstream.values.report import ViewDescription

_log = logging.getLogger(__name__)
_LOOK_SECONDS = 5.0
_EAGER_SECONDS = 0.25


class Reading:
    """Reads one topic into a `Live`, from its beginning or from its newest records on."""

    def __init__(
        self,
        log: LogSettings,
        live: Live,
        *,
        newest: int | None = None,
        arrived: Callable[[], None] | None = None,
        lost: Callable[[], None] | None = None,
    ) -> None:
        self._log = log
        self._live = live
        self._arrived = arrived
        self._newest = newest
        self._lost = lost
        self._reader: Reader | None = None
        self._next: Reader | None = None  # of the topic that the view goes over to
        self.caught_up = asyncio.Event()

    async def start(self, epoch: str) -> None:
        """Begin with the topic of that id, or go on with it if it still holds what comes next."""
        self.stop()
        held = await asyncio.to_thread(bounds, self._log, self._live.topic)
        starts = dict(enumerate(self._live.table.offsets))
        if not (epoch == self._live.epoch and _holds(held, starts)):
            starts = {
                partition: low if self._newest is None else max(low, high - self._newest)
                for partition, (low, high) in held.items()
            }
            self._live.tally.live = False
            self._live.begin(epoch, starts)
            self.caught_up.clear()
        self._reader = Reader(
            self._log,
            {(self._live.topic, partition): offset for partition, offset in starts.items()},
            self._live.apply,
            loop=asyncio.get_running_loop(),
            caught_up=self._arrive,
            lost=self._lose,
        )

    async def move(self, description: ViewDescription, topic: str, epoch: str) -> None:
        """Read another topic beside the one that is served, and go over once its end is reached."""
        live, held = self._live, await asyncio.to_thread(bounds, self._log, topic)
        starts = {partition: low for partition, (low, _) in held.items()}
        table = live.table_for(description, starts)

        def deliver(records: list[Record]) -> None:
            if live.table is table:
                live.apply(records)
                return
            for each in records:
                table.apply(each.partition, each.offset, each.timestamp, each.key, each.value)

        def arrive() -> None:
            self.stop()
            self._reader, self._next = self._next, None
            live.tally.start_over()
            live.move(description, topic, epoch, table)
            self._arrive()

        self._stop_next()
        self._next = Reader(
            self._log,
            {(topic, partition): offset for partition, offset in starts.items()},
            deliver,
            loop=asyncio.get_running_loop(),
            caught_up=arrive,
            lost=self._lose,
        )

    def stop(self) -> None:
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    def _stop_next(self) -> None:
        if self._next is not None:
            self._next.close()
            self._next = None

    def close(self) -> None:
        """End all reading."""
        self.stop()
        self._stop_next()

    def _arrive(self) -> None:
        self._live.tally.live = True
        self.caught_up.set()
        if self._arrived is not None:
            self._arrived()

    def _lose(self, topic: str, partition: int) -> None:
        _log.info("topic %s, partition %d is not as it was; looking again", topic, partition)
        if self._lost is not None:
            self._lost()


def _holds(held: Mapping[int, tuple[int, int]], starts: Mapping[int, int]) -> bool:
    """Whether a topic has all that comes from `starts` on, in each of its partitions."""
    return held.keys() == starts.keys() and all(
        held[partition][0] <= offset <= held[partition][1] for partition, offset in starts.items()
    )


class Readings:
    """The readings of all views, and the watch over their topics' ids."""

    def __init__(self, log: LogSettings, lives: Iterable[Live]) -> None:
        self._log = log
        self._look = asyncio.Event()
        self._lost: set[str] = set()
        self._eager_until = 0.0
        self._readings = {
            live.name: (live, Reading(log, live, arrived=self._arrive, lost=self._on_lost(live)))
            for live in lives
        }
        self._moves: dict[str, tuple[ViewDescription, str]] = {}  # by view, to which topic
        self.caught_up = asyncio.Event()  # every view was, once
        self._arrive()

    def _arrive(self) -> None:
        if all(reading.caught_up.is_set() for _, reading in self._readings.values()):
            self.caught_up.set()

    async def run(self) -> None:
        """Read until cancelled."""
        try:
            while True:
                self._look.clear()
                try:
                    await self._follow()
                except (LogError, KafkaException, TimeoutError) as error:
                    # Kafka is away: what is held is served on, and looked at again in a moment.
                    _log.warning("cannot look at the views' topics: %s", error or "no answer")
                eager = asyncio.get_running_loop().time() < self._eager_until
                pause = _EAGER_SECONDS if eager else _LOOK_SECONDS
                try:
                    await asyncio.wait_for(self._look.wait(), pause)
                except TimeoutError:
                    continue
        finally:
            for _, reading in self._readings.values():
                reading.close()

    def expect_change(self) -> None:
        """Look often for a while: a view has another plan, so its topic is being made anew."""
        self._eager_until = asyncio.get_running_loop().time() + 10.0
        self._look.set()

    def move(self, live: Live, description: ViewDescription, topic: str) -> None:
        """Go over to another topic of the view, once that is read."""
        self._moves[live.name] = (description, topic)
        self._look.set()

    def _on_lost(self, live: Live) -> Callable[[], None]:
        def lost() -> None:
            self._lost.add(live.name)
            self._look.set()

        return lost

    async def _follow(self) -> None:
        wanted = {live.topic for live, _ in self._readings.values()}
        wanted |= {topic for _, topic in self._moves.values()}
        ids: Mapping[str, str] = await asyncio.to_thread(topic_ids, self._log, list(wanted))
        for name, (live, reading) in self._readings.items():
            # A broker that just came back may not know its topics for a moment: then we go on. But
            # one that lost records (its retention was faster than we were) is read again from its
            # beginning, because what is in memory has a hole.
            if live.topic in ids and (ids[live.topic] != live.epoch or name in self._lost):
                self._lost.discard(name)
                await reading.start(ids[live.topic])
            move = self._moves.get(name)
            if move is not None and move[1] in ids:
                await reading.move(*move, ids[move[1]])
                if self._moves[name] is move:
                    del self._moves[name]


class Tail:
    """Small topics that are read for what they say: descriptions and reports."""

    def __init__(
        self, log: LogSettings, topic: str, take: Callable[[Record], None], newest: int | None
    ) -> None:
        self._log = log
        self._topic = topic
        self._take = take
        self._newest = newest
        self._reader: Reader | None = None
        self.caught_up = asyncio.Event()

    async def start(self) -> None:
        held = await asyncio.to_thread(bounds, self._log, self._topic)
        starts = {
            (self._topic, p): low if self._newest is None else max(low, high - self._newest)
            for p, (low, high) in held.items()
        }
        self._reader = Reader(
            self._log,
            starts,
            self._deliver,
            loop=asyncio.get_running_loop(),
            caught_up=self.caught_up.set,
        )

    def stop(self) -> None:
        if self._reader is not None:
            self._reader.close()

    def _deliver(self, records: list[Record]) -> None:
        for record in records:
            self._take(record)
