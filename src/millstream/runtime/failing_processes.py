"""Processes that keep dying, as `run` reports them to the other processes of a home.

The report is a file and not a record in Kafka, because Kafka itself may be what dies.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Sequence

import msgspec

from millstream.runtime.home import Home, is_alive, start_time

# The file always has this size: it can be rewritten in place when the disk is full.
_BYTES = 64 << 10
_TRIES = 5  # a file that is being rewritten in place cannot be read for a moment


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """A process that died and is not healthy again: deaths, reason, and the end of its log."""

    process: str
    state: str  # now: restarting, starting or ready
    deaths: int  # since it was last healthy for a minute
    reason: str
    died_at: str  # the last time, in UTC
    log: str  # the path of its log
    lines: tuple[str, ...] = ()  # the end of the log at the last death

    def __str__(self) -> str:
        return f"{self.process} {self.verb}, last at {self.died_at} by {self.reason}"

    @property
    def verb(self) -> str:
        return "died" if self.deaths == 1 else f"keeps dying: {self.deaths} times"


class _Report(msgspec.Struct, frozen=True):
    pid: int  # of the `run` that reports
    failures: tuple[Failure, ...] = ()
    started: int | None = None


def publish_failures(home: Home, failures: Sequence[Failure]) -> None:
    """Write which processes are failing now; errors of the disk are ignored."""
    encoded = msgspec.json.encode(_Report(os.getpid(), tuple(failures), start_time(os.getpid())))
    with contextlib.suppress(OSError):
        home.replace_file(home.failing_file, encoded.ljust(_BYTES))


def read_failures(home: Home) -> tuple[Failure, ...]:
    """Which processes are failing, according to the `run` of this home; none without it."""
    for _ in range(_TRIES):
        try:
            report = msgspec.json.decode(home.failing_file.read_bytes(), type=_Report)
        except OSError:
            return ()
        except msgspec.MsgspecError:
            time.sleep(0.01)
        else:
            return report.failures if is_alive(report.pid, report.started) else ()
    return ()
