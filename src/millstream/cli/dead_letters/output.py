"""Dead letters as lines of a list, or one as a whole."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

import click

from millstream.cli.shared.text import printable, printable_lines
from millstream.values.clock import format_time

if TYPE_CHECKING:
    from millstream.values.dead_letter import DeadLetter

_SHOWN_CHARACTERS = 200  # of an event in a list


def print_line(letter: DeadLetter, as_json: bool) -> None:
    """One line of JSON, also if the output is no terminal; else two lines for people."""
    text = letter.value.decode("utf-8", "replace")
    if as_json or not sys.stdout.isatty():
        content = {"id": letter.id, "at": letter.at, "reason": letter.reason, "event": text}
        click.echo(json.dumps({**content, **letter.details}, ensure_ascii=False))
        return
    reason = click.style(printable(letter.reason), fg="yellow")
    click.echo(f"{click.style(letter.id, bold=True)}  {format_time(letter.at)}  {reason}")
    rest = "…" if len(text) > _SHOWN_CHARACTERS else ""
    click.echo(f"  {click.style(printable(text[:_SHOWN_CHARACTERS]) + rest, dim=True)}")


def print_letter(letter: DeadLetter, *, raw: bool, as_json: bool = False) -> None:
    """Everything that is known about one; with `raw` only the event's bytes."""
    if raw:
        sys.stdout.buffer.write(letter.value)
        sys.stdout.buffer.flush()
    elif as_json:
        print_line(letter, True)
    else:
        click.echo(f"{letter.id}  {format_time(letter.at)}")
        click.echo(click.style("reason: ", bold=True) + printable(letter.reason))
        for name, text in letter.facts.items():
            click.echo(f"  {printable(name)}: {printable(text)}")
        click.echo(printable_lines(letter.value))
