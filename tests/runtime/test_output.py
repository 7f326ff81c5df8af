from __future__ import annotations

import json
import subprocess
import sys

import pytest

_LOGS = """
import logging, sys
from millstream.runtime.output import OutputSettings, write_logs
write_logs(OutputSettings(format=sys.argv[1], level="info"), "collect")
logger = logging.getLogger("millstream.collect")
logger.debug("not this")
logger.warning("lost %s\\nfor now", "ws://x", extra={"stream": "rsvps", "pause": 0.5})
try:
    1 / 0
except ZeroDivisionError:
    logger.exception("failed")
"""


def logged(form: str) -> str:
    """What a process of its own writes: logging belongs to the whole process."""
    ran = subprocess.run(
        [sys.executable, "-c", _LOGS, form], capture_output=True, text=True, check=True
    )
    assert ran.stdout == ""
    return ran.stderr


def test_json_has_one_object_a_line_with_what_the_code_knew() -> None:
    first, second = map(json.loads, logged("json").splitlines())
    assert first.pop("time").endswith("+00:00")
    assert first == {
        "level": "warning",
        "tier": "collect",
        "logger": "millstream.collect",
        "message": "lost ws://x\nfor now",
        "stream": "rsvps",
        "pause": 0.5,
    }
    assert second["message"] == "failed"
    assert second["error"].endswith("ZeroDivisionError: division by zero")


@pytest.mark.parametrize("part", ["WARNING millstream.collect: lost ws://x", "ZeroDivisionError"])
def test_text_is_for_people(part: str) -> None:
    assert part in logged("text")
    assert "not this" not in logged("text")
