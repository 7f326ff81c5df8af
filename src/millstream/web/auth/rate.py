"""Rate limits by caller: token buckets, and the RateLimit headers."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from millstream.web.asgi import HeaderList, Scope
from millstream.web.problem import Problem

_BUCKET = "millstream.bucket"
_MAX_BUCKETS = 50_000


class TokenBucket:
    """Fills with `rate` tokens a second up to `size`; may be overdrawn.

    The number of events in a request is known only after it is unpacked. So a request is admitted
    if there is one token, and charged for its events later.
    """

    __slots__ = ("_at", "_clock", "_tokens", "rate", "size", "unit")

    def __init__(
        self, rate: float, size: float, clock: Callable[[], float], unit: str = "events"
    ) -> None:
        self.unit = unit.encode()
        self.rate = rate
        self.size = max(1.0, size)
        self._clock = clock
        self._tokens = self.size
        self._at = clock()

    def left(self) -> float:
        """Tokens in the bucket now."""
        now = self._clock()
        self._tokens = min(self.size, self._tokens + (now - self._at) * self.rate)
        self._at = now
        return self._tokens

    def try_take(self, tokens: float = 1.0) -> bool:
        """Take tokens if there is at least one."""
        if self.left() < 1.0:
            return False
        self._tokens -= tokens
        return True

    def charge(self, tokens: float) -> None:
        """Take tokens, even if there are fewer."""
        self._tokens -= tokens

    @property
    def is_full(self) -> bool:
        return self.left() >= self.size

    def seconds_to_one(self) -> int:
        """Whole seconds until a request is admitted again; 0: now."""
        return max(0, math.ceil((1.0 - self.left()) / self.rate))

    def headers(self) -> HeaderList:
        """RateLimit and RateLimit-Policy, as in draft-ietf-httpapi-ratelimit-headers."""
        window = max(1, round(self.size / self.rate))
        left, size = max(0, math.floor(self.left())), math.floor(self.size)
        full = math.ceil((self.size - self.left()) / self.rate)
        return [
            (b"ratelimit-policy", b'"%b";q=%d;w=%d' % (self.unit, size, window)),
            (b"ratelimit", b'"%b";r=%d;t=%d' % (self.unit, left, full)),
        ]


class RateLimiter:
    """A bucket for each caller; full buckets are removed when there are too many."""

    def __init__(
        self, burst: float, clock: Callable[[], float] = time.monotonic, *, unit: str = "events"
    ) -> None:
        self._burst = burst
        self._unit = unit
        self._clock = clock
        self._buckets: dict[str, TokenBucket] = {}

    def admit(self, caller: str, rate: float) -> TokenBucket:
        """Take one token from the caller's bucket; Problem 429 if it is empty."""
        bucket = self.bucket(caller, rate)
        if not bucket.try_take():
            wait = bucket.seconds_to_one()
            raise Problem(
                429,
                f"more than {rate:g} {self._unit} a second; nothing was accepted, try again in "
                f"{wait} s",
                headers=[(b"retry-after", str(wait).encode()), *bucket.headers()],
            )
        return bucket

    def bucket(self, caller: str, rate: float) -> TokenBucket:
        """The caller's bucket."""
        bucket = self._buckets.get(caller)
        return self._add(caller, rate) if bucket is None or bucket.rate != rate else bucket

    def _add(self, caller: str, rate: float) -> TokenBucket:
        if len(self._buckets) >= _MAX_BUCKETS:
            used = [(name, each) for name, each in self._buckets.items() if not each.is_full]
            self._buckets = dict(used[-_MAX_BUCKETS // 2 :])  # half, so that this is rare
        bucket = self._buckets[caller] = TokenBucket(
            rate, rate * self._burst, self._clock, self._unit
        )
        return bucket


def set_bucket(scope: Scope, bucket: TokenBucket) -> None:
    """Make the caller's bucket known to the application behind the middleware."""
    scope[_BUCKET] = bucket


def charge(scope: Scope, events: int) -> None:
    """Charge this request's caller for its events; one token was taken at admission."""
    bucket: TokenBucket | None = scope.get(_BUCKET)
    if bucket is not None:
        bucket.charge(events - 1)
