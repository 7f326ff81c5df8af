"""Sends simulated events: CloudEvents over HTTP, one request after another, in order."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Self
from urllib.parse import urlsplit

from millstream.errors import MillstreamError
from millstream.simulation.faults import SentEvent

_BATCH_EVENTS = 500
_BATCH_SECONDS = 0.05  # events that are due within this time share a request


class EventSender:
    """Sends events to one stream of one collector. Used by one thread."""

    def __init__(self, url: str, stream: str, *, source: str = "simulation") -> None:
        parts = urlsplit(url)
        self._where, self._path = url, f"/v1/streams/{stream}"
        self._source = source
        self._http = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=60)

    def send(
        self, sendings: Iterable[SentEvent], *, when: Callable[[int], float] | None = None
    ) -> int:
        """Send all events and wait until they are logged; returns how many.

        `when` converts the time at which an event is due to seconds since the epoch; without it,
        events are sent as fast as possible. MillstreamError if one was not accepted.
        """
        sent = 0
        for batch in _batches(sendings, when):
            if when and (wait := when(batch[-1].due) - time.time()) > 0:
                time.sleep(wait)
            self._post(batch)
            sent += len(batch)
        return sent

    def close(self) -> None:
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _post(self, batch: Sequence[SentEvent]) -> None:
        body = json.dumps([self._cloud_event(each) for each in batch], ensure_ascii=False).encode()
        headers = {"content-type": "application/cloudevents-batch+json"}
        try:
            self._http.request("POST", self._path, body, headers)
            response = self._http.getresponse()
            answer = response.read().decode(errors="replace")
        except OSError as error:
            self._http.close()
            raise MillstreamError(
                f"cannot send to {self._where}{self._path}: {error}",
                remedy="start the pipeline first, or give --url of its collector",
            ) from None
        if response.status != 200 or json.loads(answer).get("rejected"):
            raise MillstreamError(
                f"{self._where}{self._path} did not accept {len(batch)} events:"
                f" {response.status} {answer[:300]}",
                remedy="run the example's own pipeline, which declares this stream",
            )

    def _cloud_event(self, sending: SentEvent) -> dict[str, object]:
        return {
            "specversion": "1.0",
            "id": sending.id,
            "source": self._source,
            "type": "simulated",
            "data": sending.event,
        }


def _batches(
    sendings: Iterable[SentEvent], when: Callable[[int], float] | None
) -> Iterator[list[SentEvent]]:
    """The events of each request: those that are due at about the same time."""
    batch: list[SentEvent] = []
    for each in sendings:
        apart = bool(when and batch and when(each.due) - when(batch[0].due) > _BATCH_SECONDS)
        if batch and (apart or len(batch) == _BATCH_EVENTS):
            yield batch
            batch = []
        batch.append(each)
    if batch:
        yield batch
