"""What the terminal shows, drawn into a text."""

from __future__ import annotations

import io
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from tests.process_failures import KAFKA_DIES

from millstream.supervise.plain_output import PlainOutput, describe_event
from millstream.supervise.process_spec import ProcessSpec
from millstream.supervise.status_tables import (
    behind,
    collect_section,
    event_time_table,
    failure_lines,
    journal_line,
    latency_table,
    milliseconds,
    rate,
    skew_table,
    sources_table,
    status_line,
    streams_table,
    views_table,
)
from millstream.supervise.supervisor import ProcessEvent, Supervisor
from millstream.supervise.terminal_screen import TerminalScreen, processes_table

LATENCY = {"p50": 9.12, "p99": 31.0, "max": 40.0, "count": 7}
SYSTEM: dict[str, Any] = {
    "app": "shop",
    "streams": [
        {"name": "orders", "source": None, "event_time": "at"},
        {"name": "rsvps", "source": {"kind": "websocket", "url": "ws://x"}},
    ],
    "views": [{"name": "by_city", "mode": "real_time", "rows": 1234}, {"name": "new", "rows": 0}],
    "tiers": {
        "collect": {
            "state": "up",
            "rate": 12.34,
            "accepted": 5000,
            "rejected": 2,
            "latency_ms": LATENCY,
            "streams": {
                "orders": {
                    "accepted": 5000,
                    "rejected": 2,
                    "rate": 12.34,
                    "skew_ms": {"p50": -80.0, "p99": 1500.0, "max": 180_000_000.0, "count": 7},
                    "out_of_order": 3,
                    "journaled_ms": {"min": 0.2, "mean": 0.5, "p99": 2.0, "max": 3.0, "count": 7},
                }
            },
            "sources": [
                {
                    "stream": "rsvps",
                    "kind": "websocket",
                    "state": "retrying",
                    "url": "ws://x",
                    "error": "[red]refused",
                    "behind": 1200,
                    "behind_unit": "messages",
                }
            ],
            "journal": {"entries": 3, "stored_bytes": 2_500_000, "max_bytes": 1_000_000_000},
        },
        "log": {"state": "up", "rate": 12.0},
        "analyze": {
            "state": "up",
            "rate": 5.0,
            "views": {"by_city": {"state": "running", "restarts": 3}},
        },
        "serve": {
            "state": "up",
            "clients": 4,
            "views": {"by_city": {"rate": 250.0, "analyze_ms": LATENCY}},
        },
    },
    "end_to_end_ms": LATENCY,
}


def drawn(thing: Any) -> str:
    console = Console(file=io.StringIO(), width=140)
    console.print(thing)
    file = console.file
    assert isinstance(file, io.StringIO)
    return file.getvalue()


def test_figures_are_short() -> None:
    assert milliseconds(LATENCY) == "9.1 / 31 ms"
    assert milliseconds(None) == milliseconds({"count": 0}) == "–"
    assert (rate(3.14159), rate(1234.5), rate(None)) == ("3.1/s", "1,234/s", "–")


def test_streams_show_their_counts_and_how_long_each_step_took() -> None:
    orders = drawn(streams_table(SYSTEM)).splitlines()[1]
    assert orders.split()[1:8] == ["12.3/s", "5,000", "2", "0", "0", "0", "0"]
    assert "0.2 / 0.5 / 2.0 / 3.0 ms" in drawn(latency_table(SYSTEM))


def test_streams_show_how_far_their_events_are_from_now() -> None:
    shown = drawn(skew_table(SYSTEM)).splitlines()
    assert "-80 ms / 1.5 s / 2.1 days" in shown[1]
    assert shown[1].split()[-2:] == ["3", "0"]
    assert len(shown) == 2


def test_sources_show_whether_they_are_heard_from() -> None:
    rsvps = drawn(sources_table(SYSTEM)).splitlines()[1]
    assert rsvps.split()[:4] == ["rsvps", "websocket", "◐", "retrying"]
    assert "1,200 messages" in rsvps
    assert rsvps.rstrip().endswith("[red]refused")  # a stranger's text is no markup


def test_the_journal_shows_how_full_it_is_and_why_it_takes_nothing() -> None:
    line = "journal 3 entries wait for Kafka · files 2.5 MB of 1.0 GB (0%)"
    assert journal_line(SYSTEM).plain == line
    collect = {**SYSTEM["tiers"]["collect"], "journal": {"broken": "disk full"}, "failed": 2}
    broken = {**SYSTEM, "tiers": {**SYSTEM["tiers"], "collect": collect}}
    assert "accepts nothing: disk full" in journal_line(broken).plain
    assert status_line(broken, 0).endswith("failed 2 · journal: disk full")


def test_time_is_shown_by_how_far_behind_the_clock_it_is() -> None:
    now = "2026-11-17T12:00:00.000Z"
    moments = ("2026-11-17T11:59:56.750Z", "2026-11-17T11:00:30.000Z", "2026-11-16T12:00:00.000Z")
    assert [behind(each, now) for each in moments] == ["3.2 s ago", "60 min ago", "24.0 h ago"]
    assert behind("2015-01-31T12:00:00.000Z", now) == "2015-01-31T12:00"
    assert behind(None, now) == "–"
    told = {
        "now": now,
        "streams": [{"name": "clicks", "watermark": moments[0]}, {"name": "timeless"}],
        "tiers": {"analyze": {"streams": {"clicks": {"in_order": 7, "late": 2}}}},
    }
    (clicks,) = drawn(event_time_table(told)).splitlines()[1:]
    assert clicks.split() == ["clicks", "3.2", "s", "ago", "7", "2", "0", "0", "0"]


def test_views_show_the_state_of_their_query() -> None:
    by_city, new = drawn(views_table(SYSTEM)).splitlines()[1:3]
    assert by_city.split()[:5] == ["by_city", "real-time", "●", "running", "1,234"]
    assert "✗ unknown" in new


def test_one_line_tells_the_most_important() -> None:
    assert status_line(SYSTEM, restarts=1) == (
        "in 12.3/s · accepted 5,000 · rejected 2 · queries running 1 of 2 · "
        "end to end 9.1 / 31 ms · clients 4 · restarts 1"
    )
    assert "serve does not answer" in status_line(None, restarts=0)


def test_one_line_names_a_view_that_failed_and_why() -> None:
    failed = {"by_city": {"state": "failed", "error": "topic t was deleted"}}
    broken = {**SYSTEM, "tiers": {**SYSTEM["tiers"], "analyze": {"views": failed}}}
    assert status_line(broken, 0).endswith(" · ✗ view by_city failed: topic t was deleted")


def test_a_collector_that_does_not_answer_shows_old_figures_as_old() -> None:
    collect = {**SYSTEM["tiers"]["collect"], "state": "down", "rate": None}
    collect["reported_at"] = "2026-11-17T11:59:20.000Z"
    hung = {**SYSTEM, "tiers": {**SYSTEM["tiers"], "collect": collect}}
    hung["now"] = "2026-11-17T12:00:00.000Z"
    words = "collect has not reported since 2026-11-17T11:59:20Z (40.0 s ago)"
    assert status_line(hung, 0).startswith(f"{words}, by then accepted 5,000 · queries running")
    shown = "".join(drawn(part) for part in collect_section(hung))
    assert f"✗ {words}: these are its last metrics" in shown
    assert drawn(streams_table(hung)).splitlines()[1].split()[1] == "–"
    supervisor = Supervisor([ProcessSpec("collect", ("true",))], Path("logs"), lambda _: None)
    supervisor.processes["collect"].state = "ready"
    assert "✗ silent" in drawn(processes_table(supervisor.processes, hung))
    assert "● ready" in drawn(processes_table(supervisor.processes, SYSTEM))


def test_a_process_that_keeps_dying_is_the_first_thing_on_the_line_and_on_the_screen() -> None:
    assert status_line(None, 7, [KAFKA_DIES]).startswith("KAFKA KEEPS DYING: 7 TIMES · no metrics")
    shown = "".join(drawn(part) for part in failure_lines([KAFKA_DIES]))
    assert "kafka keeps dying: 7 times, last at 2026-11-18T00:00:00Z by exit code 1" in shown
    assert "| error: no room" in shown


def test_events_are_described_in_sentences() -> None:
    assert (
        describe_event(ProcessEvent("a", "ready", "http://x", 1.23))
        == "ready on http://x after 1.2 s"
    )
    assert (
        describe_event(ProcessEvent("a", "died", "exit code 3", 2))
        == "died after 2.0 s by exit code 3"
    )


def test_plain_lines_carry_the_time_and_a_status_line_comes_every_ten_seconds() -> None:
    now, out = 100.0, io.StringIO()
    show = PlainOutput(out, clock=lambda: now)
    supervisor = Supervisor([], Path("logs"), show.process_event)
    show.process_event(ProcessEvent("serve", "ready", "http://x", 1.0))
    show.ready(supervisor, ["all ready"])
    for _ in range(40):
        now += 0.5
        show.tick(supervisor, SYSTEM)
    lines = out.getvalue().splitlines()
    assert lines[0] == "    0.0 s  serve      ready on http://x after 1.0 s"
    assert [line.split()[0] for line in lines if "accepted" in line] == ["10.0", "20.0"]


def test_a_terminal_shows_steps_then_the_screen_then_the_end(tmp_path: Path) -> None:
    out = io.StringIO()
    show = TerminalScreen(Console(file=out, force_terminal=True, width=120, height=50))
    supervisor = Supervisor(
        [ProcessSpec("serve", ("true",), depends_on=("kafka",)), ProcessSpec("kafka", ("true",))],
        tmp_path,
        show.process_event,
    )
    show.tick(supervisor, None)
    assert "waits for kafka" in out.getvalue()
    supervisor.processes["kafka"].state = supervisor.processes["serve"].state = "ready"
    supervisor.processes["serve"].address = "http://x"
    show.process_event(ProcessEvent("serve", "ready", "http://x", 2.5))
    show.ready(supervisor, ["all ready: dashboard http://x/"])
    assert "http://x after 2.5 s" in out.getvalue()
    deadline = time.monotonic() + 5
    while "by_city" not in out.getvalue():
        assert time.monotonic() < deadline
        show.tick(supervisor, SYSTEM)
    assert "\x1b[?1049h" in out.getvalue()  # the alternate screen is entered …
    show.close()
    assert "\x1b[?1049l" in out.getvalue()  # … and left
    show.process_event(ProcessEvent("serve", "ended", "", 0.5))
    assert out.getvalue().rstrip().endswith("ended after 0.5 s\x1b[0m")
