"""One whole run: from the first step to the last process gone."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Iterator
from types import FrameType

from millstream.home import Home
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

    StartFailed or GaveUp when the system cannot run; in every case no process is left.
    """

    def tell(happening: Happening) -> None:
        # A terminal that was closed must not keep us from ending all in order.
        with contextlib.suppress(OSError):
            show.happened(happening)

    supervisor = Supervisor(parts, home.logs, tell, policy)
    with asked_to_end() as asked:
        figures: Figures | None = None
        try:
            while not asked.signals:
                supervisor.tick()
                if figures is None and supervisor.all_ready:
                    figures = Figures(serve_url)
                    show.ready(supervisor, ready_lines)
                show.tick(supervisor, figures.newest() if figures else None)
                time.sleep(TICK)
        finally:
            if figures is not None:
                figures.close()
            with contextlib.suppress(OSError):
                show.close()
            supervisor.stop(hurry=lambda: asked.hurry)
        return asked.signals[0]
