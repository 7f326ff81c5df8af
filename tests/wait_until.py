"""Waits for a condition, instead of sleeping."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any


async def until(condition: Callable[[], Any], seconds: float = 60.0) -> Any:
    """Wait until the result of `condition` is true, and return it; fail after `seconds`."""
    deadline = time.monotonic() + seconds
    while True:
        result = condition()
        if isinstance(result, Awaitable):
            result = await result
        if result:
            return result
        assert time.monotonic() < deadline, "the condition did not come true in time"
        await asyncio.sleep(0.005)
