"""`Sender`: sends events in batches and reports every outcome."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, Callable, Iterable
from typing import Self
from urllib.parse import quote

import httpx
import msgspec

from millstream.client.backoff import Backoff
from millstream.client.batch import Event, batches
from millstream.client.credentials import Credentials, Key
from millstream.client.delivery import Delivery, Outcomes, Rejection
from millstream.client.servers import Servers
from millstream.errors import MillstreamError, NotAllSent

_MAX_REJECTIONS = 1000  # that a collector lists in one answer


class Sent(msgspec.Struct, frozen=True):
    """The outcome of sending: each event is accepted or rejected."""

    accepted: int
    rejected: list[Rejection]
    receipts: list[str]  # of the accepted events, if requested
    future: list[int] = []  # indexes of accepted events that are too far ahead for any view


class Sender:
    """Sends events to any collector of one system.

    Events arrive in order: a batch is sent after the one before it was answered. With
    `concurrency` above 1, several batches are sent at once: faster, but without order. If a
    collector asks to wait (429, 503), a batch is retried for `patience` seconds. If a connection
    breaks before the answer, it is unclear whether the batch was accepted. It is sent again only
    with `retry_unclear=True`, which can store events twice; otherwise NotAllSent lists the events.

    `key` is an API key or a token, for a collector with logins, or a function that returns the
    current token; `ca` a file (PEM) of authorities
    that sign the collector's certificate, instead of the usual ones.
    """

    def __init__(
        self,
        *urls: str,
        batch: int = 500,
        concurrency: int = 1,
        patience: float = 60.0,
        timeout: float = 30.0,
        retry_unclear: bool = False,
        key: Key = "",
        ca: str = "",
        backoff: Backoff | None = None,
    ) -> None:
        self._batch = min(batch, _MAX_REJECTIONS)
        self._concurrency = concurrency
        # Close idle connections before the collector does (5 s): a batch on a closing connection
        # would have an unclear outcome.
        limits = httpx.Limits(max_connections=concurrency, keepalive_expiry=2.0)
        self._delivery = Delivery(
            httpx.AsyncClient(timeout=timeout, limits=limits, **Credentials(key, ca).options()),
            Servers(urls),
            backoff or Backoff(),
            patience=patience,
            retry_unclear=retry_unclear,
        )

    async def send(
        self,
        stream: str,
        events: Iterable[Event] | AsyncIterable[Event],
        *,
        progress: Callable[[int, int], None] | None = None,
        receipts: bool = False,
    ) -> Sent:
        """Send all events: JSON text, or values that msgspec encodes. Blank text is skipped.

        `progress` is called with the totals of accepted and rejected events after each batch.
        NotAllSent if not all events could be sent; batches in progress are finished first.
        """
        path = f"/v1/streams/{quote(stream, safe='')}"
        outcomes, failures = Outcomes(), list[MillstreamError]()
        waiting, lock = batches(events, self._batch), asyncio.Lock()

        async def work() -> None:
            while not failures:
                async with lock:  # an iterator can have only one reader at a time
                    batch = await anext(waiting, None)
                if batch is None:
                    return
                try:
                    await self._delivery.deliver(path, batch, outcomes, receipts=receipts)
                except MillstreamError as error:
                    failures.append(error)
                if progress is not None:
                    progress(outcomes.accepted, len(outcomes.rejected))

        async with asyncio.TaskGroup() as tasks:
            for _ in range(self._concurrency):
                tasks.create_task(work())
        outcomes.rejected.sort(key=lambda rejection: rejection.index)
        if failures:
            raise _not_all(stream, outcomes, failures[0]) from failures[0]
        return Sent(
            outcomes.accepted, outcomes.rejected, outcomes.receipts, sorted(outcomes.future)
        )

    async def close(self) -> None:
        await self._delivery.http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def _not_all(stream: str, outcomes: Outcomes, cause: MillstreamError) -> NotAllSent:
    unclear = tuple(sorted(outcomes.unclear))
    counted = f"{outcomes.accepted} accepted, {len(outcomes.rejected)} rejected"
    if unclear:
        counted += f", {len(unclear)} unclear (from the event at {unclear[0]} on)"
    again = "retry_unclear=True sends them again, if duplicates do no harm"
    return NotAllSent(
        f"cannot send everything to {stream}: {cause.message}; {counted}",
        accepted=outcomes.accepted,
        rejected=len(outcomes.rejected),
        unclear=unclear,
        remedy=again if unclear else cause.remedy,
    )
