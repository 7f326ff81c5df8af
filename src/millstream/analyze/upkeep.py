"""Work beside Spark for a set of views: watermarks, row states, shown rows and ledgers."""

from __future__ import annotations

import logging
import time
from collections.abc import Container, Iterable

from confluent_kafka import KafkaException

from millstream.analyze.plan import ViewPlan
from millstream.analyze.row_state.row_state import has_row_states
from millstream.analyze.row_state.row_state_writer import RowStateWriter
from millstream.analyze.triggers.output_writer import OutputTask, OutputWriter
from millstream.analyze.triggers.tasks import output_tasks
from millstream.analyze.watermarks.late_events import LateEvents
from millstream.analyze.watermarks.tracked_stream import streams_of
from millstream.analyze.watermarks.view_watermark import QueryProgress, ViewWatermarks
from millstream.errors import LogError
from millstream.log.settings import LogSettings
from millstream.pipeline.app import App
from millstream.values.clock import to_ms_or_zero
from millstream.values.report import ViewCounts

_log = logging.getLogger(__name__)


class Upkeep:
    """Call `update` and then `tick` about once a second, from one thread."""

    def __init__(
        self,
        log: LogSettings,
        app: App,
        views: Iterable[ViewPlan],
        late_events: LateEvents,
        *,
        is_served: bool = True,
    ) -> None:
        """`is_served`: views that are not served yet, because they are rebuilt, have no ledger."""
        self._log, self._app = log, app
        self._views = {view.name: view for view in views}
        self._late_events, self._is_served = late_events, is_served
        self._row_states: RowStateWriter | None = None
        self._outputs: dict[str, OutputWriter] = {}
        self._view_watermarks = ViewWatermarks()
        self._watermarks: dict[str, int] = {}
        self._spark_committed: dict[str, int] = {}

    def follow(self, views: Iterable[ViewPlan]) -> None:
        """Continue with these views: a view may have moved to another topic."""
        fresh = {view.name: view for view in views}
        if fresh == self._views:
            return
        if not self._is_served:
            for name, plan in self._views.items():
                if fresh.get(name) != plan:
                    self._view_watermarks.forget(name)
                    self._watermarks.pop(name, None)
        self._views = fresh
        tasks = {task.view: task for task in self._output_tasks()}
        for name, output in list(self._outputs.items()):
            if tasks.get(name) != output.task:
                output.close()
                del self._outputs[name]
        self._close_row_states()

    def update(self, counts: dict[str, ViewCounts]) -> None:
        """Read how far the queries are, and add the views' watermarks and errors to the counts."""
        now = time.monotonic()
        self._view_watermarks.record(now, self._late_events.progress())
        for name, each in counts.items():
            self._spark_committed[name] = each.read_at
            each.watermark = self._watermarks[name] = self._watermark(name, each, now)
            if name in self._outputs and (error := self._outputs[name].error):
                each.error = each.error or error
                each.warning = each.warning or f"its rows are shown later: {error}"

    def tick(self, held: Container[str] = ()) -> None:
        """Write the row states and tombstones that are due; start the outputs that are missing.

        No row of the views in `held` becomes final: another edition is about to replace them.
        """
        for task in self._output_tasks():
            if task.view not in self._outputs:
                self._outputs[task.view] = OutputWriter(self._log, task)
        watermarks = {name: each for name, each in self._watermarks.items() if name not in held}
        try:
            if self._row_states is not None and not self._row_states.is_current():
                self._close_row_states()  # a view's topic was created again: read it from its start
            if self._row_states is None:
                self._row_states = RowStateWriter(self._log, self._app.name, self._views.values())
            self._row_states.tick(watermarks, self._spark_committed)
        except KafkaException as error:
            _log.warning("row states are written later than they are due: %s", error.args[0].str())
        except LogError as error:
            _log.warning("row states are written later than they are due: %s", error.message)

    def is_final_until(self, view: str, until: int) -> bool:
        """Whether all rows of windows that ended by then are final, and are shown as final."""
        if self._row_states is None or view not in self._views:
            return False
        if has_row_states(self._views[view]) and self._watermarks.get(view, 0) < until:
            return False
        if not self._row_states.is_final_until(view, until):
            return False
        output = self._outputs.get(view)  # asked last: it must have read the states, too
        return output is None or output.is_at_end

    def close(self) -> None:
        for output in self._outputs.values():
            output.close()
        self._close_row_states()

    def _output_tasks(self) -> Iterable[OutputTask]:
        return output_tasks(self._app, self._views.values(), with_ledger=self._is_served)

    def _watermark(self, name: str, counts: ViewCounts, now: float) -> int:
        view = self._views.get(name)
        if view is None or not has_row_states(view):  # no row waits for it
            return self._late_events.stream_watermark(name)
        if self._row_states is None:
            return 0
        progress = QueryProgress(
            read=counts.read,
            received=to_ms_or_zero(self._row_states.received(name)),
            quiet=self._row_states.quiet_seconds(name),
            is_real_time=view.mode == "real_time",
            is_running=counts.state == "running",
            by_stream_time=view.window_spec is not None and view.window_spec.time == "stream",
        )
        return self._view_watermarks.watermark(name, streams_of(self._app, name), progress, now)

    def _close_row_states(self) -> None:
        if self._row_states is not None:
            self._row_states.close()
            self._row_states = None
