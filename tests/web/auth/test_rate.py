"""Rate limits: counted in events, reported in headers, and refilled over time."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.clock import Clock
from tests.web.echo_server import echo_server

from millstream.web.auth import rate
from millstream.web.auth.rate import RateLimiter, TokenBucket
from millstream.web.problem import Problem


@pytest.fixture
def clock() -> Clock:
    return Clock()


def headers(bucket: TokenBucket) -> dict[bytes, bytes]:
    return dict(bucket.headers())


def test_a_batch_is_admitted_with_one_token_and_charged_later(clock: Clock) -> None:
    rates = RateLimiter(2.0, clock)
    bucket = rates.admit("shop", 10)  # 20 may come at once
    assert headers(bucket) == {
        b"ratelimit-policy": b'"events";q=20;w=2',
        b"ratelimit": b'"events";r=19;t=1',
    }
    bucket.charge(99)
    assert headers(bucket)[b"ratelimit"] == b'"events";r=0;t=10'
    with pytest.raises(Problem) as refused:
        rates.admit("shop", 10)
    assert refused.value.status == 429
    assert dict(refused.value.headers)[b"retry-after"] == b"9"  # 80 are owed, and one is needed
    clock.now += 8.0
    with pytest.raises(Problem):
        rates.admit("shop", 10)
    clock.now += 0.11
    rates.admit("shop", 10)
    rates.admit("another", 10)


def test_over_time_no_caller_exceeds_its_rate(clock: Clock) -> None:
    rates, sent = RateLimiter(1.0, clock), 0
    for _ in range(1000):
        try:
            rates.admit("shop", 10).charge(6)
            sent += 7
        except Problem:
            pass
        clock.now += 0.1
    assert 1000 <= sent <= 1000 + 20


def test_callers_are_forgotten_before_they_fill_the_memory(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rate, "_MAX_BUCKETS", 100)
    rates = RateLimiter(1.0, clock)
    rates.admit("owes", 1).charge(1000)
    for number in range(1000):
        clock.now += 1.0 if number % 90 == 0 else 0.0
        rates.bucket(f"c{number}", 1)
        assert len(rates._buckets) <= 100
    with pytest.raises(Problem):
        rates.admit("owes", 1)


async def test_an_address_has_a_rate_where_nobody_logs_in(tmp_path: Path) -> None:
    async with echo_server(tmp_path, rate=5, rate_burst=2) as server:
        first = await server.ask(body=b"{}\n" * 30)
        assert first.status == 200
        assert first.headers["ratelimit-policy"] == '"events";q=10;w=2'
        assert first.headers["ratelimit"].startswith('"events";r=0;')
        refused = await server.ask()
        assert refused.status == 429
        assert 1 <= int(refused.headers["retry-after"]) <= 5
        assert "ratelimit" in refused.headers
        assert "more than 5 events a second" in refused.problem()["detail"]
        assert len(server.echo.bodies) == 1
        assert (await server.ask("/health/live")).status == 200


async def test_only_a_trusted_proxy_names_the_client(tmp_path: Path) -> None:
    async with echo_server(tmp_path, rate=0.1, rate_burst=1) as server:
        assert [(await server.ask(headers=of(n))).status for n in (1, 2)] == [200, 429]
    trusted = {"rate": 0.1, "rate_burst": 1, "trusted_proxies": ["127.0.0.1"]}
    async with echo_server(tmp_path, **trusted) as server:
        statuses = [(await server.ask(headers=of(n))).status for n in (1, 2, 1)]
        assert statuses == [200, 200, 429]


def of(number: int) -> dict[str, str]:
    return {"x-forwarded-for": f"203.0.113.{number}"}
