"""Commands that read the history of a pipeline that a test runs."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from millstream.cli.invoke import invoke
from millstream.log.producing.write import write
from millstream.log.topic_names import views_topic

if TYPE_CHECKING:
    from tests.analyze.conftest import Live


class Commands:
    """Runs commands on the running pipeline."""

    def __init__(self, live: Live, capfd: pytest.CaptureFixture[str]) -> None:
        self._live, self._capfd = live, capfd
        described = {
            query.view.name: msgspec.json.encode(query.plan.describe()) for query in live.planned
        }
        write(live.settings.log, views_topic(live.app.name), described, 10)

    def __call__(self, *arguments: str) -> tuple[int, Any]:
        """Run a command; its exit code and the JSON that it printed."""
        self._capfd.readouterr()
        place = [
            self._live.app.location.file,
            f"--set=log.bootstrap={self._live.settings.log.bootstrap}",
            "--json",
        ]
        code = invoke([*arguments, *place])
        out = self._capfd.readouterr().out
        lines = out if arguments[0] == "verify" else f"[{','.join(out.splitlines())}]"
        return code, json.loads(lines)
