"""Markdown reference of every command: `python -m millstream.cli.reference`."""

from __future__ import annotations

import inspect

import click

from millstream.cli.group import COMMANDS, millstream

_INTRODUCTION = """\
# Commands

<!-- Written by `python -m millstream.cli.reference`; change the commands' help instead. -->

Look up here every command and option. `millstream COMMAND --help` shows the same on a terminal.
[Codes](codes.md#exit-codes-of-commands) lists the exit codes.
"""


def describe() -> str:
    """The page docs/reference/cli.md: every command with its arguments, options and examples."""
    root = click.Context(millstream, info_name="millstream")
    parts = [_INTRODUCTION]
    for title, commands in COMMANDS:
        parts.append(f"## {title}\n")
        parts += [_command(command, root) for command in commands]
    return "\n".join(parts)


def _command(command: click.Command, parent: click.Context) -> str:
    context = click.Context(command, info_name=command.name, parent=parent)
    help_text = inspect.cleandoc(command.help or "").replace("\f", "")
    pieces = " ".join(command.collect_usage_pieces(context))
    parts = [f"### {context.command_path}\n", f"```text\n{context.command_path} {pieces}\n```\n"]
    parts += [_paragraph(each) for each in help_text.split("\n\n") if each]
    options = [row for each in command.get_params(context) if (row := _option(each, context))]
    if options:
        parts.append("| option | meaning |\n|---|---|\n" + "\n".join(options) + "\n")
    if isinstance(command, click.Group):
        parts += [_command(each, context) for each in command.commands.values()]
    return "\n".join(parts)


def _paragraph(text: str) -> str:
    """A paragraph of help text; click marks those that keep their lines with a \\b."""
    if text.startswith("\b"):
        return f"```text\n{text.lstrip(chr(8)).strip()}\n```\n"
    return f"{text}\n"


def _option(parameter: click.Parameter, context: click.Context) -> str:
    record = parameter.get_help_record(context)
    if record is None or not isinstance(parameter, click.Option) or "--help" in parameter.opts:
        return ""
    names, meaning = (" ".join(text.split()).replace("|", "\\|") for text in record)
    return f"| `{names}` | {meaning} |"


if __name__ == "__main__":
    print(describe(), end="")
