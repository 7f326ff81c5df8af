"""One batch's way into a collector, until its outcome is known or patience ends."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime

import httpx
import msgspec

from millstream.client.backoff import Backoff
from millstream.client.batch import Batch
from millstream.client.servers import Servers, problem
from millstream.errors import MillstreamError, NotReachable, RequestRefused

_HEADERS = {"content-type": "application/x-ndjson"}
# Nothing of the batch has left this machine.
_NOT_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)
_AGAIN = frozenset({429, 503})
_NO_LOGIN = "give Sender(key=…), or the command the variable MILLSTREAM_KEY or --key-file"


class Rejection(msgspec.Struct, frozen=True):
    """An event that does not fit the stream, by its place (from 0) in what was sent."""

    index: int
    error: str
    field: str = ""


@dataclass(slots=True)
class Tally:
    """What became of the events so far."""

    accepted: int = 0
    rejected: list[Rejection] = field(default_factory=list)
    receipts: list[str] = field(default_factory=list)
    future: list[int] = field(default_factory=list)
    unclear: list[int] = field(default_factory=list)


class Unclear(MillstreamError):
    """Whether (part of) a batch is in cannot be known."""


class _Said(msgspec.Struct):
    """A collector's answer; `unconfirmed` are places whose outcome it doesn't know itself."""

    accepted: int = 0
    receipts: list[str] = []
    rejected: list[Rejection] = []
    future: list[int] = []
    unconfirmed: list[int] = []


@dataclass(frozen=True, slots=True)
class Delivery:
    """Hands batches to whichever collector answers."""

    http: httpx.AsyncClient
    servers: Servers
    backoff: Backoff
    patience: float
    retry_unclear: bool

    async def deliver(self, path: str, batch: Batch, tally: Tally, *, receipts: bool) -> None:
        """Return when every event of the batch is in the tally.

        NotReachable, RequestRefused: what the tally lacks is not in. Unclear: the tally says which.
        """
        end, failures, doubt = time.monotonic() + self.patience, 0, False
        while True:
            server, wait = self.servers.current, 0.0
            try:
                response = await self.http.post(server + path, content=batch.body, headers=_HEADERS)
            except httpx.TransportError as error:
                reason = f"{server}: {str(error) or type(error).__name__}"
                doubt = doubt or not isinstance(error, _NOT_SENT)
                self.servers.move_on()
            else:
                reason = f"{server}: {problem(response)}"
                try:
                    said = _said(response, batch)
                except RequestRefused:
                    tally.unclear += batch.indexes if doubt else ()
                    raise
                if said is None:
                    doubt = True
                else:
                    _count(said, batch, tally, receipts=receipts)
                    if response.status_code not in _AGAIN:
                        return
                    wait = _asked_wait(response)
                    if said.unconfirmed:
                        batch, doubt = batch.only(said.unconfirmed), True
            failures += 1
            wait = max(wait, self.backoff.after(failures))
            late = time.monotonic() + wait > end
            if doubt and (late or not self.retry_unclear):
                tally.unclear += batch.indexes
                raise Unclear(reason)
            if late:
                raise NotReachable(
                    f"{reason} (tried {failures} times)", remedy="send the rest later"
                )
            await asyncio.sleep(wait)


def _said(response: httpx.Response, batch: Batch) -> _Said | None:
    """What the collector says of the batch; None if someone between us answered in its place."""
    if response.status_code == 204:
        return _Said(accepted=len(batch.lines))
    if response.is_success or response.status_code in (*_AGAIN, 422):
        try:
            return msgspec.json.decode(response.content, type=_Said)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return None if response.is_success else _Said()
    if response.status_code >= 500:
        return None
    remedy = _NO_LOGIN if response.status_code == 401 else ""
    raise RequestRefused(problem(response), status=response.status_code, remedy=remedy)


def _count(said: _Said, batch: Batch, tally: Tally, *, receipts: bool) -> None:
    tally.accepted += said.accepted
    tally.rejected += [
        Rejection(batch.indexes[one.index], one.error, one.field) for one in said.rejected
    ]
    tally.future += [batch.indexes[index] for index in said.future]
    if receipts:
        tally.receipts += said.receipts


def _asked_wait(response: httpx.Response) -> float:
    """Seconds that Retry-After asks for."""
    text = response.headers.get("retry-after", "")
    if text.isdigit():
        return float(text)
    try:
        return max(0.0, parsedate_to_datetime(text).timestamp() - time.time())
    except ValueError:
        return 0.0
