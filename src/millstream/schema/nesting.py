"""Measures how deep JSON is nested, without parsing it."""

from __future__ import annotations

import re
from itertools import accumulate

# The closing quote is optional: else each quote of a broken text would cost a search to its end.
_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+"?', re.DOTALL)
_NO_BRACKETS = bytes(set(range(256)) - set(b"{}[]"))
_STEPS = [1 if byte in b"{[" else -1 for byte in range(256)]


def blank_strings(raw: bytes) -> bytes:
    """The JSON with each string replaced by an empty one."""
    return _STRING.sub(b'""', raw)


def is_deeper(raw: bytes, than: int) -> bool:
    """Whether objects and arrays are nested more than `than` levels deep."""
    if raw.count(b"{") + raw.count(b"[") <= than:
        return False
    brackets = blank_strings(raw).translate(None, _NO_BRACKETS)
    return max(accumulate(map(_STEPS.__getitem__, brackets)), default=0) > than
