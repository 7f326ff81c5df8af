"""Sends rejected events to the collector again, each once."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import click
import httpx
import msgspec

from millstream.cli.dead_letters.sending import batches, print_failures, progress_bar
from millstream.client.servers import problem
from millstream.collect.schemas import stored_stream
from millstream.errors import InvalidEvent, MillstreamError, NotReachable, RequestRefused
from millstream.log.search import Decision, Search
from millstream.log.topic_names import stream_topic
from millstream.values import event

if TYPE_CHECKING:
    from millstream.client.credentials import Credentials
    from millstream.log.dead_letters.rejected import Rejected
    from millstream.log.dead_letters.topic import DeadLetterTopic
    from millstream.log.record import Record
    from millstream.log.settings import LogSettings
    from millstream.pipeline.model import Stream

_CONTENT_TYPE = "application/cloudevents-batch+json"
_BUSY_SECONDS = 60.0  # how long a collector may answer that it is busy
# Headers that the collector writes again.
_OWN_HEADERS = {
    event.SPECVERSION,
    event.COLLECTOR,
    event.SEQUENCE,
    event.INDEX,
    event.FINGERPRINT,
    event.WATERMARK,
}


def replay_events(
    letters: DeadLetterTopic[Rejected],
    events: Sequence[Rejected],
    url: str,
    access: Credentials,
    *,
    dry_run: bool,
) -> int:
    """Send the events that fit now, and print the result; returns how many still do not fit."""
    log, app, stream = letters.log, letters.app, letters.stream
    fitting, failures = check_events(stored_stream(log, app, stream), events)
    before = replayed_before(log, app, stream, fitting)
    fresh = [one for one in fitting if event_id(one) not in before]
    refused: dict[str, str] = {}
    if not dry_run:
        with progress_bar("replaying", len(fresh)) as advance:
            refused = send(url, access, app, stream, fresh, advance)
    failures |= refused
    print_failures(failures)
    done = "would be replayed" if dry_run else "replayed"
    click.echo(
        f"{len(fresh) - len(refused):,} {done}, {len(failures):,} still do not fit, "
        f"{len(fitting) - len(fresh):,} were replayed before"
    )
    return len(failures)


def check_events(
    stream: Stream, events: Sequence[Rejected]
) -> tuple[list[Rejected], dict[str, str]]:
    """The events that fit the stream's schema now, and why the others do not, by id."""
    check = stream.validator().check
    fitting, failures = [], {}
    for one in events:
        try:
            if stream.schema.field("specversion") is None:
                check_no_envelope(one.value)
            check(one.value)
            fitting.append(one)
        except InvalidEvent as invalid:
            failures[one.id] = str(invalid)
    return fitting, failures


def check_no_envelope(value: bytes) -> None:
    """InvalidEvent for a CloudEvent with a wrong envelope: it must not be sent as plain data."""
    try:
        members = msgspec.json.decode(value, type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, RecursionError):
        return  # the validator reports this more precisely
    if "specversion" in members and ("data" in members or "data_base64" in members):
        raise InvalidEvent(
            "it is a CloudEvent whose attributes were wrong", remedy="let its sender correct it"
        )


def source_of(app: str, stream: str) -> str:
    return f"/{app}/rejected/{stream}"


def event_id(one: Rejected) -> str:
    """The CloudEvents id of a replayed event: the same in every replay, so it is recognised."""
    return f"rejected/{one.partition}/{one.offset}"


def replayed_before(
    log: LogSettings, app: str, stream: str, events: Sequence[Rejected]
) -> set[str]:
    """The ids of events that are in the stream already; reads its topic from the oldest one on."""
    found: set[str] = set()
    if not events:
        return found
    source = source_of(app, stream).encode()

    def look(record: Record) -> Decision:
        headers = dict(record.headers)
        if headers.get(event.SOURCE) == source:
            found.add(headers.get(event.ID, b"").decode("utf-8", "replace"))
        return Decision.CONTINUE

    search = Search(log, [stream_topic(app, stream)], min(one.at for one in events))
    while not search.is_over:
        search.run(look, 30.0)
    return found


def send(
    url: str,
    access: Credentials,
    app: str,
    stream: str,
    events: Sequence[Rejected],
    advance: Callable[[int], None],
) -> dict[str, str]:
    """Send the events in their order; returns why the collector rejected some again, by id."""
    refused: dict[str, str] = {}
    done = 0
    with httpx.Client(base_url=url, timeout=60.0, **access.options()) as http:
        for batch in batches(events):
            body = msgspec.json.encode([envelope(app, one) for one in batch])
            try:
                answer = post(http, f"/v1/streams/{stream}", body)
            except MillstreamError as error:
                raise MillstreamError(
                    f"{error}; {done:,} of {len(events):,} events were sent before that",
                    remedy="run the same command again: it skips events that were sent",
                ) from None
            refused |= {batch[each.index].id: each.error for each in answer}
            done += len(batch)
            advance(len(batch))
    return refused


def envelope(app: str, one: Rejected) -> dict[str, str | msgspec.Raw]:
    """The event as a CloudEvent: its data and attributes, its original id and source, a new id."""
    given = {
        name.removeprefix("ce_"): text
        for name, text in one.headers.items()
        if name.startswith("ce_") and name not in _OWN_HEADERS
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
    """Send a batch; returns what the collector rejects. Waits while the collector is busy."""
    end = time.monotonic() + _BUSY_SECONDS
    while True:
        try:
            # ack=log: the next replay finds in the log what this one has sent.
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
