"""One whole run: from the first step to the last process gone."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Iterator
from types import FrameType

from millstream.runtime.failing_processes import Failure, publish_failures
from millstream.runtime.home import Home
from millstream.supervise.figures import Figures
from millstream.supervise.part import Part, Policy
from millstream.supervise.steps import Show
from millstream.supervise.supervisor import Happening, Supervisor

TICK = 0.05


class Asked:
    """The signals that have asked for the end; a second one means: at once."""

    def __init__(self) -> None:
        self.signals: list[int] = []

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self.signals.append(number)

    @property
    def hurry(self) -> bool:
        return len(self.signals) > 1


@contextlib.contextmanager
def asked_to_end() -> Iterator[Asked]:
    """Collects SIGINT, SIGTERM and SIGHUP (the terminal was closed) instead of dying of them."""
    asked = Asked()
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, asked) for number in numbers}
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def tolerated_output() -> Iterator[None]:
    """Goes on if the output cannot be written: it may be a file on a full disk.

    A reader that has left (`run | head`) still ends the run.
    """
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError:
        pass


def keep_up(
    parts: list[Part],
    home: Home,
    show: Show,
    *,
    ready_lines: list[str],
    serve_url: str = "",
    policy: Policy | None = None,
) -> int:
    """Run the parts until a signal asks for the end; the signal's number.

    StartFailed when a part refuses its first start, GaveUp if the policy says so; in every case no
    process is left. Which parts keep dying is published in the home.
    """

    def tell(happening: Happening) -> None:
        # A terminal that was closed must not keep us from ending all in order.
        with contextlib.suppress(OSError):
            show.happened(happening)

    supervisor = Supervisor(parts, home.logs, tell, policy)
    publish_failures(home, [])
    with asked_to_end() as asked:
        figures: Figures | None = None
        published: list[Failure] = []
        is_ready = False
        try:
            while not asked.signals:
                supervisor.tick()
                if (failures := supervisor.failures()) != published:
                    publish_failures(home, failures)
                    published = failures
                with tolerated_output():
                    if not is_ready and supervisor.all_ready:
                        is_ready = True
                        figures = Figures(serve_url) if serve_url else None
                        show.ready(supervisor, ready_lines)
                    show.tick(supervisor, figures.newest() if figures else None)
                time.sleep(TICK)
        finally:
            if figures is not None:
                figures.close()
            with contextlib.suppress(OSError):
                show.close()
            publish_failures(home, [])
            supervisor.stop(hurry=lambda: asked.hurry)
        return asked.signals[0]
