"""Parses and checks options of sources. In SQL every option is text."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import fields
from datetime import timedelta
from ipaddress import ip_network
from urllib.parse import urlsplit

from millstream.connectors.source_description import SourceDescription
from millstream.syntax.duration import parse_duration

_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_HEADER_VALUE = re.compile(r"[\x20-\x7e\x80-\U0010ffff]*")


def pairs(written: str | Mapping[str, str], separator: str) -> dict[str, str]:
    """Names with values; text has one pair per line, as in `Authorization: Bearer …`.

    A value of any other type is returned as it is: `type_problem` reports it.
    """
    if isinstance(written, Mapping):
        return dict(written)
    if not isinstance(written, str):
        return written
    lines = [line for line in written.splitlines() if line.strip()]
    return {
        name.strip(): value.strip()
        for name, _, value in (line.partition(separator) for line in lines)
    }


def words(written: str | Iterable[str]) -> tuple[str, ...]:
    """Several names; text has commas between them. `type_problem` reports any other type."""
    if isinstance(written, list | tuple | set | frozenset):
        return tuple(written)
    if not isinstance(written, str):
        return written  # type: ignore[return-value]
    return tuple(word.strip() for word in written.split(",") if word.strip())


def type_problem(source: SourceDescription) -> str | None:
    """What is wrong with the type of an option. It quotes no value, as that may be secret."""
    for option in fields(source):  # type: ignore[arg-type]
        value, declared = getattr(source, option.name), str(option.type)
        if "dict" in declared:
            fits = isinstance(value, dict) and _are_texts([*value, *value.values()])
            wanted = "names with texts"
        elif "Sequence" in declared or "tuple" in declared:
            fits, wanted = isinstance(value, tuple) and _are_texts(value), "a text or several"
        elif "int" in declared:
            fits, wanted = isinstance(value, int | str), "a number"
        elif "bool" in declared:
            fits, wanted = isinstance(value, bool | str), "True or False"
        else:
            fits, wanted = isinstance(value, str), "a text"
        if not fits:
            return f"has a source whose {option.name} is not {wanted}"
    return None


def _are_texts(values: Iterable[object]) -> bool:
    return all(isinstance(value, str) for value in values)


def duration_problem(option: str, written: object) -> str | None:
    """What is wrong with a duration that may be empty."""
    if written == "":
        return None
    try:
        if isinstance(written, str) and parse_duration(written) > timedelta():
            return None
    except ValueError:
        pass
    return f"has a source with {option}={written!r}, which is not a duration as '30 seconds' is"


def seconds(written: str) -> float | None:
    """A duration in seconds; None if it is empty."""
    return parse_duration(written).total_seconds() if written else None


def number_problem(option: str, written: object, *, least: int = 1) -> str | None:
    """What is wrong with a number."""
    if isinstance(written, int) and not isinstance(written, bool) and written >= least:
        return None
    return f"has a source with {option}={written!r}, which is not a number from {least} on"


def number(written: int | str) -> int | str:
    """The number in a text; any other value as it is: `number_problem` reports it."""
    return int(written) if isinstance(written, str) and written.isdecimal() else written


def named_pair(name: object, value: object) -> str:
    """A pair's name for an error. Without a value, the name itself may be a secret."""
    return repr(name) if value else "a line that has no name"


def headers_problem(headers: Mapping[str, str]) -> str | None:
    """What is wrong with HTTP headers. It quotes no value, as that may be secret."""
    for name, value in headers.items():
        if not isinstance(name, str) or not _HEADER_NAME.fullmatch(name):
            named = named_pair(name, value)
            return f"has a source with {named} in headers, which is not the name of a header"
        if not isinstance(value, str) or not _HEADER_VALUE.fullmatch(value):
            return f"has a source whose header {name!r} is not one line of text"
    return None


def endpoint(url: str) -> tuple[str, int]:
    """Host and port of a URL that has both."""
    parts = urlsplit(url)
    return parts.hostname or "", parts.port or 0


def networks_problem(option: str, networks: Iterable[str]) -> str | None:
    """What is wrong with a list of networks."""
    for network in networks:
        try:
            ip_network(network)
        except ValueError as error:
            return f"has a source with {option}={network!r}, which is not a network: {error}"
    return None
