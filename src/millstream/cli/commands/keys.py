"""`keys`: creates, lists and revokes API keys of the collector."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from millstream.cli.shared.options import (
    Flags,
    home_option,
    json_option,
    open_home,
    set_option,
    settings_of,
)
from millstream.errors import MillstreamError

if TYPE_CHECKING:
    from datetime import datetime

    from millstream.web.auth.api_keys import ApiKey, ApiKeyFile

F = TypeVar("F", bound=Callable[..., Any])

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,99}")
_PATTERN = re.compile(r"[a-z0-9_*]{1,100}")


@click.group()
def keys() -> None:
    """Create, list and revoke API keys for senders.

    The collector requires a key if collect.auth contains `key`. Only hashes of the keys are stored,
    in HOME/keys.json. A running collector applies a change within two seconds.

    \b
    millstream keys create shop --write orders --write "clicks_*"
    millstream keys list
    millstream keys revoke shop
    """


def place_options(function: F) -> F:
    """Options that say which file of keys is meant: the home's, or the one in the settings."""
    return home_option(set_option(function))


@keys.command()
@click.argument("name")
@click.option(
    "--write",
    multiple=True,
    metavar="PATTERN",
    help="A stream that the key may write to; `*` stands for any characters. May be given several "
    "times. Without it the key gives access only to what shows no event, such as /metrics.",
)
@click.option(
    "--expires",
    default="",
    metavar="TIME",
    help="When the key expires: after '90 days', or at '2027-01-31T12:00:00Z'.",
)
@click.option(
    "--rate",
    type=click.FloatRange(min=0, min_open=True),
    default=None,
    help="Events per second that the key may send; default: collect.rate.",
)
@json_option
@place_options
def create(
    name: str,
    write: tuple[str, ...],
    expires: str,
    rate: float | None,
    as_json: bool,
    home: Path,
    assignments: tuple[str, ...],
) -> None:
    """Create a key called NAME, and print it: it cannot be shown again.

    Only the key goes to stdout, so that you can store it without showing it.

    \b
    millstream keys create shop --write orders --expires "90 days" > shop.key
    millstream keys create prometheus
    """
    check(name, write)
    file = key_file(home, assignments)
    key = file.create(name, list(write), expires=expires_when(expires), rate=rate)
    if as_json:
        [made] = [each for each in file.read() if each.name == name]
        click.echo(json.dumps({"key": key, **key_facts(made)}))
        return
    click.echo(key)
    may = f"may write to {', '.join(write)}" if write else "may write to no stream"
    click.echo(f"{name} {may}. This is the only time that the key is shown.", err=True)


@keys.command("list")
@json_option
@place_options
def list_keys(as_json: bool, home: Path, assignments: tuple[str, ...]) -> None:
    """List the keys: what each may do, and until when.

    \b
    millstream keys list --json | jq -r '.[] | select(.expired) | .name'
    """
    found = key_file(home, assignments).read()
    if as_json:
        click.echo(json.dumps([key_facts(key) for key in found]))
        return
    if not found:
        click.echo("there are no keys; `millstream keys create NAME --write STREAM` creates one")
    for key in found:
        one = key_facts(key)
        state = "expired" if one["expired"] else f"until {one['expires'] or 'revoked'}"
        rate = f" · {key.rate:g} events/s" if key.rate else ""
        rights = ", ".join(key.write) or "no stream"
        click.echo(f"{click.style(key.name, bold=True)}  writes to {rights} · {state}{rate}")


@keys.command()
@click.argument("name")
@place_options
def revoke(name: str, home: Path, assignments: tuple[str, ...]) -> None:
    """Delete the key called NAME: running collectors refuse it within two seconds.

    \b
    millstream keys revoke shop
    """
    key_file(home, assignments).revoke(name)
    click.echo(f"revoked {name}")


def key_file(home: Path, assignments: tuple[str, ...]) -> ApiKeyFile:
    from millstream.web.auth.api_keys import ApiKeyFile

    named = settings_of(None, Flags(assignments)).collect.keys_file
    return ApiKeyFile(Path(named) if named else open_home(home).keys)


def check(name: str, write: tuple[str, ...]) -> None:
    """MillstreamError for an impossible name or pattern."""
    if not _NAME.fullmatch(name):
        raise MillstreamError(
            f"a key cannot be called {name!r}",
            remedy="use up to 100 of A-Z, a-z, 0-9 and . _ @ -, a letter or digit first",
        )
    for pattern in write:
        if not _PATTERN.fullmatch(pattern):
            raise MillstreamError(
                f"--write {pattern!r} fits no stream's name",
                remedy="streams are made of a-z, 0-9 and _; `*` stands for any of them",
            )


def expires_when(text: str) -> datetime | None:
    """The time of `90 days` (from now) or `2027-01-31T12:00:00Z`; it must be in the future."""
    from datetime import UTC, datetime

    from millstream.syntax.duration import parse_duration

    if not text:
        return None
    now = datetime.now(UTC)
    try:
        when = datetime.fromisoformat(text)
        when = when if when.tzinfo else when.replace(tzinfo=UTC)
    except ValueError:
        try:
            when = now + parse_duration(text)
        except (ValueError, OverflowError):
            raise MillstreamError(
                f"--expires {text!r} is neither a duration nor a time",
                remedy="write '90 days', or '2027-01-31T12:00:00Z'",
            ) from None
    if when <= now:
        raise MillstreamError(f"--expires {text!r} is in the past", remedy="name a later time")
    return when


def key_facts(key: ApiKey) -> dict[str, Any]:
    """The public properties of a key, without its hash."""
    import time

    return {
        "name": key.name,
        "write": key.write,
        "created": key.created.isoformat(timespec="seconds"),
        "expires": key.expires.isoformat(timespec="seconds") if key.expires else None,
        "expired": key.expired(time.time()),
        "rate": key.rate,
    }
