"""One whole run: from the first start until the last process has ended."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Callable, Iterator
from types import FrameType

from millstream.client.credentials import Credentials
from millstream.runtime.failing_processes import Failure, publish_failures
from millstream.runtime.home import Home
from millstream.supervise.metrics_poll import MetricsPoll
from millstream.supervise.plain_output import Display
from millstream.supervise.process_spec import ProcessSpec, RestartPolicy
from millstream.supervise.supervisor import ProcessEvent, Supervisor

TICK_SECONDS = 0.05


class StopSignals:
    """The signals that asked the run to stop; a second one means: at once."""

    def __init__(self) -> None:
        self.signals: list[int] = []

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self.signals.append(number)

    @property
    def hurry(self) -> bool:
        return len(self.signals) > 1


@contextlib.contextmanager
def stop_signals() -> Iterator[StopSignals]:
    """Collects SIGINT, SIGTERM and SIGHUP (a closed terminal) instead of dying from them."""
    received = StopSignals()
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, received) for number in numbers}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def ignored_output_errors() -> Iterator[None]:
    """Ignores errors of the output: it may be a file on a full disk.

    A reader that has left (`run | head`) still ends the run.
    """
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError:
        pass


def run_processes(
    specs: list[ProcessSpec],
    home: Home,
    display: Display,
    *,
    ready_lines: list[str],
    serve_url: str = "",
    serve_access: Callable[[], Credentials] = Credentials,
    policy: RestartPolicy | None = None,
) -> int:
    """Run the processes until a signal stops them; returns the signal's number.

    StartFailed if a process refuses its first start, GaveUp if the policy says so. No process is
    left in any case. Which processes keep dying is published in the home.
    """

    def report(event: ProcessEvent) -> None:
        # A closed terminal must not prevent an orderly stop.
        with contextlib.suppress(OSError):
            display.process_event(event)

    supervisor = Supervisor(specs, home.logs, report, policy)
    publish_failures(home, [])
    with stop_signals() as received:
        metrics: MetricsPoll | None = None
        published: list[Failure] = []
        is_ready = False
        try:
            while not received.signals:
                supervisor.tick()
                if (failures := supervisor.failures()) != published:
                    publish_failures(home, failures)
                    published = failures
                with ignored_output_errors():
                    if not is_ready and supervisor.all_ready:
                        is_ready = True
                        metrics = MetricsPoll(serve_url, serve_access) if serve_url else None
                        display.ready(supervisor, ready_lines)
                    display.tick(supervisor, metrics.newest() if metrics else None)
                time.sleep(TICK_SECONDS)
        finally:
            if metrics is not None:
                metrics.close()
            with contextlib.suppress(OSError):
                display.close()
            publish_failures(home, [])
            interrupted = received.signals[:1] == [signal.SIGINT]
            supervisor.stop(hurry=lambda: received.hurry, interrupted=interrupted)
        return received.signals[0]
