"""Where an event is: from the collector's answer and the metrics of the views."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import quote

from millstream.cli.shared.text import printable
from millstream.values.clock import to_iso, to_ms

if TYPE_CHECKING:
    from millstream.client.credentials import Credentials
    from millstream.log.settings import LogSettings

# read: it is certain. likely: the view has an event that was received at that time or later. With
# several partitions or collectors, that event may still have overtaken ours.
Certainty = Literal["read", "likely", "unknown"]

_SIGNS = {"read": ("●", "green"), "likely": ("●", "green"), "unknown": ("◌", "yellow")}


@dataclass(frozen=True, slots=True)
class ViewProgress:
    """Whether one view has read past the event."""

    name: str
    inputs: list[str]  # those through which the event reaches the view
    state: Certainty
    by: str  # it was read at this time at the latest; RFC 3339, empty if unknown
    words: str

    @property
    def sign(self) -> tuple[str, str]:
        return _SIGNS[self.state]


@dataclass(frozen=True, slots=True)
class Step:
    """One line of the trace."""

    sign: str
    style: str
    name: str
    words: str


@dataclass(frozen=True, slots=True)
class LateRecord:
    """A record in the late topic, and the reason."""

    id: str  # for `millstream late show`
    reason: str


@dataclass(frozen=True, slots=True)
class Trace:
    """One event, and every view that reads it."""

    event: dict[str, Any]  # the collector's answer
    views: list[ViewProgress]
    unknown: str = ""  # why the state of the views is unknown
    late: tuple[LateRecord, ...] = ()  # its records in the late topic
    late_unknown: str = ""  # why it is unknown whether it was late

    @property
    def is_over(self) -> bool:
        """Whether the state is final."""
        if self.event["state"] in ("rejected", "failed"):
            return True
        is_read = all(view.state != "unknown" for view in self.views)
        return self.event["state"] == "logged" and not self.unknown and is_read

    def is_successful(self, wait: bool) -> bool:
        """Whether the event is, or will be, in the log; with `wait`, also read by every view."""
        if self.event["state"] not in ("journaled", "logged"):
            return False
        return self.is_over if wait else True

    def content(self) -> dict[str, Any]:
        views = [asdict(view) for view in self.views]
        late = [asdict(aside) for aside in self.late]
        return {
            "event": self.event,
            "views": views,
            "unknown": self.unknown,
            "late": late,
            "late_unknown": self.late_unknown,
        }

    def steps(self) -> Iterator[Step]:
        """The steps of the event through the collector and the log, in order."""
        event, state = self.event, self.event["state"]
        received = datetime.fromisoformat(event["received_at"])
        number = f"{event['sequence']}.{event['index']}"
        yield Step(
            *_SIGNS["read"],
            "received",
            f"{event['received_at']}  stream {event['stream']}, collector {event['collector']}, "
            f"number {number}",
        )
        # The collector answers when the event is on disk, unless the stream skips the journal.
        yield Step(*_SIGNS["read"], "journaled", _after(received, event.get("journaled_at")))
        match state:
            case "logged" | "rejected":
                place = (
                    f"{event['topic']}, partition {event['partition']}, offset {event['offset']}"
                )
                after = _after(received, event.get("logged_at"))
                if state == "logged":
                    yield Step(*_SIGNS["read"], "logged", f"{after}  {place}")
                    if error := event.get("error"):
                        yield Step("!", "yellow", "invalid", f"accepted anyway: {printable(error)}")
                    for aside in self.late:
                        yield Step("!", "yellow", "late", printable(aside.reason))
                        yield Step(" ", "", "", f"millstream late show {aside.id}")
                    return
                name = f"{event['stream']}/{event['partition']}/{event['offset']}"
                yield Step("✗", "red", "rejected", f"{after}  {printable(event.get('error', ''))}")
                yield Step(" ", "", "", f"millstream rejected show {name}")
            case "failed":
                yield Step("✗", "red", "failed", printable(event.get("error", "")))
                name = f"{event['collector']}-{number}"
                yield Step(" ", "", "", f"millstream failed show {name}")
            case _:
                yield Step("◌", "yellow", "logged", "not yet: it waits in the collector's journal")

    def tree(self) -> Iterator[tuple[str, ViewProgress]]:
        """Each view with the branch in front of it; a view with several inputs appears once."""
        seen: set[str] = set()

        def below(source: str, lead: str) -> Iterator[tuple[str, ViewProgress]]:
            children = [v for v in self.views if source in v.inputs and v.name not in seen]
            seen.update(view.name for view in children)
            for view in children:
                last = view is children[-1]
                yield lead + ("└─" if last else "├─"), view
                yield from below(view.name, lead + ("   " if last else "│  "))

        yield from below(self.event["stream"], "")


def find_event(url: str, receipt: str, access: Credentials, seconds: float) -> dict[str, Any]:
    """The collector's answer; MillstreamError with its message if it does not know the event."""
    import time

    import httpx

    from millstream.client.servers import problem
    from millstream.errors import NotReachable, RequestRefused

    options = access.options()
    deadline = time.monotonic() + seconds
    while True:
        try:
            place = f"{url}/v1/receipts/{quote(receipt, safe='')}"
            answer = httpx.get(place, timeout=30.0, **options)
        except (httpx.TransportError, httpx.InvalidURL) as error:
            raise NotReachable(
                f"the collector {url} did not answer: {str(error) or type(error).__name__}",
                remedy="check that it runs: millstream status",
            ) from None
        if answer.is_success:
            found: dict[str, Any] = answer.json()
            return found
        # If the search of the log took too long, the next call continues it.
        if answer.status_code != 503 or time.monotonic() > deadline:
            remedy = (
                "" if answer.status_code != 401 else "give a key: --key-file, or MILLSTREAM_KEY"
            )
            raise RequestRefused(problem(answer), status=answer.status_code, remedy=remedy)
        time.sleep(0.5)


def find_late_records(log: LogSettings, event: Mapping[str, Any]) -> tuple[LateRecord, ...]:
    """The late records of a logged event; LogError if Kafka does not answer."""
    from millstream.log.dead_letters.late import find_late
    from millstream.log.topic_names import app_of_stream

    identity = (event["collector"], event["sequence"], event["index"])
    since = to_ms(event["received_at"])
    app = app_of_stream(event["topic"], event["stream"])
    found = find_late(log, app, event["stream"], identity, since)
    return tuple(LateRecord(one.id, one.reason) for one in found)


def trace_event(event: dict[str, Any], system: dict[str, Any] | None, why: str) -> Trace:
    """The event's trace from the server's metrics; `why` says why there are none."""
    if event["state"] != "logged":
        return Trace(event, [])
    if system is None:
        return Trace(event, [], why)
    reached = {event["stream"]}
    views = []
    # Views in the order of the data: one that reads another comes after it.
    waiting = list(system["views"])
    while ready := [view for view in waiting if reached & set(view["inputs"])]:
        waiting = [view for view in waiting if view not in ready]
        reached |= {view["name"] for view in ready}
        views += ready
    return Trace(event, [_passed(event, view, reached, system) for view in views])


def _passed(
    event: Mapping[str, Any], view: Mapping[str, Any], reached: set[str], system: Mapping[str, Any]
) -> ViewProgress:
    name, tiers = view["name"], system["tiers"]
    analyze = tiers.get("analyze", {}).get("views", {}).get(name, {})
    served = tiers.get("serve", {}).get("views", {}).get(name, {})
    inputs = [source for source in view["inputs"] if source in reached]
    place = (event["topic"], str(event["partition"]), event["offset"])

    def passed(state: Certainty, by: str, words: str) -> ViewProgress:
        return ViewProgress(name, inputs, state, by, words)

    if event["stream"] in inputs:
        if _is_past(served, *place):
            return passed("read", system["now"], "its newest rows come from later records")
        if _is_past(analyze, *place):
            by = to_iso(analyze.get("read_at", 0))
            return passed("read", by, f"at the latest at {by}, by its checkpoint")
    newest = served.get("newest_received_at", 0)
    if newest and newest >= to_ms(event["received_at"]):
        words = "likely: it has an event that was received at that time or later"
        return passed("likely", system["now"], words)
    return passed("unknown", "", _why_unknown(event, view, analyze, inputs))


def _why_unknown(
    event: Mapping[str, Any],
    view: Mapping[str, Any],
    analyze: Mapping[str, Any],
    inputs: Sequence[str],
) -> str:
    state = analyze.get("state") or "unknown"
    if state != "running":
        return f"not yet, as far as known: its query is {state}"
    if event["stream"] not in inputs:
        return f"unknown: it reads {', '.join(inputs)}, and has no event this new"
    read_at = analyze.get("read_at", 0)
    since = f"its checkpoint is from {to_iso(read_at)}" if read_at else "it has no checkpoint yet"
    filtered = "; an event that it filters out is visible only there"
    return f"unknown: not in its rows yet, and {since}{filtered}"


def _is_past(counts: Mapping[str, Any], topic: str, partition: str, offset: int) -> bool:
    return bool(counts.get("read", {}).get(topic, {}).get(partition, -1) > offset)


def _after(received: datetime, at: str | None) -> str:
    if not at:
        return "at an unknown time"
    passed = (datetime.fromisoformat(at) - received).total_seconds() * 1000
    return f"{at}  +{max(0.0, passed):,.0f} ms"
