"""Runs a command: errors become one line and an exit code."""

from __future__ import annotations

import errno
import traceback
from collections.abc import Sequence

import click

from millstream.cli.group import millstream
from millstream.cli.shared.outcome import (
    BUG,
    FAILED,
    INTERRUPTED,
    USAGE,
    complain,
    leave_output,
    open_output,
)
from millstream.errors import MillstreamError, PipelineErrors

_FULL = (errno.ENOSPC, errno.EDQUOT)


def invoke(arguments: Sequence[str]) -> int:
    """Run a command; the exit code."""
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
