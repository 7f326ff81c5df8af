"""Checks names that users give, and suggests close ones for mistyped names."""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import get_close_matches

_NAME = re.compile(r"[a-z][a-z0-9_]*")
# Kafka allows 249 characters for a topic's name, which contains the app's name and another one.
_LONGEST = 100


def name_problem(name: object) -> str:
    """Why `name` is not valid for an app, stream or view; empty if it is."""
    if not isinstance(name, str):
        return f"is a {type(name).__name__}, not a text"
    if not _NAME.fullmatch(name):
        return "is not made of a-z, 0-9 and _ with a letter first"
    if len(name) > _LONGEST:
        return f"is longer than {_LONGEST} characters"
    return ""


def name_like(text: str) -> str:
    """A valid name that resembles `text`."""
    name = re.sub(r"[^a-z0-9]+", "_", text.lower()).strip("_")[:_LONGEST]
    return name if name[:1].isalpha() else f"x_{name}".rstrip("_")


def closest(name: str, known: Iterable[str]) -> str | None:
    """The known name that the user probably meant, if one is close."""
    by_lower = {each.lower(): each for each in known}
    close = get_close_matches(name.lower(), by_lower, n=1, cutoff=0.6)
    return by_lower[close[0]] if close else None


def suggest(name: str, known: Iterable[str]) -> str:
    """A remedy for an unknown `name`: the closest known one, or all of them."""
    known = list(known)
    if close := closest(name, known):
        return f"did you mean {close!r}?"
    one_of = "one of " if len(known) > 1 else ""
    return f"write {one_of}{', '.join(map(repr, known))}" if known else ""
