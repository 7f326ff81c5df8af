"""A real collector accepts or rejects each simulated event as the simulation predicts."""

from __future__ import annotations

import asyncio
from pathlib import Path
from random import Random
from time import time
from typing import Any

from tests.collect.conftest import collect, headers, shop

from millstream.log.settings import LogSettings
from millstream.simulation import EventSender, Faults, disorder, draw, predict
from millstream.values.event import ID, WATERMARK

MINUTE = 60_000


def world(n: int, at: int, rng: Random) -> dict[str, Any]:
    return {"id": n, "name": rng.choice("abc")}


async def test_the_collector_accepts_or_rejects_each_event_as_the_simulation_predicts(
    app_name: str, log_settings: LogSettings, tmp_path: Path
) -> None:
    start = int(time() * 1000) - 20 * MINUTE
    faults = Faults(0.1, 0.1, 0.1, 0.1, 0.1, 0.05)
    drawn = draw(world, seed=3, count=800, start=start, span=10 * MINUTE)
    sendings = disorder(drawn, faults, seed=3, time="at", lateness=2 * MINUTE, window=MINUTE)
    async with collect(shop(app_name), log_settings, tmp_path) as collector:
        with EventSender(collector.url, "clicks") as post:
            await asyncio.to_thread(post.send, sendings)
        logged = [headers(record) for record in await collector.logged("clicks")]
    found = [(each[ID], int(each[WATERMARK]) if WATERMARK in each else None) for each in logged]
    assert found == [
        (each.sending.id, each.watermark)
        for each in predict(sendings)
        if each.outcome != "duplicate"
    ]
