"""How a command ends: what the user reads, and the exit code.

0 done · 1 an error that the message explains · 2 wrong usage · 70 a bug of ours · 130 Ctrl-C
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Iterator

import click

FAILED, USAGE, BUG, INTERRUPTED = 1, 2, 70, 130


def open_output() -> None:
    """Let every command write whatever it has to say.

    Standard output may be closed (`>&-`). Its encoding may lack characters that we write: they are
    escaped, as Python does on stderr.
    """
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - until we end
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors != "backslashreplace":
        sys.stdout.reconfigure(errors="backslashreplace")


def leave_output() -> None:
    """Nothing more must be flushed into a pipe that nobody reads, or onto a full disk."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@contextlib.contextmanager
def perhaps_unread() -> Iterator[None]:
    """For what a command prints before its verdict: a reader that leaves does not change that."""
    try:
        yield
    except BrokenPipeError:
        leave_output()


def complain(text: str) -> None:
    """`error: …` on stderr."""
    click.echo(click.style("error: ", fg="red", bold=True) + text, err=True)
