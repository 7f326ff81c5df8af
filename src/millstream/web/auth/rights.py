"""What a caller may do: words such as `read:orders`, `write:clicks_*`, `query:*` and `admin`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Literal

Action = Literal["write", "read", "query", "admin"]
Kind = Literal["stream", "view", "ledger", "query"]

ACTIONS: tuple[Action, ...] = ("write", "read", "query", "admin")
KINDS: tuple[Kind, ...] = ("stream", "view", "ledger", "query")

_WORD = re.compile(r"(write|read|query):(\S+)")
_MAX_CACHED = 10_000


class Rights:
    """Patterns of names, by action.

    `write` is for streams. `read` is for streams, views, ledgers and named queries. `query` is for
    views that the caller's own SQL may read. A pattern is a name in which `*` stands for any
    characters; `ledger/orders` restricts it to one kind. `admin` has no pattern: it allows looking
    at the system itself, and closing connections.
    """

    __slots__ = ("_admin", "_answers", "_patterns", "words")

    def __init__(self, words: Iterable[str]) -> None:
        """ValueError names a word that is no right."""
        self.words = tuple(words)
        self._admin = "admin" in self.words
        found: dict[str, list[str]] = {}
        for word in self.words:
            match = _WORD.fullmatch(word)
            if match is not None:
                found.setdefault(match[1], []).append(match[2])
            elif word != "admin":
                raise ValueError(
                    f"{word[:100]!r} is no right; write read:NAME, write:NAME, query:NAME or admin"
                )
        self._patterns = {action: compile_patterns(each) for action, each in found.items()}
        self._answers: dict[tuple[str, str, str], bool] = {}

    @classmethod
    def of(cls, patterns: Mapping[Action, Iterable[str]], *, admin: bool = False) -> Rights:
        """The rights for lists of patterns by action, none of which contains white space."""
        return cls(words_of(patterns, admin=admin))

    def allows(self, action: Action, kind: Kind | None = None, name: str = "") -> bool:
        """Whether the caller may do this with the stream, view, ledger or query of that name."""
        if action == "admin":
            return self._admin
        asked = (action, kind or "", name)
        answer = self._answers.get(asked)
        if answer is None:
            pattern = self._patterns.get(action)
            answer = pattern is not None and any(
                pattern.fullmatch(each) is not None for each in (name, f"{kind}/{name}")
            )
            if len(self._answers) >= _MAX_CACHED:
                self._answers.clear()
            self._answers[asked] = answer
        return answer


def words_of(patterns: Mapping[Action, Iterable[str]], *, admin: bool = False) -> tuple[str, ...]:
    """Lists of patterns by action, as words."""
    words = [f"{action}:{each}" for action, listed in patterns.items() for each in listed]
    return (*words, *(["admin"] if admin else []))


def is_right(word: str) -> bool:
    """Whether a word is a right, such as `read:orders` or `admin`."""
    return word == "admin" or _WORD.fullmatch(word) is not None


def compile_patterns(patterns: Iterable[str]) -> re.Pattern[str]:
    """Matches what one of the patterns matches; only `*` is special: it means any characters."""
    return re.compile(
        "|".join(".*".join(map(re.escape, pattern.split("*"))) for pattern in patterns), re.DOTALL
    )


EVERYTHING = Rights(["write:*", "read:*", "query:*", "admin"])
"""The rights of every caller where no login is needed."""
