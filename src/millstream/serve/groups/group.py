"""One group on this server: its members here, and the partitions that this server owns."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from millstream.errors import LogError, MillstreamError
from millstream.log.consumer import Partition
from millstream.log.producing.producer import Producer
from millstream.log.record import Record
from millstream.log.settings import LogSettings
from millstream.log.topic_names import undelivered_topic
from millstream.serve.groups.consumer import CommittedOffset, GroupConsumer
from millstream.serve.groups.definition import GroupDefinition
from millstream.serve.groups.dispatcher import Delivery, Dispatcher
from millstream.serve.groups.member import Member
from millstream.serve.groups.messages import MessageReader, undelivered_record
from millstream.serve.groups.progress import Counts, Message, Progress
from millstream.serve.views.served_view import ServedView
from millstream.values.position import Position
from millstream.values.report import GroupCounts, MemberCounts

_log = logging.getLogger(__name__)
_HANDOVER_SECONDS = 2.0  # for answers, before partitions go to another server
_VIEW_SECONDS = 5.0  # for the view to read a record that the group has read already
_RETRY_SECONDS = 1.0
_TURN = 100  # records that are filtered and encoded before others have their turn
_MEMBERS_REPORTED = 100
_ATTEMPTS_STORED = 100  # per partition; Kafka takes 4 KB with an offset


class PartitionMark(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is stored with a committed offset: what it belongs to, and what became of records."""

    generation: str = ""
    epoch: str = ""
    start: int = 0  # where the counts begin
    acknowledged: int = 0
    set_aside: int = 0
    filtered: int = 0
    attempts: dict[int, int] = {}  # failed ones of messages from the offset on, by offset


def read_mark(metadata: str) -> PartitionMark:
    """The mark of a committed offset; an empty one if it has none."""
    with contextlib.suppress(msgspec.MsgspecError):
        return msgspec.json.decode(metadata, type=PartitionMark)
    return PartitionMark()


def group_id(app: str, name: str) -> str:
    """The name of the Kafka consumer group."""
    return f"millstream.{app}.group.{name}"


class Group:
    """Takes part in the Kafka consumer group from `start` to `stop`. Belongs to the event loop."""

    def __init__(
        self,
        app: str,
        definition: GroupDefinition,
        served: ServedView,
        epoch: str,
        log: LogSettings,
        producer: Producer,
        on_empty: Callable[[Group], None],
    ) -> None:
        self.definition = definition
        self.topic = served.topic
        self.epoch = epoch
        self.served = served
        self.members: set[Member] = set()
        self.is_assigned = False  # Kafka has said which partitions are ours, perhaps none
        self._app = app
        self._log = log
        self._on_empty = on_empty  # called when the last member has left
        self._producer = producer
        self._undelivered = undelivered_topic(app, definition.name)
        self._reader = MessageReader(definition, served, epoch)
        self._dispatcher = Dispatcher(
            ack_timeout=definition.ack_timeout, max_attempts=definition.max_attempts
        )
        self._starts: dict[Partition, int] = {}  # where the counts of each partition begin
        self._changed = asyncio.Event()  # there may be something to deliver
        self._answered = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._consumer: GroupConsumer | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        topics = [self.topic, self._undelivered]
        name = group_id(self._app, self.definition.name)
        self._consumer = GroupConsumer(self._log, name, topics, self)
        self._task = self._loop.create_task(self._run())

    async def stop(self) -> None:
        """Commit and leave the Kafka group."""
        if self._consumer is not None:
            await self._consumer.close()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    @property
    def partitions(self) -> list[int]:
        """The source's partitions that this server owns."""
        owned = self._dispatcher.partitions
        return sorted(partition for topic, partition in owned if topic == self.topic)

    def counts(self) -> GroupCounts:
        """For the report of this server."""
        dispatcher = self._dispatcher
        members = sorted(self.members, key=lambda each: each.caller)[:_MEMBERS_REPORTED]
        return GroupCounts(
            partitions=self.partitions,
            member_count=len(self.members),
            members=[
                MemberCounts(each.caller, len(dispatcher.members[each].pending), each.max_pending)
                for each in members
            ],
            in_flight=dispatcher.in_flight,
            unhandled=dispatcher.unhandled,
            redelivered=dispatcher.redelivered,
        )

    # --- for members ------------------------------------------------------------------------------

    def join(self, member: Member) -> None:
        self.members.add(member)
        member.group = self
        self._dispatcher.join(member, member.max_pending)
        self._changed.set()

    def leave(self, member: Member, *, in_order: bool) -> None:
        self.members.discard(member)
        self._dispatcher.leave(member, in_order=in_order)
        self._answered.set()
        self._changed.set()
        if not self.members:
            self._on_empty(self)

    def ack(self, member: Member, message_id: str) -> None:
        if self._dispatcher.ack(member, message_id):
            self._answered.set()
            self._changed.set()

    def nack(self, member: Member, message_id: str, reason: str) -> None:
        if self._dispatcher.nack(member, message_id, reason, self._loop.time()):
            self._answered.set()
            self._changed.set()

    def set_full(self, member: Member, is_full: bool) -> None:
        self._dispatcher.set_full(member, is_full or member.is_paused)
        self._changed.set()

    def give_back(self, deliveries: Iterable[Delivery]) -> None:
        """Messages that did not reach their member go to others."""
        for delivery in deliveries:
            self._dispatcher.give_back(delivery)
        self._changed.set()

    def note_sent(self, member: Member, delivery: Delivery) -> None:
        """The message is written: without acknowledgements, that is all."""
        if not self.definition.ack:
            self.ack(member, delivery.message.id)

    # --- for the consumer -------------------------------------------------------------------------

    async def assigned(
        self, committed: Mapping[Partition, CommittedOffset | None]
    ) -> Mapping[Partition, int]:
        dispatcher, starts = self._dispatcher, {}
        dispatcher.revoke(list(dispatcher.partitions))
        for partition, known in committed.items():
            offset, mark = self._start_of(partition, known)
            counts = Counts(mark.acknowledged, mark.set_aside, mark.filtered)
            dispatcher.assign(partition, offset, counts, mark.attempts)
            self._starts[partition] = mark.start
            starts[partition] = offset
        dispatcher.is_holding = False
        self.is_assigned = True
        self._changed.set()
        return starts

    def _start_of(
        self, partition: Partition, known: CommittedOffset | None
    ) -> tuple[int, PartitionMark]:
        topic, number = partition
        mark = read_mark(known.metadata) if known is not None else PartitionMark()
        if topic == self._undelivered:
            return (known.offset if known is not None else 0), mark
        ours = (self.definition.generation, self.epoch)
        if known is not None and (mark.generation, mark.epoch) == ours:
            return known.offset, mark
        # The group is new, it was reset, or its view was rebuilt. A rebuilt view starts at 0.
        start = Position.parse(self.definition.start)
        offset = start.offsets.get(number, 0) if start.epoch == self.epoch else 0
        return offset, PartitionMark(*ours, start=offset)

    async def revoking(self) -> None:
        self._dispatcher.is_holding = True
        deadline = self._loop.time() + min(_HANDOVER_SECONDS, self.definition.ack_timeout)
        while self._is_busy and (left := deadline - self._loop.time()) > 0:
            self._answered.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._answered.wait(), left)

    @property
    def _is_busy(self) -> bool:
        return bool(self._dispatcher.in_flight or self._dispatcher.exhausted)

    async def revoked(self) -> None:
        self._dispatcher.revoke(list(self._dispatcher.partitions))
        self.is_assigned = False

    async def positions(self) -> Mapping[Partition, CommittedOffset]:
        return {
            partition: CommittedOffset(progress.position, self._mark(partition, progress))
            for partition, progress in self._dispatcher.partitions.items()
        }

    def _mark(self, partition: Partition, progress: Progress) -> str:
        counts = progress.counts
        mark = PartitionMark(
            self.definition.generation,
            self.epoch,
            self._starts.get(partition, 0),
            counts.acknowledged,
            counts.set_aside,
            counts.filtered,
            progress.failed_attempts(_ATTEMPTS_STORED),
        )
        return msgspec.json.encode(mark).decode()

    def is_full(self, partition: Partition) -> bool:
        return self._dispatcher.is_full(partition)

    async def take(self, records: Sequence[Record]) -> None:
        if self.served.kind == "view":
            await self._await_view(records)
        for number, record in enumerate(records, 1):
            partition = (record.topic, record.partition)
            self._dispatcher.offer(partition, record.offset, self._read(record))
            if number % _TURN == 0:
                self._changed.set()
                await asyncio.sleep(0)
        self._changed.set()

    async def skip_to(self, ends: Mapping[Partition, int]) -> None:
        for partition, offset in ends.items():
            self._dispatcher.skip_to(partition, offset)

    def _read(self, record: Record) -> Message | None:
        if record.topic == self._undelivered:
            return self._reader.read_retry(record)
        return self._reader.read(record)

    async def _await_view(self, records: Sequence[Record]) -> None:
        """Wait until the view has read the records: it knows which of them are repeats."""
        ends = {each.partition: each.offset for each in records if each.topic == self.topic}
        deadline = self._loop.time() + _VIEW_SECONDS
        event = asyncio.Event()
        # Without a filter, it is woken by every record.
        self.served.subscribe(event.set, self.served.encoding(None, None, lineage=False))
        try:
            while not self._has_read(ends) and (left := deadline - self._loop.time()) > 0:
                event.clear()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(event.wait(), left)
        finally:
            self.served.unsubscribe(event.set)

    def _has_read(self, ends: Mapping[int, int]) -> bool:
        offsets = self.served.table.offsets
        return self.served.epoch != self.epoch or all(
            p < len(offsets) and offsets[p] > offset for p, offset in ends.items()
        )

    # --- delivering -------------------------------------------------------------------------------

    async def _run(self) -> None:
        while True:
            self._changed.clear()
            self._deliver()
            if self._dispatcher.exhausted:
                await self._set_aside()
            else:
                await self._wait()

    async def _wait(self) -> None:
        next_time = self._dispatcher.next_time
        left = None if next_time is None else max(0.0, next_time - self._loop.time())
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._changed.wait(), left)

    def _deliver(self) -> None:
        woken: dict[Member, None] = {}
        for delivery in self._dispatcher.dispatch(self._loop.time()):
            member = delivery.member
            assert isinstance(member, Member)
            member.deliver(delivery)
            woken[member] = None
        for member in woken:
            try:
                member.wake()
            except Exception:  # one client's failure must not stop the others' messages
                _log.exception("cannot send to a member of group %s", self.definition.name)

    async def _set_aside(self) -> None:
        """Store messages that no member could handle; their keys continue afterwards."""
        message = self._dispatcher.exhausted[0]
        value, headers = undelivered_record(message)
        try:
            await self._producer.send(
                self._undelivered, value, key=message.position, headers=headers
            )
        except MillstreamError as error:
            _log.warning("group %s: cannot set a message aside: %s", self.definition.name, error)
            await asyncio.sleep(_RETRY_SECONDS if isinstance(error, LogError) else 0)
            return
        exhausted = self._dispatcher.exhausted
        if exhausted and exhausted[0] is message:  # else its partition was revoked meanwhile
            exhausted.popleft()
            self._dispatcher.set_aside(message)
            self._answered.set()
