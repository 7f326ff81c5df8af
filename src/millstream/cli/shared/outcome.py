"""How a command ends: the error message and the exit code.

0 success · 1 an error that the message explains · 2 wrong usage · 70 a bug · 130 Ctrl-C
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Iterator

import click

FAILED, USAGE, BUG, INTERRUPTED = 1, 2, 70, 130


def prepare_output() -> None:
    """Make standard output accept every text.

    It may be closed (`>&-`). Its encoding may lack characters that we write: they are escaped, as
    Python does on stderr.
    """
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - until the end
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors != "backslashreplace":
        sys.stdout.reconfigure(errors="backslashreplace")


def discard_output() -> None:
    """Discard what is not written yet: the pipe has no reader any more, or the disk is full."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@contextlib.contextmanager
def ignored_broken_pipe() -> Iterator[None]:
    """Ignores a reader that leaves (`| head`), so that it does not change the exit code."""
    try:
        yield
    except BrokenPipeError:
        discard_output()


def print_error(text: str) -> None:
    """`error: …` on stderr."""
    click.echo(click.style("error: ", fg="red", bold=True) + text, err=True)
