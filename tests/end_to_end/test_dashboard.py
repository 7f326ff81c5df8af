"""The dashboard in a real browser, in front of a real server."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
import pytest_asyncio
from playwright.async_api import Browser, expect
from tests.end_to_end.screen import Screen, Stage, screen, until

from millstream.log.settings import LogSettings
from millstream.values.report import FieldDrift, Latency, RebuildStatus, StreamCounts, ViewCounts

HOSTILE = [
    "<script>window.hacked = 1</script>",
    "<img src=x onerror='window.hacked = 1'>",
    "a'\"&<b>",
]
pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture
def stage(app_name: str, log_settings: LogSettings, tmp_path: Path) -> Stage:
    return Stage(app_name, log_settings, tmp_path)


@pytest_asyncio.fixture(loop_scope="module")
async def shown(browser: Browser, stage: Stage) -> AsyncIterator[Screen]:
    """The dashboard over two rows; in the end it has asked nobody else and made no complaint."""
    stage.put("by_city", ["city"], city="Oslo", n=3)
    stage.put("by_city", ["city"], city="Rome", n=12)
    async with stage.serving() as url, screen(browser, url) as page:
        await expect(page.rows("by_city")).to_have_text(["Rome12", "Oslo3"])
        yield page
        assert page.strangers() == []
        assert page.complaints == []


async def test_rows_change_and_move_as_results_arrive(stage: Stage, shown: Screen) -> None:
    stage.put("by_city", ["city"], city="Oslo", n=1400)
    stage.put("by_city", ["city"], city="Bonn", n=20)
    await expect(shown.rows("by_city")).to_have_text(["Oslo1,400", "Bonn20", "Rome12"])


async def test_a_filter_changes_the_subscription_while_connected(
    stage: Stage, shown: Screen
) -> None:
    await shown.filter("by_city", "n > 10")
    await expect(shown.rows("by_city")).to_have_text(["Rome12"])
    stage.put("by_city", ["city"], city="Oslo", n=11)
    await expect(shown.rows("by_city")).to_have_text(["Rome12", "Oslo11"])
    await shown.page.get_by_role("button", name="Clear the filter").first.click()
    stage.put("by_city", ["city"], city="Bonn", n=1)
    await expect(shown.rows("by_city")).to_have_text(["Rome12", "Oslo11", "Bonn1"])


async def test_a_filter_that_the_server_refuses_is_explained_and_the_rows_go_on(
    stage: Stage, shown: Screen
) -> None:
    await shown.filter("by_city", "m > 10")
    await expect(shown.page.locator("#where-by_city-problem")).to_contain_text("m")
    stage.put("by_city", ["city"], city="Oslo", n=4)
    await expect(shown.rows("by_city")).to_have_text(["Rome12", "Oslo4"])
    await expect(shown.page.locator("#where-by_city")).to_have_value("m > 10")


async def test_the_sql_box_answers_and_explains(shown: Screen) -> None:
    box = shown.page.get_by_label("SQL over the views")
    await box.fill("SELECT sum(n) AS total, count(*) AS cities FROM by_city")
    await box.press("Control+Enter")
    result = shown.page.locator(".query tbody tr")
    await expect(result).to_have_text(["152"])
    await box.fill("SELECT nothing FROM by_city")
    await shown.page.get_by_role("button", name="Run").click()
    await expect(shown.page.locator(".query .problem")).to_contain_text("nothing")
    # The browser itself reports the refused request; that is not the page's complaint.
    shown.complaints[:] = [line for line in shown.complaints if "400" not in line]


async def test_a_reload_goes_on_from_the_stored_position(stage: Stage, shown: Screen) -> None:
    stage.put("by_city", ["city"], city="Bonn", n=5)
    await expect(shown.rows("by_city")).to_have_count(3)
    last = shown.got("change", "by_city")[-1]["position"]

    async def written() -> bool:
        return bool(await shown.stored(stage.name, "by_city") == last)

    await until(written, "the stored position")
    await shown.page.goto("about:blank")
    stage.put("by_city", ["city"], city="Oslo", n=99)
    await shown.open()
    await expect(shown.rows("by_city")).to_have_text(["Oslo99", "Rome12", "Bonn5"])
    assert [asked.get("after") for asked in shown.asked("by_city")] == [last]
    assert shown.got("snapshot", "by_city") == []
    assert [change["key"] for change in shown.got("change", "by_city")] == [["Oslo"]]


async def test_a_large_view_arrives_in_pages_and_goes_on_with_changes(
    browser: Browser, stage: Stage
) -> None:
    for n in range(200):
        stage.put("by_city", ["city"], city=f"City {n}", n=n)
    async with stage.serving("serve.page_bytes=1024") as url, screen(browser, url) as shown:
        await expect(shown.rows("by_city").first).to_have_text("City 199199")
        pages = shown.got("snapshot", "by_city")
        assert [page["page"] for page in pages] == list(range(1, len(pages) + 1))
        assert len(pages) > 1
        assert [page["last"] for page in pages] == [False] * (len(pages) - 1) + [True]
        await expect(shown.page.locator("[data-view=by_city] .rows")).to_contain_text("of 200 rows")
        stage.put("by_city", ["city"], city="City 0", n=1000)
        await expect(shown.rows("by_city").first).to_have_text("City 01,000")


async def test_a_filter_survives_a_reload(shown: Screen) -> None:
    await shown.filter("by_city", "city = 'Oslo'")
    await expect(shown.rows("by_city")).to_have_text(["Oslo3"])
    await shown.open()
    await expect(shown.rows("by_city")).to_have_text(["Oslo3"])
    await expect(shown.page.locator("#where-by_city")).to_have_value("city = 'Oslo'")


async def test_the_page_says_that_the_server_is_gone_and_goes_on_when_it_is_back(
    browser: Browser,
    stage: Stage,
) -> None:
    stage.put("by_city", ["city"], city="Oslo", n=3)
    async with stage.serving() as url:
        showing = screen(browser, url)
        shown = await showing.__aenter__()
        await expect(shown.rows("by_city")).to_have_text(["Oslo3"])
    try:
        state = shown.page.locator(".pill")
        await expect(state).to_have_attribute("data-state", "waiting")
        await expect(shown.page.locator("[data-box=serve]")).to_have_attribute("data-state", "down")
        await expect(shown.rows("by_city")).to_have_text(["Oslo3"])
        snapshots = len(shown.got("snapshot", "by_city"))
        stage.put("by_city", ["city"], city="Oslo", n=4)
        async with stage.serving():
            await expect(shown.rows("by_city")).to_have_text(["Oslo4"])
            await expect(state).to_have_text("live")
        assert len(shown.got("snapshot", "by_city")) == snapshots
    finally:
        await showing.__aexit__(None, None, None)


async def test_text_of_events_is_shown_as_text(stage: Stage, shown: Screen) -> None:
    for number, text in enumerate(HOSTILE):
        stage.put("by_city", ["city"], city=text, n=100 + number)
        stage.append("newest", id=number, city=text, lat=52.5, lon=13.4)
    cells = shown.page.locator("[data-view=by_city] .rows tbody td.text")
    await expect(cells).to_have_text([*reversed(HOSTILE), "Rome", "Oslo"])
    await expect(shown.rows("newest")).to_have_count(len(HOSTILE))
    bars = shown.page.locator("[data-view=by_city] .race-label")
    await expect(bars).to_have_count(5)
    assert set(HOSTILE) <= set(await bars.all_text_contents())
    assert await shown.page.evaluate("window.hacked") is None
    assert await shown.page.locator(".card img, .card script, .card b").count() == 0


async def test_keys_beyond_a_double_stay_apart(stage: Stage, shown: Screen) -> None:
    for number in (2**53, 2**53 + 1):
        stage.put("by_id", ["id"], id=number, n=number - 2**53 + 1)
    await expect(shown.rows("by_id")).to_have_text([f"{2**53 + 1}2", f"{2**53}1"])


async def test_windows_race_and_places_light_up(stage: Stage, shown: Screen) -> None:
    hour = time.strftime("%Y-%m-%dT%H:00:00.000000Z", time.gmtime())
    later = time.strftime("%Y-%m-%dT%H:00:00.000000Z", time.gmtime(time.time() + 3600))
    for city, n in (("Oslo", 5), ("Rome", 9)):
        window = {"start": hour, "end": later}
        stage.put("trending", ["window", "city"], window=window, city=city, n=n)
    bars = shown.page.locator("[data-view=trending] .race li")
    await expect(bars).to_have_count(2)
    tops = {
        await bar.locator(".race-label").inner_text(): await bar.evaluate("e => e.style.transform")
        for bar in await bars.all()
    }
    assert tops == {"Rome": "translateY(0%)", "Oslo": "translateY(100%)"}
    overlay = shown.page.locator("[data-view=newest] canvas").nth(1)
    lit = """canvas => {
        const pixels = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
        return pixels.some((value, index) => index % 4 === 3 && value > 0);
    }"""
    assert await overlay.evaluate(lit) is False
    stage.append("newest", id=1, city="Lima", lat=-12.05, lon=-77.04)
    await until(lambda: overlay.evaluate(lit), "the light on the map")


async def test_a_rebuild_and_how_a_view_stands_are_seen_at_a_glance(
    stage: Stage, shown: Screen
) -> None:
    now = time.time_ns() // 1_000_000
    running = RebuildStatus(
        "replaying", "r", done=420, total=1000, started_at=now - 60_000, left_s=12
    )
    city, hour = (
        shown.page.locator("[data-view=by_city]"),
        shown.page.locator("[data-view=trending]"),
    )
    rebuild = city.locator(".rebuild")
    await expect(rebuild).to_be_hidden()
    drift = FieldDrift("rsvps", "<b>city</b>", now, 0.4, "mostly Oslo", "mostly Rome")
    stage.report(
        views={
            "by_city": ViewCounts("running", rebuild=running, behind=0),
            "trending": ViewCounts(
                "running", behind=4000, behind_s=31.2, trend="growing", watermark=now - 4_200
            ),
        },
        streams={"rsvps": StreamCounts(in_order=7, late=2)},
        drifts=[drift],
    )
    await expect(rebuild).to_contain_text("Rebuilding, 42 %")
    await expect(rebuild).to_contain_text("about 12 s left")
    await expect(rebuild).to_contain_text("the old rows are shown until it is ready")
    await expect(shown.page.locator("[data-box=analyze]")).to_contain_text(
        "by_city rebuilding 42 %"
    )
    await expect(city.locator(".behind")).to_have_text("up to date")
    await expect(hour.locator(".behind")).to_have_text("4,000 events behind, 31.2 s ▲ growing")
    await expect(hour.locator(".watermark")).to_contain_text("final until")
    times = shown.page.locator(".event-times")
    await expect(times).to_contain_text("7 in time2 late0 from the future0 broken")
    await expect(times).to_contain_text("rsvps.<b>city</b>mostly Rome")
    done = msgspec.structs.replace(running, state="done", ended_at=now)
    failed = RebuildStatus("failed", error="no room")
    stage.report(
        views={"by_city": ViewCounts(rebuild=done), "trending": ViewCounts(rebuild=failed)}
    )
    await expect(rebuild).to_contain_text("a new epoch")
    await expect(hour.locator(".rebuild")).to_contain_text("The rebuild failedno room")
    await expect(shown.rows("by_city")).to_have_text(["Rome12", "Oslo3"])


async def test_each_step_of_a_streams_events_is_timed_for_all_to_see(
    stage: Stage, shown: Screen
) -> None:
    line = shown.page.get_by_role("row", name="rsvps")
    await expect(line.get_by_role("cell")).to_have_text(["–"] * 12)
    took = Latency(p50=9, p99=12, max=1500, count=3, min=0.25, mean=2.5)
    counts = StreamCounts(accepted=3, logged=3, journaled_ms=took, latency_ms=took)
    stage.report("collect", streams={"rsvps": counts})
    told = ["0.3 ms", "2.5 ms", "12 ms", "1.5 s"]
    await expect(line.get_by_role("cell")).to_have_text([*told, *["–"] * 4, *told])
    await shown.page.set_viewport_size({"width": 360, "height": 800})
    await expect(line.get_by_role("cell")).to_have_text([*told, *["–"] * 4, *told])
    wide = "document.documentElement.scrollWidth - innerWidth"
    assert await shown.page.evaluate(wide) == 0
