"""Writes the output of one view until it is killed: `python run_output_writer.py BOOTSTRAP APP`."""

from __future__ import annotations

import sys
import time

from millstream.analyze.triggers.ledger import LedgerSpec
from millstream.analyze.triggers.output_writer import OutputTask, OutputWriter
from millstream.analyze.triggers.processor import OutputTopics
from millstream.analyze.triggers.shown_rows import OutputSpec
from millstream.log.settings import LogSettings
from millstream.pipeline.trigger import Accumulation, parse_trigger
from millstream.values.view_description import ViewColumn

COLUMNS = (ViewColumn("k", "string"), ViewColumn("n", "bigint"), ViewColumn("total", "double"))


def task(app: str, trigger: str | None, accumulation: Accumulation, ledger: bool) -> OutputTask:
    """The task of a view `v`."""
    names = ("changes" if trigger else "view", "view", "ledger", "panes", "panes")
    output = None
    if trigger:
        output = OutputSpec(parse_trigger(trigger), accumulation, ("n", "total"), "window", COLUMNS)
    spec = LedgerSpec("v", "g", ("n", "total")) if ledger else None
    return OutputTask(
        "v", OutputTopics(*(f"{app}.{name}.v" for name in names)), output, spec, 10**9
    )


if __name__ == "__main__":
    bootstrap, app = sys.argv[1:]
    writer = OutputWriter(
        LogSettings(bootstrap=bootstrap),
        task(app, "every change", "retract", ledger=True),
    )
    while True:
        time.sleep(60)
