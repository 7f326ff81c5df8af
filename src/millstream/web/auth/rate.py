"""How much each caller may send: a bucket of tokens, and the headers that tell of it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from millstream.web.asgi import HeaderList, Scope
from millstream.web.problem import Problem

_BUCKET = "millstream.bucket"
_MOST_BUCKETS = 50_000


class TokenBucket:
    """Fills with `rate` tokens a second up to `size`; may be overdrawn, and then stays shut.

    So a batch is let in by what is there before it, and paid for by what comes after it: how many
    events a request has is known only when it is unpacked.
    """

    __slots__ = ("_at", "_clock", "_tokens", "rate", "size")

    def __init__(self, rate: float, size: float, clock: Callable[[], float]) -> None:
        self.rate = rate
        self.size = max(1.0, size)
        self._clock = clock
        self._tokens = self.size
        self._at = clock()

    def left(self) -> float:
        """Tokens that are in it now."""
        now = self._clock()
        self._tokens = min(self.size, self._tokens + (now - self._at) * self.rate)
        self._at = now
        return self._tokens

    def take(self, tokens: float = 1.0) -> bool:
        """Take tokens if there is one at least."""
        if self.left() < 1.0:
            return False
        self._tokens -= tokens
        return True

    def owe(self, tokens: float) -> None:
        """Take tokens, whether they are there or not."""
        self._tokens -= tokens

    @property
    def is_full(self) -> bool:
        return self.left() >= self.size

    def seconds_to_one(self) -> int:
        """Whole seconds until a request is let in again; 0: now."""
        return max(0, math.ceil((1.0 - self.left()) / self.rate))

    def headers(self) -> HeaderList:
        """RateLimit and RateLimit-Policy, as draft-ietf-httpapi-ratelimit-headers has them."""
        window = max(1, round(self.size / self.rate))
        left, size = max(0, math.floor(self.left())), math.floor(self.size)
        full = math.ceil((self.size - self.left()) / self.rate)
        return [
            (b"ratelimit-policy", b'"events";q=%d;w=%d' % (size, window)),
            (b"ratelimit", b'"events";r=%d;t=%d' % (left, full)),
        ]


class RateLimiter:
    """A bucket for each caller, made when it is first seen, forgotten when it is full again."""

    def __init__(self, burst: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._burst = burst
        self._clock = clock
        self._buckets: dict[str, TokenBucket] = {}

    def admit(self, caller: str, rate: float) -> TokenBucket:
        """The caller's bucket, one token lighter; Problem 429 if it is empty."""
        bucket = self.bucket(caller, rate)
        if not bucket.take():
            wait = bucket.seconds_to_one()
            raise Problem(
                429,
                f"more than {rate:g} events a second; nothing was taken in, send it again in "
                f"{wait} s",
                headers=[(b"retry-after", str(wait).encode()), *bucket.headers()],
            )
        return bucket

    def bucket(self, caller: str, rate: float) -> TokenBucket:
        """The caller's bucket as it is."""
        bucket = self._buckets.get(caller)
        return self._add(caller, rate) if bucket is None or bucket.rate != rate else bucket

    def _add(self, caller: str, rate: float) -> TokenBucket:
        if len(self._buckets) >= _MOST_BUCKETS:
            used = [(name, each) for name, each in self._buckets.items() if not each.is_full]
            self._buckets = dict(used[-_MOST_BUCKETS // 2 :])  # half, so that it is seldom done
        bucket = self._buckets[caller] = TokenBucket(rate, rate * self._burst, self._clock)
        return bucket


def set_bucket(scope: Scope, bucket: TokenBucket) -> None:
    """Let the rest of the request's way know whom to charge."""
    scope[_BUCKET] = bucket


def charge(scope: Scope, events: int) -> None:
    """Charge this request's caller for the events that were in it; one is paid for already."""
    bucket: TokenBucket | None = scope.get(_BUCKET)
    if bucket is not None:
        bucket.owe(events - 1)
