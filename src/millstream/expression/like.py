"""LIKE patterns, matched in one pass over the value."""

from __future__ import annotations

from typing import NamedTuple

MAX_PATTERN = 1_000  # characters


class LikeSegment(NamedTuple):
    """The characters between two %; None means any character."""

    characters: tuple[str | None, ...]
    text: str | None  # the characters, if none of them is None
    masks: dict[str, int]  # by character, the places where it may be, as bits
    anywhere: int  # the places where any character may be

    def fits(self, value: str, at: int) -> bool:
        if at < 0 or len(value) - at < len(self.characters):
            return False
        if self.text is not None:
            return value.startswith(self.text, at)
        return all(
            wanted is None or value[at + place] == wanted
            for place, wanted in enumerate(self.characters)
        )

    def find(self, value: str, start: int) -> int:
        """The first place from `start` on where the segment fits; -1: none.

        Uses the Shift-And algorithm: bit n of `state` means that the first n+1 characters of the
        segment end at the current character. So each character of the value is read once.
        """
        if self.text is not None:
            return value.find(self.text, start)
        masks, anywhere, state = self.masks, self.anywhere, 0
        last = 1 << (len(self.characters) - 1)
        for at in range(start, len(value)):
            state = ((state << 1) | 1) & masks.get(value[at], anywhere)
            if state & last:
                return at - len(self.characters) + 1
        return -1


class Pattern(NamedTuple):
    """A parsed LIKE pattern."""

    segments: tuple[LikeSegment, ...]

    @property
    def weight(self) -> int:
        """The cost of matching a character, in multiples of a plain search."""
        return 8 if any(segment.text is None for segment in self.segments) else 1

    def matches(self, value: str) -> bool:
        first, *rest = self.segments
        if not first.fits(value, 0):
            return False
        at = len(first.characters)
        if not rest:
            return len(value) == at
        *middle, last = rest
        for segment in middle:
            at = segment.find(value, at)
            if at < 0:
                return False
            at += len(segment.characters)
        end = len(value) - len(last.characters)
        return end >= at and last.fits(value, end)


def parse_pattern(pattern: str, escape: str | None = None) -> Pattern | None:
    """Parse a pattern; None if it is too long."""
    if len(pattern) > MAX_PATTERN:
        return None
    parts: list[list[str | None]] = [[]]
    characters = iter(pattern)
    for character in characters:
        if character == escape:
            parts[-1].append(next(characters, escape))
        elif character == "%":
            parts.append([])
        else:
            parts[-1].append(None if character == "_" else character)
    return Pattern(tuple(_segment(tuple(part)) for part in parts))


def _segment(characters: tuple[str | None, ...]) -> LikeSegment:
    if None not in characters:
        return LikeSegment(characters, "".join(c for c in characters if c is not None), {}, 0)
    anywhere = sum(1 << place for place, c in enumerate(characters) if c is None)
    masks: dict[str, int] = {}
    for place, character in enumerate(characters):
        if character is not None:
            masks[character] = masks.get(character, anywhere) | 1 << place
    return LikeSegment(characters, None, masks, anywhere)
