"""The answers of several collector processes as one."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from tests.wait_until import until

from millstream.collect.http.peers import Peers, Published, merge_health, merge_metrics

_ONE = """# TYPE millstream_collect_accepted counter
# HELP millstream_collect_accepted Events.
millstream_collect_accepted_total{stream="clicks"} 3
# TYPE millstream_collect_pending_bytes gauge
# HELP millstream_collect_pending_bytes Bytes.
millstream_collect_pending_bytes 0
# EOF
"""


def _published(pending: int, reason: str = "", state: str = "open") -> Published:
    journal = {"state": state, "pending_entries": pending, "max_bytes": 100}
    return Published(reason, {"journal": journal, "kafka": {"state": "up"}}, _ONE)


def test_each_sample_names_its_process_and_a_family_stays_together() -> None:
    text = merge_metrics({0: _ONE, 2: _ONE.replace(" 3", " 4")}, 3)
    assert text.splitlines() == [
        "# TYPE millstream_collect_accepted counter",
        "# HELP millstream_collect_accepted Events.",
        'millstream_collect_accepted_total{worker="0",stream="clicks"} 3',
        'millstream_collect_accepted_total{worker="2",stream="clicks"} 4',
        "# TYPE millstream_collect_pending_bytes gauge",
        "# HELP millstream_collect_pending_bytes Bytes.",
        'millstream_collect_pending_bytes{worker="0"} 0',
        'millstream_collect_pending_bytes{worker="2"} 0',
        "# TYPE millstream_collect_workers gauge",
        "# HELP millstream_collect_workers Processes that share the port.",
        "millstream_collect_workers 3",
        "# TYPE millstream_collect_workers_answering gauge",
        "# HELP millstream_collect_workers_answering Those whose counts are here.",
        "millstream_collect_workers_answering 2",
        "# EOF",
    ]


def test_what_waits_is_added_up_and_a_silent_process_is_named() -> None:
    reason, details = merge_health({0: _published(2), 1: None, 2: _published(5)})
    assert reason == ""
    assert details == {
        "journal": {"state": "open", "pending_entries": 7, "max_bytes": 200},
        "kafka": {"state": "up"},
        "workers": [
            {"worker": 0, "state": "ready"},
            {"worker": 1, "state": "silent", "reason": "it does not answer"},
            {"worker": 2, "state": "ready"},
        ],
    }


def test_it_is_ready_as_long_as_one_process_accepts_events() -> None:
    full = _published(9, "the journal is full", "full")
    reason, details = merge_health({0: _published(0), 1: full})
    assert reason == ""
    assert details["journal"] == {"state": "full", "pending_entries": 9, "max_bytes": 200}
    assert details["workers"][1]["reason"] == "the journal is full"
    reason, details = merge_health({0: full, 1: full, 2: None})
    assert reason == "the journal is full; it does not answer"
    assert details["journal"]["pending_entries"] == 18


async def test_each_process_answers_for_those_that_have_published_lately(tmp_path: Path) -> None:
    one, other = Peers(tmp_path, 0, 2), Peers(tmp_path, 1, 2)
    own = _published(1)
    assert [each["state"] for each in one.health(own).details["workers"]] == ["ready", "silent"]
    publishing = asyncio.create_task(other.publish(lambda: _published(4)))
    await until((tmp_path / "1.json").exists)
    assert one.health(own).details["journal"]["pending_entries"] == 5
    assert 'millstream_collect_accepted_total{worker="1",stream="clicks"} 3' in one.metrics(own)
    publishing.cancel()
    os.utime(tmp_path / "1.json", (0, 0))
    assert [each["state"] for each in one.health(own).details["workers"]] == ["ready", "silent"]
    (tmp_path / "1.json").write_text("{")
    assert "workers_answering 1" in one.metrics(own)
