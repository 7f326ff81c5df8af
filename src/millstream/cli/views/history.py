"""Functions for commands that read history with Spark."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from millstream.cli.shared.options import (
    Flags,
    load_app,
    open_home,
    parse_time,
    settings_of,
    with_bootstrap,
)
from millstream.errors import MillstreamError

if TYPE_CHECKING:
    from millstream.pipeline.app import App
    from millstream.settings import Settings

Report = Callable[[str], None]


def open_history(
    pipeline: Path | None, home: Path, assignments: tuple[str, ...]
) -> tuple[App, Settings]:
    """The pipeline, by default the one that runs in the home, and its settings."""
    place = open_home(home)
    if pipeline is None:
        running = place.running().get("analyze", {}).get("pipeline")
        if not running:
            raise MillstreamError(
                f"no analyze runs in {home}, so the pipeline is not known",
                remedy="name its file: … PIPELINE, or say where it runs: --home FOLDER",
            )
        pipeline = Path(running)
    app = load_app(pipeline)
    from millstream.log.connection import await_broker

    settings = with_bootstrap(settings_of(pipeline, Flags(assignments)), place)
    await_broker(settings.log)
    return app, settings


def optional_time(option: str, text: str) -> int | None:
    """The time of an option in milliseconds; None if the option is not given."""
    return parse_time(text, option) if text else None


@contextlib.contextmanager
def spark_progress(words: str) -> Iterator[Report]:
    """Shows progress on stderr, and hides Spark's own output."""
    from rich.console import Console

    from millstream.cli.shared.spark_output import hidden_spark_output

    with os.fdopen(os.dup(sys.__stderr__.fileno() if sys.__stderr__ else 2), "w") as terminal:
        console = Console(file=terminal, highlight=False)
        if console.is_terminal:
            with console.status(words) as status, hidden_spark_output():
                yield status.update
        else:
            with hidden_spark_output():
                yield lambda text: console.print(text, soft_wrap=True)
