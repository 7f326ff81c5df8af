"""Sends events in batches, in their order unless told otherwise, and reports every outcome."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, Callable, Iterable
from types import TracebackType
from typing import Self
from urllib.parse import quote

import httpx
import msgspec

from millstream.client.access import Access
from millstream.client.backoff import Backoff
from millstream.client.batch import Event, batches
from millstream.client.delivery import Delivery, Rejection, Tally
from millstream.client.servers import Servers
from millstream.errors import MillstreamError, NotAllSent

_MOST_EXPLAINED = 1000  # rejected events of one request that a collector names


class Sent(msgspec.Struct, frozen=True):
    """What became of the events: each is accepted or rejected."""

    accepted: int
    rejected: list[Rejection]
    receipts: list[str]  # of the accepted, if asked for
    future: list[int] = []  # places of those accepted that are dated too far ahead for any view


class Sender:
    """Hands events to one system through any of its collectors.

    Events arrive in the order in which they are given: a batch is sent when the one before it was
    answered, after retries too. With `concurrency` above 1, so many batches are under way at once:
    faster, but they overtake each other. A collector that asks to wait (429, 503) is obeyed,
    `patience` seconds for a batch. A connection
    that breaks before the answer leaves it open whether the batch is in: it is sent again only with
    `retry_unclear=True`, which can store events twice; otherwise NotAllSent names them.

    `key` is an API key or a token, for a collector that asks who sends; `ca` a file of certificates
    (PEM) to know the collector by, instead of the usual authorities.
    """

    def __init__(
        self,
        *urls: str,
        batch: int = 500,
        concurrency: int = 1,
        patience: float = 60.0,
        timeout: float = 30.0,
        retry_unclear: bool = False,
        key: str = "",
        ca: str = "",
        backoff: Backoff | None = None,
    ) -> None:
        self._batch = min(batch, _MOST_EXPLAINED)
        self._concurrency = concurrency
        # Idle connections end before the collector ends them (5 s): a batch that met a closing one
        # would have an unclear outcome.
        limits = httpx.Limits(max_connections=concurrency, keepalive_expiry=2.0)
        self._delivery = Delivery(
            httpx.AsyncClient(timeout=timeout, limits=limits, **Access(key, ca).options()),
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
        """Hand in all events: JSON text, or what msgspec writes as JSON. Blank text is skipped.

        `progress` is told the sums of accepted and rejected after each batch. NotAllSent if it had
        to stop before the end; batches under way are seen through first.
        """
        path = f"/v1/streams/{quote(stream, safe='')}"
        tally, failures = Tally(), list[MillstreamError]()
        waiting, taking = batches(events, self._batch), asyncio.Lock()

        async def work() -> None:
            while not failures:
                async with taking:  # an iterator has one reader at a time
                    batch = await anext(waiting, None)
                if batch is None:
                    return
                try:
                    await self._delivery.deliver(path, batch, tally, receipts=receipts)
                except MillstreamError as error:
                    failures.append(error)
                if progress is not None:
                    progress(tally.accepted, len(tally.rejected))

        async with asyncio.TaskGroup() as tasks:
            for _ in range(self._concurrency):
                tasks.create_task(work())
        tally.rejected.sort(key=lambda rejection: rejection.index)
        if failures:
            raise _not_all(stream, tally, failures[0]) from failures[0]
        return Sent(tally.accepted, tally.rejected, tally.receipts, sorted(tally.future))

    async def close(self) -> None:
        await self._delivery.http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        await self.close()


def _not_all(stream: str, tally: Tally, cause: MillstreamError) -> NotAllSent:
    unclear = tuple(sorted(tally.unclear))
    counted = f"{tally.accepted} accepted, {len(tally.rejected)} rejected"
    if unclear:
        counted += f", {len(unclear)} unclear (from the event at {unclear[0]} on)"
    again = "retry_unclear=True sends them again, if the stream's readers can bear repeats"
    return NotAllSent(
        f"cannot send everything to {stream}: {cause.message}; {counted}",
        accepted=tally.accepted,
        rejected=len(tally.rejected),
        unclear=unclear,
        remedy=again if unclear else cause.remedy,
    )
