"""All that `analyze` does beside Spark: watermarks, late events, rows' states, panes, ledgers."""

from __future__ import annotations

import logging
import time
from collections.abc import Container, Iterable

from confluent_kafka import KafkaException

from millstream.analyze.plan import ViewPlan
from millstream.analyze.row_state.row_state import has_row_states
from millstream.analyze.row_state.row_state_writer import RowStateWriter
from millstream.analyze.triggers.output_writer import OutputWriter
from millstream.analyze.triggers.tasks import tasks
from millstream.analyze.watermarks.late_events import LateEvents, streams_of
from millstream.analyze.watermarks.view_watermark import Progress, ViewWatermarks
from millstream.errors import LogError
from millstream.pipeline.app import App
from millstream.settings import Settings
from millstream.syntax.duration import parse_duration
from millstream.values.clock import to_ms_or_zero
from millstream.values.report import StreamCounts, ViewCounts

_log = logging.getLogger(__name__)


class Upkeep:
    """Call `note` and then `tick` about once a second, from one thread."""

    def __init__(
        self,
        settings: Settings,
        app: App,
        views: Iterable[ViewPlan],
        timekeeper: LateEvents | None = None,
    ) -> None:
        """With another's `timekeeper`: of views that are not served yet, which enter nothing."""
        self._settings, self._app = settings, app
        self._views = {view.name: view for view in views}
        self._is_served = timekeeper is None
        if timekeeper is None:
            idle = parse_duration(settings.analyze.idle)
            timekeeper = LateEvents(settings.log, app, self._views.values(), idle)
            timekeeper.start()
        self._timekeeper = timekeeper
        self._pace = ViewWatermarks()
        self._closer: RowStateWriter | None = None
        self._keepers: dict[str, OutputWriter] = {}
        self._watermarks: dict[str, int] = {}
        self._committed: dict[str, int] = {}

    def beside(self) -> Upkeep:
        """The same for views that are computed anew beside those that are served."""
        return Upkeep(self._settings, self._app, [], self._timekeeper)

    def streams(self) -> dict[str, StreamCounts]:
        """What is told of the streams."""
        return self._timekeeper.counts()

    def follow(self, views: Iterable[ViewPlan]) -> None:
        """Go on with these: a view may have gone over to another topic."""
        fresh = {view.name: view for view in views}
        if fresh == self._views:
            return
        if not self._is_served:
            for name, plan in self._views.items():
                if fresh.get(name) != plan:
                    self._pace.forget(name)
                    self._watermarks.pop(name, None)
        self._views = fresh
        self._end_keepers()
        if self._closer is not None:
            self._closer.close()
            self._closer = None

    def is_final_until(self, view: str, until: int) -> bool:
        """Whether all rows of windows that ended by then are final, and shown as that."""
        if self._closer is None or view not in self._views:
            return False
        if view in self._stateful and self._watermarks.get(view, 0) < until:
            return False
        keeper = self._keepers.get(view)
        return self._closer.is_final_until(view, until) and (keeper is None or keeper.is_at_end)

    @property
    def _stateful(self) -> set[str]:
        return {view.name for view in self._views.values() if has_row_states(view)}

    def note(self, counts: dict[str, ViewCounts]) -> None:
        """Take in how the queries are, and put the views' watermarks there."""
        now = time.monotonic()
        self._pace.note(now, self._timekeeper.reached())
        for name, each in counts.items():
            self._committed[name] = each.read_at
            each.watermark = self._watermarks[name] = self._watermark(name, each, now)
            if name in self._keepers and (error := self._keepers[name].error):
                each.error = each.error or error
                each.warning = each.warning or f"its rows are shown later: {error}"

    def tick(self, held: Container[str] = ()) -> None:
        """Write the states and ends of rows that are due; see that panes and ledgers are kept.

        Views that are `held` are about to be another edition: none of their rows becomes final.
        """
        for task in tasks(self._app, self._views.values(), enters=self._is_served):
            if task.view not in self._keepers:
                self._keepers[task.view] = OutputWriter(self._settings.log, task)
        moving = {name: each for name, each in self._watermarks.items() if name not in held}
        try:
            if self._closer is not None and not self._closer.is_current():
                self._closer.close()
                self._closer = None  # a view has another topic: its rows begin anew
            if self._closer is None:
                self._closer = RowStateWriter(
                    self._settings.log, self._app.name, self._views.values()
                )
            self._closer.tick(moving, self._committed)
        except KafkaException as error:
            _log.warning("rows end later than they should: %s", error.args[0].str())
        except LogError as error:
            _log.warning("rows end later than they should: %s", error.message)

    def close(self) -> None:
        for keeper in self._keepers.values():
            keeper.close()
        if self._is_served:
            self._timekeeper.close()
        if self._closer is not None:
            self._closer.close()

    def _end_keepers(self) -> None:
        """End those that have another task now."""
        due = {
            task.view: task
            for task in tasks(self._app, self._views.values(), enters=self._is_served)
        }
        for name, keeper in list(self._keepers.items()):
            if due.get(name) != keeper.task:
                keeper.close()
                del self._keepers[name]

    def _watermark(self, name: str, counts: ViewCounts, now: float) -> int:
        if name not in self._stateful:  # no row waits for it, or for what is computed anew
            return self._timekeeper.view_watermark(name)
        if self._closer is None:
            return 0
        spec = self._views[name].window_spec
        progress = Progress(
            read=counts.read,
            received=to_ms_or_zero(self._closer.received(name)),
            quiet=self._closer.quiet_seconds(name),
            is_real_time=self._views[name].mode == "real_time",
            is_running=counts.state == "running",
            by_stream_time=spec is not None and spec.time == "stream",
        )
        return self._pace.watermark(name, streams_of(self._app, name), progress, now)
