"""Runs a command, and turns errors into one line and an exit code."""

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
    discard_output,
    prepare_output,
    print_error,
)
from millstream.errors import MillstreamError, PipelineErrors

_DISK_FULL = (errno.ENOSPC, errno.EDQUOT)


def invoke(arguments: Sequence[str]) -> int:
    """Run a command; returns the exit code."""
    prepare_output()
    try:
        code = millstream.main(list(arguments), prog_name="millstream", standalone_mode=False)
        return code if isinstance(code, int) else 0
    except PipelineErrors as error:
        for each in error.errors:
            print_error(str(each))
        return FAILED
    except MillstreamError as error:
        print_error(str(error))
        return FAILED
    except click.UsageError as error:
        print_error(error.format_message())
        command = error.ctx.command_path if error.ctx else "millstream"
        click.echo(f"see {command} --help", err=True)
        return USAGE
    except click.ClickException as error:
        print_error(error.format_message())
        return FAILED
    except (click.Abort, KeyboardInterrupt):
        return INTERRUPTED
    except BrokenPipeError:
        discard_output()
        return 0
    except Exception as error:
        if isinstance(error, OSError) and error.errno in _DISK_FULL:
            print_error(
                f"cannot write {error.filename or 'the output'}: {error.strerror}; free space"
            )
            discard_output()
            return FAILED
        traceback.print_exc()
        print_error(
            "this is a bug in Millstream, not your mistake: please report it with the lines above"
        )
        return BUG
