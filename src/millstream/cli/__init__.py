"""The command line. One module per command, or small group of them.

Command modules import only click at the top, so that `millstream --help` answers at once; what a
command needs (Spark, Kafka, rich) is imported when it runs.
"""

from __future__ import annotations

import sys
from typing import NoReturn


def main() -> NoReturn:
    """The `millstream` command."""
    from millstream.cli.invoke import invoke

    sys.exit(invoke(sys.argv[1:]))
