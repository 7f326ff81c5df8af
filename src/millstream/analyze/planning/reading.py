"""How a query reads its streams: with headers or not, in batches of what size, how late."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import timedelta

from millstream.analyze.lineage.lineage import TracedQuery
from millstream.analyze.planning.run_mode import ModeDecision
from millstream.analyze.planning.window_spec import late_by_event_time
from millstream.analyze.records.reader import TimeDomain
from millstream.log.topic_names import stream_topic
from millstream.pipeline.app import App
from millstream.pipeline.model import View
from millstream.settings import Settings
from millstream.syntax.duration import parse_duration

# A query that may shed changes its share between two batches, and repeats one for it.
_MAX_SHED_BATCH = 20_000
_FOREVER = timedelta(days=100 * 365)


@dataclass(frozen=True, slots=True)
class Reading:
    """How a query's streams are read, as far as that depends on the query."""

    headers: bool = False
    slack: timedelta | None = None  # None: there is no window
    time: TimeDomain = "event"
    weighs: bool = False
    batch_records: int | None = None  # records in one batch, at most; None: no limit

    @property
    def options(self) -> dict[str, str]:
        """Options of Spark's Kafka source."""
        limit = self.batch_records
        return {} if limit is None else {"maxOffsetsPerTrigger": str(limit)}


@dataclass(frozen=True, slots=True)
class ReadingRules:
    """Chooses how each query of one app reads."""

    app: App
    settings: Settings
    partitions: Callable[[str], int]  # of a topic
    replays: bool  # the query reads in batches up to the log's end; another one goes on from there

    def choose(
        self, view: View, first: Reading, traced: TracedQuery, decision: ModeDecision
    ) -> Reading:
        """The reading of a query that was traced with the reading `first`."""
        time = None if traced.window is None else traced.window.time
        reading = replace(first, batch_records=self._batch_records(view, time, decision))
        filters_by_event_time = bool(late_by_event_time(traced, self.app))
        if time is None and not filters_by_event_time and not traced.windows:
            return reading
        time = time or "event"
        slack = self.slack(decision)
        if filters_by_event_time:
            # Spark drops events at its watermark; for us an event at that time is not late yet.
            slack += timedelta(milliseconds=1)
        if self._keeps_all_state(view, time, decision):
            slack = _FOREVER
        headers = first.headers or time == "event" or filters_by_event_time
        return replace(reading, headers=headers, slack=slack, time=time)

    def slack(self, decision: ModeDecision) -> timedelta:
        """The time that Spark's watermark stays behind the lateness."""
        # In append mode rows come when the watermark passes: they must not wait longer than needed.
        if decision.output_mode == "append":
            return timedelta()
        return parse_duration(self.settings.analyze.slack)

    def _batch_records(
        self, view: View, time: TimeDomain | None, decision: ModeDecision
    ) -> int | None:
        limit = self.settings.analyze.batch_events
        if self._keeps_all_state(view, time, decision):
            return limit
        in_batches = self.replays or decision.mode == "micro_batch"
        if not in_batches or self._may_overtake(view, time):
            return None
        return limit if self.replays or view.sheds_after is None else min(limit, _MAX_SHED_BATCH)

    def _keeps_all_state(self, view: View, time: TimeDomain | None, decision: ModeDecision) -> bool:
        """Whether a replay must keep its state to the end, because a batch may overtake another.

        Not in append mode, where no row would come before the end.
        """
        updates_windows = time is not None and decision.output_mode == "update"
        return self.replays and updates_windows and self._may_overtake(view, time)

    def _may_overtake(self, view: View, time: TimeDomain | None) -> bool:
        """Whether a batch may hold newer events of one partition beside older ones of another.

        Spark's watermark would follow the newer events, and Spark would drop the older ones.
        """
        return any(
            self.partitions(stream_topic(self.app.name, name)) > 1
            for name in streams_of(self.app, view)
            if time == "stream" or self.app.streams[name].event_time
        )


def streams_of(app: App, view: View) -> Iterator[str]:
    """The streams that a view may read, through other views too."""
    for name in view.inputs:
        if name in app.streams:
            yield name
        else:
            yield from streams_of(app, app.views[name])
