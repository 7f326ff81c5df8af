"""Which dead letters a command means: by id, or by the options --since, --reason and --all."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

import click

from millstream.cli.shared.options import home_option, parse_time, set_option

if TYPE_CHECKING:
    from millstream.values.dead_letter import DeadLetter, DeadLetters

F = TypeVar("F", bound=Callable[..., Any])
L = TypeVar("L", bound="DeadLetter")


def log_options(function: F) -> F:
    """Options that say where the log is, and whose stream is meant."""
    app = click.option("--app", default="", help="The pipeline, if several have such a stream.")
    return home_option(set_option(app(function)))


def filter_options(function: F) -> F:
    """Options that choose dead letters by time and reason."""
    since = click.option(
        "--since",
        default="",
        metavar="TIME",
        help="Only from this time on: '1 hour' ago, or a timestamp.",
    )
    reason = click.option("--reason", default="", help="Only if the reason contains this text.")
    return since(reason(function))


def all_option(function: F) -> F:
    return click.option("--all", "everything", is_flag=True, help="All of them.")(function)


def limit_option(which: str) -> Callable[[F], F]:
    return click.option(
        "--limit",
        type=click.IntRange(1),
        default=20,
        show_default=True,
        help=f"List only the {which} ones.",
    )


def check_selection(ids: tuple[str, ...], everything: bool, since: str, reason: str) -> None:
    """UsageError unless the user gave either ids or options."""
    if not (ids or everything or since or reason):
        raise click.UsageError("say which: --all, --since, --reason, or ids that `list` prints")
    if ids and (everything or since or reason):
        raise click.UsageError("give ids, or choose by --all, --since and --reason, not both")


def matching(store: DeadLetters[L], since: str, reason: str) -> Iterator[L]:
    """The dead letters of a store that the options choose."""
    for letter in store.list(parse_time(since) if since else 0):
        if reason.lower() in letter.reason.lower():
            yield letter
