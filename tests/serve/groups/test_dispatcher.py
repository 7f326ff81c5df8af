"""The dispatcher keeps order per key, redelivers, and never loses a message."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from millstream.serve.groups.dispatcher import Delivery, Dispatcher
from millstream.serve.groups.progress import Message

TIMEOUT = 30.0
P0, P1 = ("orders", 0), ("orders", 1)


def dispatcher(max_attempts: int = 5, partitions: int = 1) -> Dispatcher:
    made = Dispatcher(ack_timeout=TIMEOUT, max_attempts=max_attempts)
    for partition in range(partitions):
        made.assign(("orders", partition), 0)
    return made


def message(offset: int, key: str | None, partition: int = 0) -> Message:
    return Message(f"{partition}-{offset}", ("orders", partition), offset, key, b"{}")


def offer(group: Dispatcher, *keys: str | None) -> None:
    first = group.partitions[P0].next_offset
    for offset, key in enumerate(keys, first):
        group.offer(P0, offset, message(offset, key))


def shown(deliveries: list[Delivery]) -> list[tuple[object, str, int]]:
    return [(each.member, each.message.id, each.attempt) for each in deliveries]


def test_a_message_goes_to_one_member_and_the_next_one_to_another() -> None:
    group = dispatcher()
    group.join("a", 10)
    group.join("b", 10)
    offer(group, "x", "y", "z")
    assert shown(group.dispatch(0)) == [("a", "0-0", 1), ("b", "0-1", 1), ("a", "0-2", 1)]


def test_a_key_waits_for_its_message_before_and_others_do_not() -> None:
    group = dispatcher()
    group.join("a", 10)
    offer(group, "x", "x", "y")
    assert shown(group.dispatch(0)) == [("a", "0-0", 1), ("a", "0-2", 1)]
    assert group.ack("a", "0-0")
    assert shown(group.dispatch(0)) == [("a", "0-1", 1)]


def test_messages_without_a_key_do_not_wait_for_each_other() -> None:
    group = dispatcher()
    group.join("a", 10)
    offer(group, None, None)
    assert len(group.dispatch(0)) == 2


def test_a_member_gets_no_more_than_it_asked_for() -> None:
    group = dispatcher()
    group.join("a", 2)
    offer(group, "x", "y", "z")
    assert len(group.dispatch(0)) == 2
    assert group.dispatch(0) == []
    group.ack("a", "0-1")
    assert shown(group.dispatch(0)) == [("a", "0-2", 1)]


def test_a_member_whose_connection_is_full_gets_nothing() -> None:
    group = dispatcher()
    group.join("a", 10)
    group.set_full("a", True)
    offer(group, "x")
    assert group.dispatch(0) == []
    group.set_full("a", False)
    assert len(group.dispatch(0)) == 1


def test_a_message_that_is_not_acknowledged_in_time_goes_to_another_member() -> None:
    group = dispatcher()
    group.join("a", 1)
    offer(group, "x", "x")
    group.dispatch(0)
    group.join("b", 1)
    assert group.next_time == TIMEOUT
    assert group.dispatch(TIMEOUT - 1) == []
    assert shown(group.dispatch(TIMEOUT)) == [("b", "0-0", 2)]
    assert not group.ack("a", "0-0")  # too late: it is b's now
    assert group.ack("b", "0-0")


def test_a_message_whose_member_is_gone_goes_to_another_one_as_a_further_attempt() -> None:
    group = dispatcher()
    group.join("a", 1)
    offer(group, "x")
    group.dispatch(0)
    group.join("b", 1)
    group.leave("a", in_order=False)
    assert shown(group.dispatch(0)) == [("b", "0-0", 2)]


def test_a_member_that_leaves_in_order_hands_its_messages_back() -> None:
    group = dispatcher(max_attempts=1)
    group.join("a", 1)
    offer(group, "x")
    group.dispatch(0)
    group.leave("a", in_order=True)
    group.join("b", 1)
    assert shown(group.dispatch(0)) == [("b", "0-0", 1)]


def test_a_message_that_did_not_reach_its_member_goes_to_another_one_untried() -> None:
    group = dispatcher()
    group.join("a", 1)
    offer(group, "x")
    (delivery,) = group.dispatch(0)
    group.set_full("a", True)
    group.give_back(delivery)
    group.join("b", 1)
    assert shown(group.dispatch(0)) == [("b", "0-0", 1)]
    group.give_back(delivery)  # a's, which has ended
    assert group.ack("b", "0-0")


def test_a_refused_message_comes_again_after_a_pause_that_doubles() -> None:
    group = dispatcher()
    group.join("a", 1)
    offer(group, "x")
    now = 0.0
    for pause in (0.1, 0.2, 0.4):
        assert len(group.dispatch(now)) == 1
        assert group.nack("a", "0-0", "no", now)
        assert group.dispatch(now + pause / 2) == []
        now += pause
        assert group.next_time == now


def test_after_the_last_attempt_a_message_is_set_aside_and_its_key_continues() -> None:
    group = dispatcher(max_attempts=2)
    group.join("a", 1)
    offer(group, "x", "x")
    group.dispatch(0)
    group.nack("a", "0-0", "bad price", 0)
    group.dispatch(1)
    group.nack("a", "0-0", "bad price", 1)
    assert group.dispatch(100) == []  # the key waits until the message is stored
    failed = group.exhausted.popleft()
    assert (failed.id, failed.attempt, failed.reason) == ("0-0", 2, "bad price")
    group.set_aside(failed)
    assert shown(group.dispatch(100)) == [("a", "0-1", 1)]
    assert group.partitions[P0].position == 1
    assert group.partitions[P0].counts.set_aside == 1


def test_the_position_stays_before_the_first_message_that_is_not_handled() -> None:
    group = dispatcher()
    group.join("a", 10)
    offer(group, "x", "y", "z")
    group.dispatch(0)
    group.ack("a", "0-2")
    group.ack("a", "0-1")
    assert group.partitions[P0].position == 0
    group.ack("a", "0-0")
    assert group.partitions[P0].position == 3
    assert group.partitions[P0].counts.acknowledged == 3


def test_a_record_that_is_no_message_moves_the_position() -> None:
    group = dispatcher()
    group.offer(P0, 0, None)
    group.offer(P0, 5, None)  # Kafka compacted the records between
    assert group.partitions[P0].position == 6
    assert group.partitions[P0].counts.filtered == 2


def test_a_partition_with_many_unhandled_messages_is_full_until_some_are_handled() -> None:
    group = dispatcher()
    group.join("a", 10_000)
    offer(group, *(str(number) for number in range(1_000)))
    assert group.is_full(P0)
    group.dispatch(0)
    group.ack("a", "0-7")
    assert not group.is_full(P0)


def test_a_revoked_partition_is_forgotten_and_late_answers_are_ignored() -> None:
    group = dispatcher(partitions=2)
    group.join("a", 10)
    group.offer(P0, 0, message(0, "x"))
    group.offer(P1, 0, message(0, "y", partition=1))
    group.offer(P1, 1, message(1, "y", partition=1))
    group.dispatch(0)
    group.revoke([P0])
    assert not group.ack("a", "0-0")
    assert group.ack("a", "1-0")
    assert shown(group.dispatch(0)) == [("a", "1-1", 1)]
    group.revoke([P1])
    assert (group.unhandled, group.in_flight, group.dispatch(1_000)) == (0, 0, [])


def test_while_it_holds_nothing_is_delivered_and_answers_still_count() -> None:
    group = dispatcher()
    group.join("a", 10)
    offer(group, "x", "x")
    group.dispatch(0)
    group.is_holding = True
    assert group.ack("a", "0-0")
    assert group.dispatch(0) == []
    assert group.partitions[P0].position == 1


class RandomGroup(RuleBasedStateMachine):
    """Members come, go, acknowledge, refuse and fall silent; partitions come and go."""

    def __init__(self) -> None:
        super().__init__()
        self.group = dispatcher(max_attempts=3, partitions=3)
        self.now = 0.0
        self.log: dict[int, list[Message | None]] = {0: [], 1: [], 2: []}
        self.handled: dict[int, set[int]] = {0: set(), 1: set(), 2: set()}
        self.number = 0

    @rule(partition=st.integers(0, 2), key=st.sampled_from("abcd"), is_message=st.booleans())
    def write(self, partition: int, key: str, is_message: bool) -> None:
        offset = len(self.log[partition])
        made = message(offset, f"{partition}{key}", partition) if is_message else None
        self.log[partition].append(made)
        self.group.offer(("orders", partition), offset, made)

    @rule(max_pending=st.integers(1, 3))
    def join(self, max_pending: int) -> None:
        self.number += 1
        self.group.join(self.number, max_pending)

    @precondition(lambda self: self.group.members)
    @rule(data=st.data(), in_order=st.booleans())
    def leave(self, data: st.DataObject, in_order: bool) -> None:
        self.group.leave(data.draw(st.sampled_from(list(self.group.members))), in_order=in_order)

    @precondition(lambda self: self.group.in_flight)
    @rule(data=st.data(), answer=st.sampled_from(["ack", "ack", "nack"]))
    def answer(self, data: st.DataObject, answer: str) -> None:
        held = [(m, each) for m, s in self.group.members.items() for each in s.pending.values()]
        member, held_message = data.draw(st.sampled_from(held))
        if answer == "ack":
            assert self.group.ack(member, held_message.id)
            self._handle(held_message)
        else:
            assert self.group.nack(member, held_message.id, "no", self.now)

    @rule(seconds=st.sampled_from([0.0, 0.3, 10.0, 31.0]))
    def dispatch(self, seconds: float) -> None:
        self.now += seconds
        deliveries = self.group.dispatch(self.now)
        while self.group.exhausted:
            failed = self.group.exhausted.popleft()
            assert failed.attempt == 3
            self._handle(failed)
            self.group.set_aside(failed)
        for delivery in deliveries:
            self._check(delivery.message)

    @rule(partition=st.integers(0, 2))
    def rebalance(self, partition: int) -> None:
        """The partition goes elsewhere and comes back: reading continues at its position."""
        position = self.group.partitions["orders", partition].position
        counts = self.group.partitions["orders", partition].counts
        self.group.revoke([("orders", partition)])
        self.group.assign(("orders", partition), position, counts)
        self.handled[partition] = {each for each in self.handled[partition] if each < position}
        for offset in range(position, len(self.log[partition])):
            held = self.log[partition][offset]
            again = None if held is None else message(offset, str(held.key), partition)
            self.log[partition][offset] = again
            self.group.offer(("orders", partition), offset, again)

    @invariant()
    def the_position_is_before_the_first_unhandled_message(self) -> None:
        for (_, partition), progress in self.group.partitions.items():
            records = self.log[partition]
            unhandled = [
                offset
                for offset, each in enumerate(records)
                if each is not None and offset not in self.handled[partition]
            ]
            assert progress.position == min(unhandled, default=len(records))
            counts = progress.counts
            below = counts.acknowledged + counts.set_aside + counts.filtered
            assert below == progress.position
            assert progress.unhandled == len(unhandled)

    @invariant()
    def a_key_has_one_message_in_flight_and_no_member_has_too_many(self) -> None:
        keys = [each.key for s in self.group.members.values() for each in s.pending.values()]
        assert len(keys) == len(set(keys))
        assert all(len(s.pending) <= s.max_pending for s in self.group.members.values())

    def _handle(self, handled: Message) -> None:
        self.handled[handled.partition[1]].add(handled.offset)

    def _check(self, delivered: Message) -> None:
        """Everything earlier of the same key is handled."""
        _, partition = delivered.partition
        for earlier in self.log[partition][: delivered.offset]:
            if earlier is not None and earlier.key == delivered.key:
                assert earlier.offset in self.handled[partition]

    def teardown(self) -> None:
        """With one member that works, everything is handled."""
        self.group.join("last", 100)
        for _ in range(10_000):
            self.now += 31.0
            for delivery in self.group.dispatch(self.now):
                if delivery.member == "last":
                    self.group.ack("last", delivery.message.id)
            while self.group.exhausted:
                self.group.set_aside(self.group.exhausted.popleft())
            if not self.group.unhandled:
                break
        assert self.group.unhandled == 0


RandomGroup.TestCase.settings = settings(max_examples=100, stateful_step_count=60, deadline=None)
TestRandomGroup = RandomGroup.TestCase
