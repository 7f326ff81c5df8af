"""`keys`: creates, lists and revokes API keys for senders and readers."""

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

    from millstream.web.auth.api_keys import ApiKey, ApiKeyFile, Claim

F = TypeVar("F", bound=Callable[..., Any])

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,99}")
_PATTERN = re.compile(r"[a-z0-9_*]{1,100}")
_KIND_PATTERN = re.compile(r"((stream|view|ledger|query)/)?[a-z0-9_*]{1,100}")
_MAX_NUMBER = 2**53  # every JSON parser reads numbers below it exactly
_CLAIM = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,99}")


@click.group()
def keys() -> None:
    """Create, list and revoke API keys for senders and readers.

    A server requires a key if collect.auth or serve.auth contains `key`. Only hashes of the keys
    are stored, in HOME/keys.json or the file in the settings. Running servers apply a change within
    a second, also to open connections.

    \b
    millstream keys create shop --write orders --write "clicks_*"
    millstream keys create page --read by_city --query "by_*" --claim tenant=acme
    millstream keys list
    millstream keys revoke shop
    """


def place_options(function: F) -> F:
    """Options that say which file of keys is meant: the home's, or the one in the settings."""
    file = click.option(
        "--file",
        type=click.Path(dir_okay=False, path_type=Path),
        default=None,
        help="The file of keys; default: collect.keys_file or serve.keys_file, else keys.json in "
        "--home.",
    )
    return home_option(set_option(file(function)))


@keys.command()
@click.argument("name")
@click.option(
    "--write",
    multiple=True,
    metavar="PATTERN",
    help="A stream that the key may write to; `*` stands for any characters. May be given several "
    "times.",
)
@click.option(
    "--read",
    multiple=True,
    metavar="PATTERN",
    help="A view, stream, ledger or named query that the key may read, such as by_city, `sales_*` "
    "or ledger/orders. May be given several times.",
)
@click.option(
    "--query",
    "may_query",
    multiple=True,
    metavar="PATTERN",
    help="A view that the key's own SQL may read. May be given several times.",
)
@click.option(
    "--admin",
    is_flag=True,
    help="The key may look at the system itself, as in /metrics and /v1/system of serve, and close "
    "connections.",
)
@click.option(
    "--claim",
    "claims",
    multiple=True,
    metavar="NAME=VALUE",
    help="A fact about the caller for row policies, such as tenant=acme. true, false and numbers "
    "are no text, unless they are quoted. May be given several times.",
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
    read: tuple[str, ...],
    may_query: tuple[str, ...],
    admin: bool,
    claims: tuple[str, ...],
    expires: str,
    rate: float | None,
    as_json: bool,
    home: Path,
    assignments: tuple[str, ...],
    file: Path | None,
) -> None:
    """Create a key called NAME, and print it: it cannot be shown again.

    Only the key goes to stdout, so that you can store it without showing it.

    \b
    millstream keys create shop --write orders --expires "90 days" > shop.key
    millstream keys create page --read "by_*" --claim tenant=acme > page.key
    millstream keys create prometheus --admin
    """
    check(name, write, read, may_query)
    stored = key_file(home, assignments, file)
    key = stored.create(
        name,
        write,
        read=read,
        query=may_query,
        admin=admin,
        claims=dict(map(parse_claim, claims)),
        expires=expires_when(expires),
        rate=rate,
    )
    [made] = [each for each in stored.read() if each.name == name]
    if as_json:
        click.echo(json.dumps({"key": key, **key_facts(made)}))
        return
    click.echo(key)
    click.echo(f"{name} may {may(made)}. This is the only time that the key is shown.", err=True)


@keys.command("list")
@json_option
@place_options
def list_keys(as_json: bool, home: Path, assignments: tuple[str, ...], file: Path | None) -> None:
    """List the keys: what each may do, and until when.

    \b
    millstream keys list --json | jq -r '.[] | select(.expired) | .name'
    """
    found = key_file(home, assignments, file).read()
    if as_json:
        click.echo(json.dumps([key_facts(key) for key in found]))
        return
    if not found:
        click.echo("there are no keys; `millstream keys create NAME --write STREAM` creates one")
    for key in found:
        one = key_facts(key)
        state = "expired" if one["expired"] else f"until {one['expires'] or 'revoked'}"
        rate = f" · {key.rate:g} events/s" if key.rate else ""
        click.echo(f"{click.style(key.name, bold=True)}  may {may(key)} · {state}{rate}")


@keys.command()
@click.argument("name")
@place_options
def revoke(name: str, home: Path, assignments: tuple[str, ...], file: Path | None) -> None:
    """Delete the key called NAME: in a second, running servers refuse it and end its connections.

    \b
    millstream keys revoke shop
    """
    key_file(home, assignments, file).revoke(name)
    click.echo(f"revoked {name}")


def key_file(home: Path, assignments: tuple[str, ...], file: Path | None = None) -> ApiKeyFile:
    """The file of keys; MillstreamError if the servers have different ones and none is given."""
    from millstream.web.auth.api_keys import ApiKeyFile

    if file is not None:
        return ApiKeyFile(file)
    settings = settings_of(None, Flags(assignments))
    named = {each.keys_file for each in (settings.collect, settings.serve) if each.keys_file}
    if len(named) > 1:
        raise MillstreamError(
            f"collect.keys_file and serve.keys_file differ: {', '.join(sorted(named))}",
            remedy="say which one is meant: --file FILE",
        )
    return ApiKeyFile(Path(named.pop()) if named else open_home(home).keys)


def may(key: ApiKey) -> str:
    """The rights of a key, in words."""
    rights = {"write to": key.write, "read": key.read, "query": key.query}
    said = [f"{verb} {', '.join(names)}" for verb, names in rights.items() if names]
    said += ["administer"] if key.admin else []
    claims = ", ".join(f"{name}={value}" for name, value in key.claims.items())
    return (" and ".join(said) or "do nothing") + (f" · {claims}" if claims else "")


def parse_claim(text: str) -> tuple[str, Claim]:
    """Name and value of `tenant=acme`; MillstreamError if it is none."""
    name, equals, value = text.partition("=")
    if not equals or not _CLAIM.fullmatch(name):
        raise MillstreamError(
            f"--claim {text!r} is not of the form name=value", remedy="write --claim tenant=acme"
        )
    try:
        parsed = json.loads(value)
    except ValueError:
        parsed = value
    is_plain = isinstance(parsed, str) or (
        isinstance(parsed, int | float) and abs(parsed) < _MAX_NUMBER
    )
    return name, parsed if is_plain else value


def check(
    name: str, write: tuple[str, ...], read: tuple[str, ...] = (), query: tuple[str, ...] = ()
) -> None:
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
    for option, patterns in (("--read", read), ("--query", query)):
        for pattern in patterns:
            if not _KIND_PATTERN.fullmatch(pattern):
                raise MillstreamError(
                    f"{option} {pattern!r} fits no name",
                    remedy="names are made of a-z, 0-9 and _; `*` stands for any of them; "
                    "ledger/orders means only the ledger",
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
        "read": key.read,
        "query": key.query,
        "admin": key.admin,
        "claims": key.claims,
        "created": key.created.isoformat(timespec="seconds"),
        "expires": key.expires.isoformat(timespec="seconds") if key.expires else None,
        "expired": key.expired(time.time()),
        "rate": key.rate,
    }
