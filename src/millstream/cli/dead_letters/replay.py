"""Handing rejected events in again, each once."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import click
import httpx
import msgspec

from millstream.cli.dead_letters.selection import batches, progress_bar
from millstream.cli.shared.text import harmless
from millstream.client.servers import problem
from millstream.collect.schemas import remembered_stream
from millstream.errors import InvalidEvent, MillstreamError, NotReachable, RequestRefused
from millstream.log.search import Look, Search
from millstream.log.topic_names import stream_topic
from millstream.values import event

if TYPE_CHECKING:
    from millstream.client.access import Access
    from millstream.log.dead_letters.rejected import Rejected
    from millstream.log.record import Record
    from millstream.log.settings import LogSettings
    from millstream.pipeline.model import Stream

_CONTENT_TYPE = "application/cloudevents-batch+json"
_PATIENCE = 60.0  # seconds, with a collector that asks to wait
_FAILURES_SHOWN = 20
_OURS = {
    *(event.SPECVERSION, event.COLLECTOR, event.SEQUENCE, event.INDEX, event.FINGERPRINT),
    event.WATERMARK,
}


def replay_events(
    log: LogSettings,
    app: str,
    stream: str,
    events: Sequence[Rejected],
    url: str,
    access: Access,
    *,
    dry_run: bool,
) -> int:
    """Send those that fit by now, and tell what became of all; how many still do not fit."""
    good, bad = sort_out(remembered_stream(log, app, stream), events)
    before = replayed_before(log, app, stream, good)
    fresh = [one for one in good if event_id(one) not in before]
    refused: list[tuple[Rejected, str]] = []
    if not dry_run:
        with progress_bar("replaying", len(fresh)) as advance:
            refused = send(url, access, app, stream, fresh, advance)
    for one, why in [*bad, *refused][:_FAILURES_SHOWN]:
        click.echo(f"{one.id}: {harmless(why)}", err=True)
    failed = len(bad) + len(refused)
    if failed > _FAILURES_SHOWN:
        click.echo(f"… and {failed - _FAILURES_SHOWN:,} more", err=True)
    done = "would be replayed" if dry_run else "replayed"
    click.echo(
        f"{len(fresh) - len(refused):,} {done}, {failed:,} still do not fit, "
        f"{len(good) - len(fresh):,} were replayed before"
    )
    return failed


def sort_out(
    stream: Stream, events: Sequence[Rejected]
) -> tuple[list[Rejected], list[tuple[Rejected, str]]]:
    """Those that fit the stream by now, and the others with the reason."""
    check = stream.validator().check
    good, bad = [], []
    for one in events:
        try:
            if stream.schema.field("specversion") is None:
                check_no_envelope(one.value)
            check(one.value)
            good.append(one)
        except InvalidEvent as invalid:
            bad.append((one, str(invalid)))
    return good, bad


def check_no_envelope(value: bytes) -> None:
    """InvalidEvent for a CloudEvent that was rejected for its envelope: that is no event's data."""
    try:
        members = msgspec.json.decode(value, type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, RecursionError):
        return  # the validator tells better what is wrong
    if "specversion" in members and ("data" in members or "data_base64" in members):
        raise InvalidEvent(
            "it is a CloudEvent whose attributes were wrong", remedy="let its sender correct it"
        )


def source_of(app: str, stream: str) -> str:
    return f"/{app}/rejected/{stream}"


def event_id(one: Rejected) -> str:
    """The same for each replay, so that the collector and we know it again."""
    return f"rejected/{one.partition}/{one.offset}"


def replayed_before(
    log: LogSettings, app: str, stream: str, events: Sequence[Rejected]
) -> set[str]:
    """The ids of those that are in the stream already; its log is read from the oldest on."""
    found: set[str] = set()
    if not events:
        return found
    source = source_of(app, stream).encode()

    def look(record: Record) -> Look:
        headers = dict(record.headers)
        if headers.get(event.SOURCE) == source:
            found.add(headers.get(event.ID, b"").decode("utf-8", "replace"))
        return Look.ON

    search = Search(log, [stream_topic(app, stream)], min(one.at for one in events))
    while not search.is_over:
        search.run(look, 30.0)
    return found


def send(
    url: str,
    access: Access,
    app: str,
    stream: str,
    events: Sequence[Rejected],
    advance: Callable[[int], None],
) -> list[tuple[Rejected, str]]:
    """Hand them in, in their order; those that the collector rejects once more."""
    refused: list[tuple[Rejected, str]] = []
    done = 0
    with httpx.Client(base_url=url, timeout=60.0, **access.options()) as http:
        for batch in batches(events):
            body = msgspec.json.encode([envelope(app, one) for one in batch])
            try:
                answer = post(http, f"/v1/streams/{stream}", body)
            except MillstreamError as error:
                raise MillstreamError(
                    f"{error}; {done:,} of {len(events):,} events were handed in before that",
                    remedy="run the same command again: what is in is left out",
                ) from None
            refused += [(batch[each.index], each.error) for each in answer]
            done += len(batch)
            advance(len(batch))
    return refused


def envelope(app: str, one: Rejected) -> dict[str, str | msgspec.Raw]:
    """The event as a CloudEvent: its data and attributes, what it was called, and a new id."""
    given = {
        name.removeprefix("ce_"): text
        for name, text in one.headers.items()
        if name.startswith("ce_") and name not in _OURS
    }
    return {
        **given,
        "originalid": given.get("id", ""),
        "originalsource": given.get("source", ""),
        "specversion": "1.0",
        "id": event_id(one),
        "source": source_of(app, one.stream),
        "type": given.get("type") or f"{app}.{one.stream}",
        "data": msgspec.Raw(one.value),
    }


class _Rejection(msgspec.Struct):
    index: int
    error: str


class _Answer(msgspec.Struct):
    rejected: list[_Rejection] = []


def post(http: httpx.Client, path: str, body: bytes) -> list[_Rejection]:
    """What the collector rejects of a batch; waits while it asks to."""
    end = time.monotonic() + _PATIENCE
    while True:
        try:
            # In the log when it is answered, or the next replay could not see it there.
            answer = http.post(
                path, params={"ack": "log"}, content=body, headers={"content-type": _CONTENT_TYPE}
            )
        except httpx.TransportError as error:
            reason = str(error) or type(error).__name__
            raise NotReachable(f"the collector {http.base_url} did not answer: {reason}") from None
        if answer.is_success or answer.status_code == 422:
            return msgspec.json.decode(answer.content, type=_Answer).rejected
        if answer.status_code not in (429, 503) or time.monotonic() > end:
            raise RequestRefused(problem(answer), status=answer.status_code)
        asked = answer.headers.get("retry-after", "")
        time.sleep(min(float(asked) if asked.isdigit() else 1.0, 10.0))
