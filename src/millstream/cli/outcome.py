"""How a command ends: what the user reads, and the exit code.

0 done · 1 an error that the message explains · 2 wrong usage · 70 a bug of ours · 130 Ctrl-C
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence

import click

from millstream.errors import MillstreamError

FAILED, USAGE, BUG, INTERRUPTED = 1, 2, 70, 130


def invoke(arguments: Sequence[str]) -> int:
    """Run a command; the exit code."""
    from millstream.cli.commands import millstream

    try:
        code = millstream.main(list(arguments), prog_name="millstream", standalone_mode=False)
        return code if isinstance(code, int) else 0
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
        # The reader (`millstream tail | head`) has enough; nothing must be flushed into its pipe.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception:
        traceback.print_exc()
        complain("this is a bug of Millstream's, not yours: please report it with the lines above")
        return BUG


def complain(text: str) -> None:
    """`error: …` on stderr."""
    click.echo(click.style("error: ", fg="red", bold=True) + text, err=True)
