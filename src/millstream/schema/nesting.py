"""How deep JSON is nested, told without parsing it."""

from __future__ import annotations

import re
from itertools import accumulate

# The closing quote may be missing: or each quote in a broken text would be tried to the text's end.
_TEXT = re.compile(rb'"(?:[^"\\]++|\\.)*+"?', re.DOTALL)
_NO_BRACKETS = bytes(set(range(256)) - set(b"{}[]"))
_STEPS = [1 if byte in b"{[" else -1 for byte in range(256)]


def blank_texts(raw: bytes) -> bytes:
    """The JSON with each of its texts made empty."""
    return _TEXT.sub(b'""', raw)


def is_deeper(raw: bytes, than: int) -> bool:
    """Whether objects and arrays are in each other more than so many times."""
    if raw.count(b"{") + raw.count(b"[") <= than:
        return False
    brackets = blank_texts(raw).translate(None, _NO_BRACKETS)
    return max(accumulate(map(_STEPS.__getitem__, brackets)), default=0) > than
