"""The command line: one module per command.

Command modules import only click at the top, so that `millstream --help` answers at once. Spark,
Kafka and rich are imported when a command runs.
"""

from __future__ import annotations

import sys
from typing import NoReturn


def main() -> NoReturn:
    """The `millstream` command."""
    from millstream.cli.invoke import invoke

    sys.exit(invoke(sys.argv[1:]))
