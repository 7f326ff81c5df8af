"""Sends one batch to a collector, with retries, until its outcome is known or time is up."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime

import httpx
import msgspec

from millstream.client.backoff import Backoff
from millstream.client.batch import EventBatch
from millstream.client.servers import Servers, problem
from millstream.errors import MillstreamError, NotReachable, RequestRefused

_HEADERS = {"content-type": "application/x-ndjson"}
# After these errors, nothing of the batch has been sent.
_NOT_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)
_RETRIED = frozenset({429, 503})
_NO_LOGIN = "give Sender(key=…), or the command the variable MILLSTREAM_KEY or --key-file"


class Rejection(msgspec.Struct, frozen=True):
    """An event that does not fit the stream, by its index (from 0) among the events sent."""

    index: int
    error: str
    field: str = ""


@dataclass(slots=True)
class Outcomes:
    """The outcomes of the events so far."""

    accepted: int = 0
    rejected: list[Rejection] = field(default_factory=list)
    receipts: list[str] = field(default_factory=list)
    future: list[int] = field(default_factory=list)
    unclear: list[int] = field(default_factory=list)


class OutcomeUnclear(MillstreamError):
    """It is unknown whether a batch, or a part of it, was accepted."""


class _Answer(msgspec.Struct):
    """A collector's answer; it does not know the outcome of the events at `unconfirmed`."""

    accepted: int = 0
    receipts: list[str] = []
    rejected: list[Rejection] = []
    future: list[int] = []
    unconfirmed: list[int] = []


@dataclass(frozen=True, slots=True)
class Delivery:
    """Sends batches to the collector that answers."""

    http: httpx.AsyncClient
    servers: Servers
    backoff: Backoff
    patience: float
    retry_unclear: bool

    async def deliver(
        self, path: str, batch: EventBatch, outcomes: Outcomes, *, receipts: bool
    ) -> None:
        """Send a batch, and add the outcome of every event to `outcomes`.

        NotReachable, RequestRefused: events without an outcome were not accepted. OutcomeUnclear:
        they are in `outcomes.unclear`.
        """
        end, failures, unclear = time.monotonic() + self.patience, 0, False
        while True:
            server, wait = self.servers.current, 0.0
            try:
                response = await self.http.post(server + path, content=batch.body, headers=_HEADERS)
            except httpx.TransportError as error:
                reason = f"{server}: {str(error) or type(error).__name__}"
                unclear = unclear or not isinstance(error, _NOT_SENT)
                self.servers.use_next()
            else:
                reason = f"{server}: {problem(response)}"
                try:
                    answer = _read_answer(response, batch)
                except RequestRefused:
                    outcomes.unclear += batch.indexes if unclear else ()
                    raise
                if answer is None:
                    unclear = True
                else:
                    _count(answer, batch, outcomes, receipts=receipts)
                    if response.status_code not in _RETRIED:
                        return
                    wait = _retry_after(response)
                    if answer.unconfirmed:
                        batch, unclear = batch.only(answer.unconfirmed), True
            failures += 1
            wait = max(wait, self.backoff.after(failures))
            is_late = time.monotonic() + wait > end
            if unclear and (is_late or not self.retry_unclear):
                outcomes.unclear += batch.indexes
                raise OutcomeUnclear(reason)
            if is_late:
                raise NotReachable(
                    f"{reason} (tried {failures} times)", remedy="send the rest later"
                )
            await asyncio.sleep(wait)


def _read_answer(response: httpx.Response, batch: EventBatch) -> _Answer | None:
    """The collector's answer about the batch; None if a proxy answered instead of it."""
    if response.status_code == 204:
        return _Answer(accepted=len(batch.lines))
    if response.is_success or response.status_code in (*_RETRIED, 422):
        try:
            return msgspec.json.decode(response.content, type=_Answer)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return None if response.is_success else _Answer()
    if response.status_code >= 500:
        return None
    remedy = _NO_LOGIN if response.status_code == 401 else ""
    raise RequestRefused(problem(response), status=response.status_code, remedy=remedy)


def _count(answer: _Answer, batch: EventBatch, outcomes: Outcomes, *, receipts: bool) -> None:
    outcomes.accepted += answer.accepted
    outcomes.rejected += [
        Rejection(batch.indexes[one.index], one.error, one.field) for one in answer.rejected
    ]
    outcomes.future += [batch.indexes[index] for index in answer.future]
    if receipts:
        outcomes.receipts += answer.receipts


def _retry_after(response: httpx.Response) -> float:
    """Seconds to wait, by the Retry-After header."""
    text = response.headers.get("retry-after", "")
    if text.isdigit():
        return float(text)
    try:
        return max(0.0, parsedate_to_datetime(text).timestamp() - time.time())
    except ValueError:
        return 0.0
