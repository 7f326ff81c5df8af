"""The report of a process that keeps dying."""

from __future__ import annotations

from millstream.runtime.failing_processes import Failure

KAFKA_DIES = Failure(
    process="kafka",
    state="restarting",
    deaths=7,
    reason="exit code 1",
    died_at="2026-11-18T00:00:00Z",
    log="kafka.log",
    lines=("error: no room",),
)
