"""One collector on several cores: a parent that keeps its workers up, and does nothing else.

They share a port by SO_REUSEPORT: the kernel then spreads connections evenly, also when many come
at once. A listening socket that all inherit does not: whoever wakes first takes what waits there,
and 300 connections at once were seen to go 285, 6 and 9 to three workers.
"""

from __future__ import annotations

import contextlib
import logging
import os
import selectors
import signal
import socket
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

from millstream.collect.workers.child import Forked, Work, raised
from millstream.collect.workers.worker_channel import (
    Failed,
    Found,
    Message,
    Opened,
    Orders,
    Ready,
    orders,
)
from millstream.errors import MachineError, MillstreamError

_LOOK_SECONDS = 0.05  # between looks while children are ending

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Policy:
    """How a worker that died is started again, and when that makes no sense any more."""

    backoff: float = 0.2  # seconds before it is started again; doubles with each quick death
    longest_backoff: float = 10.0
    fruitless: int = 5  # deaths in a row without having been ready: give up
    deaths: int = 20  # so many within `within` seconds: give up
    within: float = 60.0


@dataclass(slots=True)
class _Worker:
    number: int
    process: Forked | None = None
    is_ready: bool = False
    journals: dict[int, Found] = field(default_factory=dict)
    failure: Failed | None = None
    fruitless: int = 0
    deaths: deque[float] = field(default_factory=deque)
    due: float = 0.0  # when it is to be started


class Workers:
    """Runs `prepare` once, then so many times `work`, each in a process of its own."""

    def __init__(
        self,
        count: int,
        sources: Sequence[str],
        prepare: Callable[[], None],
        work: Callable[[int, socket.socket], None],
        *,
        stop_seconds: float,
        policy: Policy | None = None,
    ) -> None:
        """`sources`: the streams that have one. `work` gets a worker's number and its channel."""
        self._workers = [_Worker(number) for number in range(count)]
        self._sources = sources
        self._prepare = prepare
        self._work = work
        self._stop_seconds = stop_seconds
        self._policy = policy or Policy()
        self._orders: Orders | None = None
        self._have_been_ready = False  # all of them, at one time
        self._is_stopping = False
        self._selector = selectors.DefaultSelector()

    def run(self, ready: Callable[[str], None]) -> None:
        """Until SIGTERM or SIGINT; calls `ready` with the URL once all are. No process is left.

        The error that a worker could not start with, or MachineError if one does not stay up.
        """
        with self._heeding_signals(), self._selector:
            try:
                self._run_prepare()
                url = ""
                while not self._is_stopping:
                    self._start_due()
                    self._await_something(self._pause())
                    for worker in self._workers:
                        url = self._look_at(worker) or url
                    self._give_orders()
                    if url and all(worker.is_ready for worker in self._workers):
                        self._have_been_ready = True
                        ready(url)
                        ready, url = _nothing, ""
            finally:
                self._end(
                    [each.process for each in self._workers if each.process is not None],
                    self._stop_seconds,
                )

    def _run_prepare(self) -> None:
        process = self._fork(lambda _: self._prepare())
        said: list[Message] = []
        code = None
        while not self._is_stopping and (code := process.exit_code()) is None:
            self._await_something(None)
            said += process.heard()
        if code is None:
            self._end([process], 0.0)
            return
        said += process.heard()
        self._let_go(process)
        for each in said:
            if isinstance(each, Failed):
                raise raised(each)
        if code:
            raise MachineError(f"cannot prepare the collector: {_cause(code)}")

    def _start_due(self) -> None:
        for worker in self._workers:
            if worker.process is None and worker.due <= time.monotonic():
                worker.process = self._fork(partial(self._work, worker.number))
                worker.is_ready, worker.failure = False, None
                worker.journals = {}
                _log.info("worker %d is process %d", worker.number, worker.process.pid)

    def _fork(self, work: Work) -> Forked:
        process = Forked(work)
        self._selector.register(process.channel, selectors.EVENT_READ)
        return process

    def _pause(self) -> float | None:
        due = [worker.due for worker in self._workers if worker.process is None]
        return max(0.0, min(due) - time.monotonic()) if due else None

    def _look_at(self, worker: _Worker) -> str:
        """Heed what a worker said, and whether it has died; its URL when it is ready."""
        process, url = worker.process, ""
        if process is None:
            return url
        code = process.exit_code()  # before listening: so that its last words are heard
        for said in process.heard():
            match said:
                case Opened(journals):
                    worker.journals = journals
                    if self._orders is not None:
                        process.tell(self._orders)
                case Ready(url):
                    worker.is_ready, worker.fruitless = True, 0
                case Failed():
                    worker.failure = said
        if code is not None and not self._is_stopping:
            self._bury(worker, process, code)
        return url

    def _give_orders(self) -> None:
        """Once each has its journals: nobody reads a source, or listens, before."""
        if self._orders is None and all(worker.journals for worker in self._workers):
            journals = {n: found for each in self._workers for n, found in each.journals.items()}
            self._orders = orders(self._sources, len(self._workers), journals)
            for worker in self._workers:
                assert worker.process is not None
                worker.process.tell(self._orders)

    def _bury(self, worker: _Worker, process: Forked, code: int) -> None:
        self._let_go(process)
        worker.process = None
        worker.journals = {}
        if worker.failure is not None and not self._have_been_ready:
            raise raised(worker.failure)
        policy, now = self._policy, time.monotonic()
        worker.fruitless += not worker.is_ready
        worker.is_ready = False
        worker.deaths.append(now)
        while now - worker.deaths[0] > policy.within:
            worker.deaths.popleft()
        cause = str(raised(worker.failure)) if worker.failure is not None else _cause(code)
        if worker.fruitless >= policy.fruitless or len(worker.deaths) >= policy.deaths:
            raise self._gave_up(worker, cause)
        quick = max(worker.fruitless, len(worker.deaths))
        pause = min(policy.backoff * 2 ** (quick - 1), policy.longest_backoff)
        worker.due = now + pause
        _log.error("worker %d died: %s; starting it again in %.1f s", worker.number, cause, pause)

    def _gave_up(self, worker: _Worker, cause: str) -> MillstreamError:
        return MachineError(
            f"worker {worker.number} of the collector does not stay up: it died "
            f"{max(worker.fruitless, len(worker.deaths))} times, last by this: {cause}",
            remedy="remove the cause, which the lines above tell more of, and start again; what "
            "the collector answered for is on disk",
        )

    def _await_something(self, seconds: float | None) -> None:
        for key, _ in self._selector.select(seconds):
            if key.data is not None:
                key.data()

    def _end(self, processes: list[Forked], seconds: float) -> None:
        """Ask all to end, kill what takes longer, return when none is left."""
        self._is_stopping = True
        deadline = time.monotonic() + seconds
        left = self._without_ended(processes)
        for process in left:
            process.signal(signal.SIGTERM)
        while left:
            if time.monotonic() >= deadline:
                for process in left:
                    process.signal(signal.SIGKILL)
            self._await_something(_LOOK_SECONDS)
            for process in left:
                process.heard()  # nobody cares any more
            left = self._without_ended(left)

    def _without_ended(self, processes: list[Forked]) -> list[Forked]:
        left = []
        for process in processes:
            if process.exit_code() is None:
                left.append(process)
            else:
                self._let_go(process)
        return left

    def _let_go(self, process: Forked) -> None:
        self._selector.unregister(process.channel)
        process.channel.close()

    @contextlib.contextmanager
    def _heeding_signals(self) -> Iterator[None]:
        reading, writing = os.pipe()
        os.set_blocking(reading, False)
        os.set_blocking(writing, False)

        def stop(*_: object) -> None:
            self._is_stopping = True

        before = {
            number: signal.signal(number, handler)
            for number, handler in (
                (signal.SIGTERM, stop),
                (signal.SIGINT, stop),
                (signal.SIGCHLD, _nothing),
            )
        }
        woken = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
        self._selector.register(
            reading, selectors.EVENT_READ, lambda: os.read(reading, 1 << 12) and None
        )
        try:
            yield
        finally:
            signal.set_wakeup_fd(woken)
            for number, handler in before.items():
                signal.signal(number, handler)
            os.close(reading)
            os.close(writing)


def _nothing(*_: object) -> None:
    pass


def _cause(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    with contextlib.suppress(ValueError):
        return f"signal {signal.Signals(-code).name}"
    return f"signal {-code}"
