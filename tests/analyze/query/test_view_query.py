"""The state that users see of a query, in each of its phases."""

from __future__ import annotations

from typing import Any, cast

import pytest

from millstream.analyze.query.view_query import (
    ChangingShare,
    Phase,
    Replayed,
    Running,
    Searching,
    Starting,
    State,
    Stopped,
    ViewQuery,
    Waiting,
)

ANY = cast(Any, object())


@pytest.mark.parametrize(
    ("phase", "state"),
    [
        (Waiting(1.0), "restarting"),
        (Starting(ANY), "restarting"),
        (Running(ANY), "restarting"),
        (Running(ANY, since=1.0), "running"),
        (Searching(ANY, 1.0), "restarting"),
        (ChangingShare(ANY), "restarting"),
        (Replayed(), "replayed"),
        (Stopped(), "stopped"),
    ],
)
def test_a_query_is_running_once_it_processes_events(phase: Phase, state: State) -> None:
    view = ViewQuery(ANY, phase, pending_state="restarting")
    assert view.state == state
    assert (view.running is not None) == isinstance(phase, Running)
