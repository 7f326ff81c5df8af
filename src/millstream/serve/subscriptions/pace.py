"""How fast a client gets changes, and what happens when it reads more slowly than they come."""

from __future__ import annotations

import heapq
import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

from millstream.errors import QueryError
from millstream.serve.views.encoding import Encoding
from millstream.serve.views.served_view import ServedView
from millstream.store.views.ring import Offsets, ViewChange

Clock = Callable[[], float]
SlowPolicy = Literal["buffer", "conflate", "sample", "disconnect"]
_MAX_RATE = 1_000_000.0
_MIN_RATE = 0.001
_BURST_SECONDS = 0.05  # sent at once, so that a high rate needs few timers
MAX_KEYS = 10_000  # whose rate is limited for one client


@dataclass(frozen=True, slots=True)
class Pace:
    """The limits that a client asked for. Rates are changes per second."""

    when_slow: SlowPolicy = "buffer"
    sample: float | None = None
    max_rate: float | None = None
    max_rate_per_key: float | None = None

    @property
    def conflates(self) -> bool:
        """Whether a change is left out if a newer one of its key waits."""
        return self.when_slow in ("conflate", "sample")

    @property
    def rate(self) -> float | None:
        rates = [rate for rate in (self.sample, self.max_rate) if rate is not None]
        return min(rates, default=None)

    def changed(self, fields: Mapping[str, Any]) -> Pace:
        """The same with other limits, if the fields have them."""
        given = {name: fields[name] for name in self.__slots__ if name in fields}
        if given.get("when_slow") == "catch_up":
            given["when_slow"] = "buffer"
        if given.get("when_slow", "sample") != "sample":
            given.setdefault("sample", None)
        return replace(self, **given)

    def check(self, served: ServedView) -> None:
        """QueryError if a limit is invalid, or would make the client's rows wrong."""
        for name in ("sample", "max_rate", "max_rate_per_key"):
            _check_rate(name, getattr(self, name))
        if (self.when_slow == "sample") != (self.sample is not None):
            raise QueryError(
                "when_slow 'sample' and the field sample belong together",
                remedy="write both, as in when_slow: sample, sample: 10 for ten changes a second",
            )
        for what, wanted in self._losses():
            if wanted:
                _check_loss(what, served, needs_key=what != "when_slow 'sample'")

    def _losses(self) -> Iterator[tuple[str, bool]]:
        yield f"when_slow {self.when_slow!r}", self.conflates
        yield "max_rate_per_key", self.max_rate_per_key is not None


def _check_rate(name: str, rate: float | None) -> None:
    if rate is not None and not (math.isfinite(rate) and _MIN_RATE <= rate <= _MAX_RATE):
        raise QueryError(
            f"{name} {rate:g} is not between {_MIN_RATE:g} and {_MAX_RATE:g} changes per second"
        )


def _check_loss(what: str, served: ServedView, *, needs_key: bool) -> None:
    name = f"{served.kind} {served.name}"
    described = served.description
    accumulation = described.accumulation if described is not None else "accumulate"
    if served.sends_full_history or accumulation != "accumulate":
        does = "is a ledger" if served.sends_full_history else f"has accumulation {accumulation!r}"
        raise QueryError(
            f"{what} would leave out changes, but {name} {does}: its changes must be added up",
            remedy="use when_slow: buffer, and max_rate if you need a limit",
        )
    if needs_key and not served.table.keyed:
        raise QueryError(
            f"{what} leaves out older changes of the same key, but {name} has no key",
            remedy="use when_slow: sample, which leaves out any rows, or when_slow: buffer",
        )


class TokenBucket:
    """Allows `rate` units per second; a unit may be borrowed, and is then made up."""

    __slots__ = ("_burst", "_clock", "_rate", "_seen", "_tokens")

    def __init__(self, rate: float, burst: float = 1.0, clock: Clock = time.monotonic) -> None:
        self._rate = rate
        self._burst = burst
        self._clock = clock
        self._tokens = burst
        self._seen = clock()

    @classmethod
    def of(cls, rate: float | None, clock: Clock = time.monotonic) -> TokenBucket | None:
        """A bucket for changes; None without a limit."""
        return None if rate is None else cls(rate, max(1.0, rate * _BURST_SECONDS), clock)

    def take(self, units: float = 1.0) -> None:
        self._refill()
        self._tokens -= units

    def wait(self, units: float = 1.0) -> float:
        """Seconds until `units` can be taken; 0: now."""
        self._refill()
        missing = min(units, self._burst) - self._tokens
        return missing / self._rate if missing > 1e-9 else 0.0

    def _refill(self) -> None:
        now = self._clock()
        self._tokens = min(self._burst, self._tokens + (now - self._seen) * self._rate)
        self._seen = now


class Held(NamedTuple):
    """The newest change of a key that may not be sent yet."""

    change: ViewChange
    before: Offsets  # where a client must resume, to get this change


class KeyLimit:
    """Spaces the changes of each key, and holds the newest change of a key that is too fast.

    Changes are held by reference; most of their rows are in the table anyway. At most `MAX_KEYS`
    are held.
    """

    def __init__(self, rate: float, clock: Clock = time.monotonic) -> None:
        self._interval = 1 / rate
        self._clock = clock
        self._sent: dict[str, float] = {}  # when a key may be sent again; the earliest first
        self._held: dict[str, Held] = {}  # in the order of the log
        self._due: list[tuple[float, str]] = []  # a heap

    @property
    def is_full(self) -> bool:
        return len(self._held) >= MAX_KEYS

    @property
    def safe_offsets(self) -> Offsets | None:
        """Where a client must resume to miss no held change; None if none is held."""
        return next(iter(self._held.values())).before if self._held else None

    def holds(self, key: str) -> bool:
        return key in self._held

    def admit(self, key: str) -> bool:
        """Whether a change of the key may be sent now; it then counts as sent."""
        now = self._clock()
        if self._sent.get(key, now) > now:
            return False
        self._sent.pop(key, None)  # to the end
        self._sent[key] = now + self._interval
        while len(self._sent) > MAX_KEYS or next(iter(self._sent.values())) <= now:
            del self._sent[next(iter(self._sent))]
        return True

    def hold(self, key: str, change: ViewChange, before: Offsets) -> bool:
        """Hold a change until its key may be sent; whether an older one was held."""
        if (held := self._held.get(key)) is not None:
            self._held[key] = Held(change, held.before)
            return True
        self._held[key] = Held(change, before)
        heapq.heappush(self._due, (self._sent.get(key, self._clock()), key))
        return False

    def take_over(self, other: KeyLimit) -> None:
        """Hold what `other` holds; all of it is due now."""
        now = self._clock()
        self._held = dict(other._held)
        self._due = [(now, key) for key in self._held]

    def wait(self) -> float | None:
        """Seconds until a held change is due; None if none is held."""
        return max(0.0, self._due[0][0] - self._clock()) if self._due else None

    def take(self) -> ViewChange | None:
        """A held change that is due now; it counts as sent."""
        if not self._due or self._due[0][0] > self._clock():
            return None
        _, key = heapq.heappop(self._due)
        self._sent.pop(key, None)
        self.admit(key)
        return self._held.pop(key).change


class Thinning:
    """Decides which changes one client gets now, later or not at all; counts those left out."""

    def __init__(self, served: ServedView, pace: Pace) -> None:
        self.pace = pace
        self.skipped = 0  # changes left out
        self._unreported = 0  # since the last message
        self._served = served
        self.key_limit: KeyLimit | None = None
        self.use(pace)

    def use(self, pace: Pace) -> None:
        """Use these limits from now on. Changes that are held become due."""
        self.pace = pace
        self.rate = TokenBucket.of(pace.rate)
        held = self.key_limit
        if pace.max_rate_per_key is not None or held is not None:
            self.key_limit = KeyLimit(pace.max_rate_per_key or _MAX_RATE)
            if held is not None:
                self.key_limit.take_over(held)
        # Rows without key have no newer version to wait for: those beyond the rate are dropped.
        self.drops = pace.when_slow == "sample" and not self._served.table.keyed
        limits = pace.conflates, self.rate, self.key_limit, self._unreported
        self.is_active = any(limits)

    def forget_held(self) -> None:
        """Drop the changes that are held: the client gets their rows otherwise."""
        self.key_limit = None
        self.use(self.pace)

    @property
    def held_since(self) -> Offsets | None:
        """Where a client must resume to get the changes that are held; None if there is none."""
        return self.key_limit.safe_offsets if self.key_limit is not None else None

    def wait(self) -> float:
        """Seconds until another change may be looked at."""
        if self.key_limit is not None and self.key_limit.is_full:
            return self.key_limit.wait() or 0.001
        return 0.0 if self.drops else self.rate_wait()

    def rate_wait(self) -> float:
        """Seconds until the rate allows another change."""
        return 0.0 if self.rate is None else self.rate.wait()

    def leaves_out(
        self, change: ViewChange, number: int, before: Offsets, encoding: Encoding
    ) -> bool:
        """Whether the client does not get a change, or not now."""
        if self.pace.conflates and self._is_superseded(change, number, encoding):
            return True
        return self.key_limit is not None and self._is_held(
            self.key_limit, change, before, encoding
        )

    def _is_superseded(self, change: ViewChange, number: int, encoding: Encoding) -> bool:
        ring, newest = self._served.table.ring, number
        if change.key is not None:
            newest = ring.newest_of(change.key)
        if newest == number and not (self.drops and self.rate_wait()):
            return False
        operation = encoding.operation(change)
        if operation == "delete" and encoding.operation(ring[newest]) != "upsert":
            return False
        if operation is not None:
            self.skip(self.pace.when_slow)
        return True

    def _is_held(
        self, limit: KeyLimit, change: ViewChange, before: Offsets, encoding: Encoding
    ) -> bool:
        key = change.key
        if key is None or encoding.operation(change) is None:
            return False
        if not limit.holds(key) and limit.admit(key):
            return False
        if limit.hold(key, change, before):
            self.skip("max_rate_per_key")
        return True

    def take_held(self) -> ViewChange | None:
        """A change of a fast key that is due, if the rate allows it."""
        if self.key_limit is None or self.rate_wait():
            return None
        return self.key_limit.take()

    def count_sent(self) -> None:
        if self.rate is not None:
            self.rate.take()

    def skip(self, reason: str, count: int = 1) -> None:
        self.skipped += count
        self._unreported += count
        self._served.metrics.skipped[reason] += count

    def skipped_json(self) -> bytes:
        """`"skipped":3,` if so many changes were left out since the last message, or nothing."""
        if not self._unreported:
            return b""
        count, self._unreported = self._unreported, 0
        return b'"skipped":%d,' % count
