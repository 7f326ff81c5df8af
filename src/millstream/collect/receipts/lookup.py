"""Finds the event of a receipt: in this collector's journal, in the log, or in the failed store."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Collection
from typing import Any

from millstream.collect.dedup.dedup import Original
from millstream.collect.intake.recent_entries import RecentEntries
from millstream.errors import LogError
from millstream.log.consumer import bounds, read_range
from millstream.log.record import Record
from millstream.log.search import Decision, Search
from millstream.log.settings import LogSettings
from millstream.log.topic_names import rejected_topic, stream_topic
from millstream.pipeline.app import App
from millstream.values import event
from millstream.values.clock import to_iso
from millstream.values.receipt import Receipt, Receipts
from millstream.web.problem import Problem

_AT_ONCE = 4  # each search takes a thread and a connection to Kafka, for some 10 ms
_SECONDS = 5.0
_MOST_SEARCHES = 100  # searches that timed out, and continue with the next request

Answer = dict[str, Any]


class Lookup:
    """Finds the event of any receipt of the cluster, in its current state."""

    def __init__(
        self,
        app: App,
        log: LogSettings,
        receipts: Receipts,
        *,
        collector: str,
        is_pending: Callable[[int], bool],
        settled: Callable[[int], asyncio.Future[None]],
        why_failed: Callable[[Receipt], str | None],
        recent: RecentEntries,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`collector` is this journal's identity, `is_pending` whether it still holds an entry.

        The future `settled` is done when it no longer does. `why_failed` looks into the failed
        store, in a thread; None if the event is not there.
        """
        self._app, self._log, self._receipts = app, log, receipts
        self._collector, self._is_pending, self._why_failed = collector, is_pending, why_failed
        self._settled, self._recent, self._clock = settled, recent, clock
        self._turn = asyncio.Semaphore(_AT_ONCE)
        self._searches: OrderedDict[Receipt, Search] = OrderedDict()

    async def __call__(self, text: str, check: Callable[[str], None] = lambda _: None) -> Answer:
        """Where the event is; Problem 404 if the receipt is unknown, 410 if the event is gone.

        `check` gets the stream before anything else, and raises if the caller may not see it.
        """
        receipt = self._receipts.read(text)
        if receipt is None:
            raise Problem(404, f"{text[:200]!r} is no receipt of this system")
        if receipt.stream not in self._app.streams:
            raise Problem(404, f"the receipt is for stream {receipt.stream}, which does not exist")
        check(receipt.stream)
        if self._is_ours(receipt) and self._is_pending(receipt.sequence):
            return self._answer(receipt, "journaled")
        try:
            async with self._turn:
                return await asyncio.to_thread(self._find, receipt)
        except LogError as error:
            raise Problem(
                503, f"the event is safe, but {error}", headers=[(b"retry-after", b"2")]
            ) from error

    async def are_logged(
        self, stream: str, originals: Collection[Original], seconds: float
    ) -> bool:
        """Whether the log has these events; waits up to `seconds` for this collector's own."""
        ours = {each.sequence for each in originals if each.collector == self._collector}
        if waiting := {self._settled(sequence) for sequence in ours if self._is_pending(sequence)}:
            await asyncio.wait(waiting, timeout=seconds)
            if any(self._is_pending(sequence) for sequence in ours):
                return False
        theirs = [each for each in originals if each.collector != self._collector]
        if not theirs:
            return True
        try:
            async with self._turn:
                return await asyncio.to_thread(self._search_all, stream, theirs)
        except LogError:
            return False

    def _search_all(self, stream: str, originals: Collection[Original]) -> bool:
        wanted = {(each.collector, each.sequence, each.index) for each in originals}
        topics = [name(self._app.name, stream) for name in (stream_topic, rejected_topic)]

        def look(record: Record) -> Decision:
            if (identity := event.identity(record.headers)) is not None:
                wanted.discard(identity)
            return Decision.CONTINUE if wanted else Decision.FOUND

        Search(self._log, topics, min(each.received_at for each in originals)).run(look, _SECONDS)
        return not wanted

    def _is_ours(self, receipt: Receipt) -> bool:
        return receipt.collector == self._collector

    def _find(self, receipt: Receipt) -> Answer:
        if (error := self._why_failed(receipt)) is not None:
            return {**self._answer(receipt, "failed"), "error": error}
        if receipt.partition is not None and receipt.offset is not None:
            record = self._at(receipt, receipt.partition, receipt.offset)
            if record is None:
                raise self._gone(receipt)
        else:
            record = self._search(receipt)
        if record is not None:
            return self._found(receipt, record)
        # Our entry was settled, so it was in the log. Another collector may still hold its entry.
        if self._is_ours(receipt) or self._is_expired(receipt):
            raise self._gone(receipt)
        return self._answer(receipt, "journaled")

    def _at(self, receipt: Receipt, partition: int, offset: int) -> Record | None:
        topic = self._topics(receipt)[-1 if receipt.rejected else 0]
        first, end = bounds(self._log, topic, _SECONDS).get(partition, (0, 0))
        if not first <= offset < end:
            return None
        span = (partition, offset, offset + 1)
        records = list(read_range(self._log, topic, *span, patience=_SECONDS))
        # Another event there means that the topic was deleted and created again.
        return next(
            (record for record in records if event.identity(record.headers) == _wanted(receipt)),
            None,
        )

    def _search(self, receipt: Receipt) -> Record | None:
        search = self._searches.pop(receipt, None) or Search(
            self._log, self._topics(receipt), receipt.received_at
        )
        wanted = _wanted(receipt)
        # Our own event may be out of order, after a retry from the failed store.
        in_order = not self._is_ours(receipt)

        def look(record: Record) -> Decision:
            identity = event.identity(record.headers)
            if identity == wanted:
                return Decision.FOUND
            if identity is None:
                return Decision.CONTINUE
            passed = in_order and identity[0] == wanted[0] and identity > wanted
            return Decision.SKIP_PARTITION if passed else Decision.CONTINUE

        found = search.run(look, _SECONDS)
        if found is None and not search.is_over:
            self._searches[receipt] = search
            if len(self._searches) > _MOST_SEARCHES:
                self._searches.popitem(last=False)
            raise Problem(
                503,
                f"the event is safe, but was not found in the first {_SECONDS:g} s of searching "
                "the log; ask again, and the search goes on",
                headers=[(b"retry-after", b"1")],
            )
        return found

    def _topics(self, receipt: Receipt) -> tuple[str, ...]:
        names = (stream_topic, rejected_topic)
        here = tuple(name(self._app.name, receipt.stream) for name in names)
        return here[1:] if receipt.rejected else here

    def _is_expired(self, receipt: Receipt) -> bool:
        kept = self._app.streams[receipt.stream].retention.total_seconds()
        return receipt.received_at / 1000 + kept < self._clock()

    def _gone(self, receipt: Receipt) -> Problem:
        return Problem(
            410,
            f"the event of {to_iso(receipt.received_at)} was in stream {receipt.stream}, and is "
            "no longer in the log: its retention has ended, its topic was created again, or it "
            "failed and was dropped",
        )

    def _found(self, receipt: Receipt, record: Record) -> Answer:
        headers = {name: value.decode(errors="replace") for name, value in record.headers}
        is_rejected = record.topic == rejected_topic(self._app.name, receipt.stream)
        found = self._answer(receipt, "rejected" if is_rejected else "logged") | {
            "topic": record.topic,
            "partition": record.partition,
            "offset": record.offset,
            "id": headers.get(event.ID, ""),
        }
        error = headers.get(event.REASON if is_rejected else event.INVALID)
        return found if error is None else {**found, "error": error}

    def _answer(self, receipt: Receipt, state: str) -> Answer:
        answer: Answer = {
            "state": state,
            "stream": receipt.stream,
            "collector": receipt.collector,
            "sequence": receipt.sequence,
            "index": receipt.index,
            "received_at": to_iso(receipt.received_at),
        }
        steps = self._recent[receipt.sequence] if self._is_ours(receipt) else None
        if steps is not None and steps.journaled_at:
            answer["journaled_at"] = to_iso(steps.journaled_at)
        if steps is not None and steps.logged_at and state in ("logged", "rejected"):
            answer["logged_at"] = to_iso(steps.logged_at)
        return answer


def _wanted(receipt: Receipt) -> tuple[str, int, int]:
    return receipt.collector, receipt.sequence, receipt.index
