"""Who collected an event: a name that no other collector, and no other start of this one, has."""

from __future__ import annotations

import fcntl
import os
import secrets

from millstream.home import Home


def next_identity(home: Home) -> str:
    """The collector's id for this start of it: `<name>-<start>`.

    The name is the home's and stays; the start counts up each time. Sequence numbers begin at 1
    with every start, so (id, sequence) is never given twice, although nothing is remembered of the
    numbers that the last start gave out.
    """
    home.path.mkdir(parents=True, exist_ok=True)
    # Two collectors may start in one home at once.
    with open(home.path / "collector-id", "a+", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        name, _, start = file.read().strip().partition(" ")
        name = name or secrets.token_hex(4)
        this = int(start or 0) + 1
        file.seek(0)
        file.truncate()
        file.write(f"{name} {this}\n")
        file.flush()
        os.fsync(file.fileno())
    return f"{name}-{this}"
