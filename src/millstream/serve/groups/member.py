"""A client's membership in a group: a source of messages for its connection."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from millstream.errors import QueryError
from millstream.serve.connections import SubscriptionReport
from millstream.serve.groups.definition import GroupRequest
from millstream.serve.views.encoding import encode

if TYPE_CHECKING:
    from millstream.serve.groups.dispatcher import Delivery
    from millstream.serve.groups.group import Group


class Member:
    """One member. Messages that it may get at once are limited by `max_pending`.

    `wake` is called when there are messages; the connection then calls `next_messages`.
    """

    def __init__(
        self,
        identifier: str,
        request: GroupRequest,
        caller: str,
        max_pending: int,
        wake: Callable[[], None],
    ) -> None:
        self.request = request
        self.caller = caller
        self.max_pending = max_pending
        self.skipped = 0  # nothing is ever left out
        self.has_more = False
        self.is_paused = False
        self.group: Group | None = None  # while it is a member
        self.has_ended = False  # it was redirected, or the group was dropped
        self._wake = wake
        self._id = encode(identifier)
        self._deliveries: deque[Delivery] = deque()
        self._others: list[bytes] = []  # other messages than the group's

    @property
    def report(self) -> SubscriptionReport:
        wanted = self.request
        behind = len(self._deliveries)  # messages that wait for room in the connection
        return SubscriptionReport(wanted.kind, wanted.source, wanted.where, behind)

    # --- for the connection -----------------------------------------------------------------------

    def next_messages(self, size: int = 65_536) -> list[bytes]:
        messages, self._others = self._others, []
        while self._deliveries and size > 0:
            delivery = self._deliveries.popleft()
            if not delivery.is_current:
                continue  # it waited here for too long, and is another member's now
            messages.append(self._encode(delivery))
            size -= len(messages[-1])
            if self.group is not None:
                self.group.note_sent(self, delivery)
        if self.group is not None and not self._deliveries:
            self.group.set_full(self, False)
        return messages

    def mark_slow(self) -> None:
        """The connection has no room: messages that wait for it go to other members."""
        if self.group is not None:
            self.group.set_full(self, True)
            self._give_back()

    def is_too_slow(self, full_seconds: float) -> bool:
        return False  # messages that it does not take go to other members

    def refresh(self) -> bytes | None:
        return None

    def update(self, fields: Mapping[str, object]) -> None:
        raise QueryError(
            "the subscription of a group's member cannot be changed",
            remedy="drop the group, and create it again with other options",
        )

    def pause(self) -> None:
        """Take no further messages until `resume`."""
        self.is_paused = True
        self.mark_slow()

    def resume(self) -> None:
        self.is_paused = False
        if self.group is not None:
            self.group.set_full(self, False)

    def close(self) -> None:
        """The connection is gone; messages that it has not acknowledged are delivered again."""
        self._leave(in_order=False)

    # --- for the client ---------------------------------------------------------------------------

    def ack(self, message_id: str) -> None:
        """The client has handled a message. A late answer, after a timeout, is ignored."""
        if self.group is not None:
            self.group.ack(self, message_id)

    def nack(self, message_id: str, reason: str) -> None:
        """The client could not handle a message."""
        if self.group is not None:
            self.group.nack(self, message_id, reason)

    def hand_back(self) -> None:
        """The client unsubscribes: its messages go to others, and count as not tried."""
        self._leave(in_order=True)

    # --- for the group ----------------------------------------------------------------------------

    def deliver(self, delivery: Delivery) -> None:
        self._deliveries.append(delivery)

    def wake(self) -> None:
        self._wake()

    def redirect(self, url: str | None) -> None:
        """Send the client to another server; None: subscribe again, here or anywhere."""
        self._finish(encode({"type": "redirect", "url": url}))

    def fail(self, title: str, detail: str) -> None:
        """End the membership, and tell the client why."""
        self._finish(encode({"type": "error", "title": title, "detail": detail}))

    def _give_back(self) -> None:
        deliveries, self._deliveries = self._deliveries, deque()
        if self.group is not None and deliveries:
            self.group.give_back(deliveries)

    def _finish(self, message: bytes) -> None:
        self._leave(in_order=True)
        self.has_ended = True
        self._others.append(b'%b,"id":%b}' % (message[:-1], self._id))
        self._wake()

    def _leave(self, *, in_order: bool) -> None:
        self._give_back()
        group, self.group = self.group, None
        if group is not None:
            group.leave(self, in_order=in_order)

    def _encode(self, delivery: Delivery) -> bytes:
        message = delivery.message
        return b'{"type":"message","id":%b,"message":"%b","attempt":%d,"position":"%b",%b}' % (
            self._id,
            message.id.encode(),
            delivery.attempt,
            message.position.encode(),
            message.body,
        )
