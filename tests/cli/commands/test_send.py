"""`send` names the events that no view will have."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from tests.cli.collecting import collector

from millstream.log.settings import LogSettings

if TYPE_CHECKING:
    from tests.cli.conftest import Run

SCHEMA = "id LONG NOT NULL, at TIMESTAMP"


def test_events_that_are_dated_in_the_future_are_named(
    run: Run, app_name: str, log_settings: LogSettings, tmp_path: Path
) -> None:
    now, file = datetime.now(UTC), tmp_path / "events.ndjson"
    times = [now, now + timedelta(hours=1), now, now + timedelta(hours=2)]
    file.write_text("".join(f'{{"id": {n}, "at": "{t:%FT%TZ}"}}\n' for n, t in enumerate(times)))
    with collector(app_name, log_settings, tmp_path / ".millstream", SCHEMA, event_time="at"):
        outcome = run("send", "orders", str(file))
    assert outcome.code == 0
    assert "4 accepted, 0 rejected" in outcome.out
    assert "2 events, the first at line 2, are dated too far" in outcome.err
