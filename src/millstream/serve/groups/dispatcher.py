"""Distributes the messages of one group among its members on this server. Pure: no I/O, no clock.

Order per key: the next message of a key is delivered when the one before it is handled, so a key
has at most one message in flight. Messages of different keys are in flight together. A message that
fails (it is refused, it times out, or its member is gone) is delivered again before any later
message of its key, to another member if there is one with room. After `max_attempts` it is in
`exhausted`, and its key waits until the caller has stored it elsewhere and calls `set_aside`.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict, deque
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import count

from millstream.serve.groups.progress import Counts, Message, Outcome, Partition, Progress

_MAX_MESSAGES, _MAX_BYTES = 1_000, 8 << 20  # unhandled, of a partition; then reading pauses
_MAX_SPAN = 100_000  # records remembered behind one that is not handled
_FIRST_PAUSE = 0.1  # seconds before a refused message is delivered again; doubles each time
_LOST = "its member disconnected without acknowledging it"


@dataclass(frozen=True, slots=True)
class Delivery:
    """Hand this message to this member."""

    member: Hashable
    message: Message
    attempt: int

    @property
    def is_current(self) -> bool:
        """Whether the member still has the message from this very delivery."""
        return self.message.member == self.member and self.message.attempt == self.attempt


@dataclass(slots=True)
class MemberState:
    """One member, and the messages that it has not acknowledged."""

    max_pending: int
    pending: dict[str, Message] = field(default_factory=dict)  # by message id
    is_full: bool = False  # its connection takes no more bytes for now

    @property
    def has_room(self) -> bool:
        return not self.is_full and len(self.pending) < self.max_pending


class Dispatcher:
    """The messages of the partitions that this server owns, and the members connected to it."""

    def __init__(self, *, ack_timeout: float, max_attempts: int) -> None:
        self._ack_timeout = ack_timeout
        self._max_attempts = max_attempts
        self.members: dict[Hashable, MemberState] = {}
        self.partitions: dict[Partition, Progress] = {}
        self.exhausted: deque[Message] = deque()  # to be stored elsewhere by the caller
        self.redelivered = 0  # deliveries after the first one of a message
        self.is_holding = False  # nothing is delivered: partitions are about to go elsewhere
        self._queues: dict[Hashable, deque[Message]] = {}  # by key; the first is next or in flight
        self._ready: deque[Message] = deque()
        self._with_room: OrderedDict[Hashable, None] = OrderedDict()  # members, longest idle first
        # The timeout is the same for all, so the oldest delivery times out first.
        self._deliveries: deque[tuple[float, Delivery]] = deque()
        self._paused: list[tuple[float, int, Message]] = []  # a heap by the time to deliver again
        self._numbers = count()

    # --- partitions -------------------------------------------------------------------------------

    def assign(
        self,
        partition: Partition,
        offset: int,
        counts: Counts | None = None,
        attempts: Mapping[int, int] | None = None,
    ) -> None:
        """This server owns the partition from now on, and reads it from `offset` on.

        `counts` and `attempts` are what its owner before had: what became of the records below
        `offset`, and how often later ones have failed.
        """
        self.partitions[partition] = Progress(offset, counts or Counts(), dict(attempts or {}))

    def offer(self, partition: Partition, offset: int, message: Message | None) -> None:
        """Add the next record of a partition; None: it is no message for this group."""
        progress = self.partitions.get(partition)
        if progress is None or offset < progress.next_offset:
            return  # not ours any more, or read twice
        progress.add(offset, message)
        if message is None:
            return
        key = message.id if message.key is None else message.key
        queue = self._queues.setdefault(key, deque())
        queue.append(message)
        if len(queue) == 1:
            self._ready.append(message)

    def skip_to(self, partition: Partition, offset: int) -> None:
        """No record of the partition is below `offset` that was not offered."""
        if (progress := self.partitions.get(partition)) is not None:
            progress.next_offset = max(progress.next_offset, offset)

    def is_full(self, partition: Partition) -> bool:
        """Whether enough of the partition's messages wait, so that reading it should pause."""
        progress = self.partitions.get(partition)
        return progress is not None and (
            progress.unhandled >= _MAX_MESSAGES
            or progress.unhandled_bytes >= _MAX_BYTES
            or progress.span >= _MAX_SPAN
        )

    def revoke(self, partitions: Iterable[Partition]) -> None:
        """Forget partitions: another server delivers their messages. Late answers are ignored."""
        gone = set(partitions) & self.partitions.keys()
        for partition in gone:
            for message in self.partitions.pop(partition).messages:
                self._take_back(message)
                message.outcome = "filtered"  # marks it as not ours
        for key, queue in list(self._queues.items()):
            head = queue[0]
            kept = deque(each for each in queue if each.partition not in gone)
            if not kept:
                del self._queues[key]
            else:
                self._queues[key] = kept
                if kept[0] is not head:
                    self._ready.append(kept[0])
        self.exhausted = deque(each for each in self.exhausted if each.partition not in gone)

    # --- members ----------------------------------------------------------------------------------

    def join(self, member: Hashable, max_pending: int) -> None:
        self.members[member] = MemberState(max_pending)
        self._with_room[member] = None

    def leave(self, member: Hashable, *, in_order: bool) -> None:
        """Remove a member; its messages go to others.

        A member that leaves in order hands them back. Otherwise handling them may be what ended
        it, so that counts as a failed attempt.
        """
        state = self.members.pop(member, None)
        self._with_room.pop(member, None)
        if state is None:
            return
        for message in list(state.pending.values()):
            message.member, message.failed_with = None, member
            if in_order:
                self._hand_back(message)
            else:
                self._fail(message, _LOST)

    def set_full(self, member: Hashable, is_full: bool) -> None:
        """Deliver nothing to this member while its connection takes no more bytes."""
        if (state := self.members.get(member)) is not None:
            state.is_full = is_full
            self._update_room(member, state)

    def give_back(self, delivery: Delivery) -> None:
        """The message did not reach its member: others may have it, and it was not tried."""
        if delivery.is_current:
            self._take_back(delivery.message)
            self._hand_back(delivery.message)

    # --- answers ----------------------------------------------------------------------------------

    def ack(self, member: Hashable, message_id: str) -> bool:
        """The member has handled the message; False if the message is not this member's."""
        message = self._answered(member, message_id)
        if message is None:
            return False
        self._finish(message, "acknowledged")
        return True

    def nack(self, member: Hashable, message_id: str, reason: str, now: float) -> bool:
        """The member could not handle the message; it is delivered again after a pause."""
        message = self._answered(member, message_id)
        if message is None:
            return False
        pause = min(_FIRST_PAUSE * 2 ** min(message.attempt - 1, 30), self._ack_timeout)
        message.failed_with = member
        self._fail(message, reason or "it was refused without a reason", now + pause)
        return True

    def set_aside(self, message: Message) -> None:
        """The message is stored elsewhere: its key continues."""
        if message.outcome is None:
            self._finish(message, "set_aside")

    # --- time -------------------------------------------------------------------------------------

    def dispatch(self, now: float) -> list[Delivery]:
        """What to deliver now, after timeouts."""
        self._expire(now)
        deliveries: list[Delivery] = []
        if self.is_holding:
            return deliveries
        while self._ready and self._with_room:
            message = self._ready.popleft()
            if message.outcome is None:
                deliveries.append(self._deliver(message, now))
        return deliveries

    @property
    def next_time(self) -> float | None:
        """When `dispatch` has to be called again at the latest; None: after the next event."""
        times = [self._paused[0][0]] if self._paused else []
        while self._deliveries and not self._deliveries[0][1].is_current:
            self._deliveries.popleft()
        if self._deliveries:
            times.append(self._deliveries[0][0])
        return min(times, default=None)

    @property
    def in_flight(self) -> int:
        """Messages that members have not acknowledged."""
        return sum(len(state.pending) for state in self.members.values())

    @property
    def unhandled(self) -> int:
        """Messages that were read and not handled yet, in flight or waiting."""
        return sum(progress.unhandled for progress in self.partitions.values())

    def _expire(self, now: float) -> None:
        while self._deliveries and self._deliveries[0][0] <= now:
            _, delivery = self._deliveries.popleft()
            if delivery.is_current:
                message = delivery.message
                self._take_back(message)
                message.failed_with = delivery.member
                self._fail(message, f"it was not acknowledged within {self._ack_timeout:g} s")
        while self._paused and self._paused[0][0] <= now:
            self._ready.append(heapq.heappop(self._paused)[2])

    def _deliver(self, message: Message, now: float) -> Delivery:
        member = self._choose(message)
        state = self.members[member]
        message.attempt += 1
        message.member = member
        self.redelivered += message.attempt > 1
        state.pending[message.id] = message
        self._with_room.move_to_end(member)
        self._update_room(member, state)
        delivery = Delivery(member, message, message.attempt)
        self._deliveries.append((now + self._ack_timeout, delivery))
        return delivery

    def _choose(self, message: Message) -> Hashable:
        """The member that was served longest ago, but not the one that failed before."""
        members = iter(self._with_room)
        first = next(members)
        return next(members, first) if first == message.failed_with else first

    def _answered(self, member: Hashable, message_id: str) -> Message | None:
        state = self.members.get(member)
        message = None if state is None else state.pending.get(message_id)
        if message is not None:
            self._take_back(message)
        return message

    def _take_back(self, message: Message) -> None:
        member, message.member = message.member, None
        state = self.members.get(member)
        if state is not None and state.pending.pop(message.id, None) is not None:
            self._update_room(member, state)

    def _hand_back(self, message: Message) -> None:
        message.attempt -= 1
        self._ready.append(message)

    def _update_room(self, member: Hashable, state: MemberState) -> None:
        if state.has_room:
            self._with_room.setdefault(member)
        else:
            self._with_room.pop(member, None)

    def _fail(self, message: Message, reason: str, again_at: float | None = None) -> None:
        message.reason = reason
        if message.attempt >= self._max_attempts:
            self.exhausted.append(message)
        elif again_at is None:
            self._ready.append(message)
        else:
            heapq.heappush(self._paused, (again_at, next(self._numbers), message))

    def _finish(self, message: Message, outcome: Outcome) -> None:
        self.partitions[message.partition].finish(message, outcome)
        key = message.id if message.key is None else message.key
        queue = self._queues[key]
        queue.popleft()
        if queue:
            self._ready.append(queue[0])
        else:
            del self._queues[key]
