"""How a command ends: what the user reads, and the exit code.

0 done · 1 an error that the message explains · 2 wrong usage · 70 a bug of ours · 130 Ctrl-C
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import sys
import traceback
from collections.abc import Iterator, Sequence

import click

from millstream.errors import MillstreamError, PipelineErrors

FAILED, USAGE, BUG, INTERRUPTED = 1, 2, 70, 130
_FULL = (errno.ENOSPC, errno.EDQUOT)


def invoke(arguments: Sequence[str]) -> int:
    """Run a command; the exit code."""
    from millstream.cli.group import millstream

    open_output()
    try:
        code = millstream.main(list(arguments), prog_name="millstream", standalone_mode=False)
        return code if isinstance(code, int) else 0
    except PipelineErrors as error:
        for each in error.errors:
            complain(str(each))
        return FAILED
    except MillstreamError as error:
        complain(str(error))
        return FAILED
    except click.UsageError as error:
        complain(error.format_message())
        command = error.ctx.command_path if error.ctx else "millstream"
        click.echo(f"see {command} --help", err=True)
        return USAGE
    except click.ClickException as error:
        complain(error.format_message())
        return FAILED
    except (click.Abort, KeyboardInterrupt):
        return INTERRUPTED
    except BrokenPipeError:
        leave_output()
        return 0
    except Exception as error:
        if isinstance(error, OSError) and error.errno in _FULL:
            complain(f"cannot write {error.filename or 'the output'}: {error.strerror}; free space")
            leave_output()
            return FAILED
        traceback.print_exc()
        complain("this is a bug of Millstream's, not yours: please report it with the lines above")
        return BUG


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
