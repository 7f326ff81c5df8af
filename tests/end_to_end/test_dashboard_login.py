"""The dashboard's login in a real browser, in front of a real server that wants API keys."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import pytest_asyncio
from click.testing import CliRunner
from playwright.async_api import Browser, Locator, expect
from tests.end_to_end.screen import Screen, Stage, screen

from millstream.cli.group import millstream
from millstream.log.settings import LogSettings

pytestmark = pytest.mark.asyncio(loop_scope="module")
Keys = Callable[..., str]


@pytest.fixture
def stage(app_name: str, log_settings: LogSettings, tmp_path: Path) -> Stage:
    stage = Stage(app_name, log_settings, tmp_path)
    stage.put("by_city", ["city"], city="Oslo", n=3)
    return stage


@pytest.fixture
def keys(stage: Stage) -> Keys:
    """Runs `millstream keys`; what it prints."""

    def run(*words: str) -> str:
        result = CliRunner().invoke(millstream, ["keys", *words, "--home", str(stage.home)])
        assert result.exit_code == 0, result.output
        return result.stdout.strip()

    return run


@pytest.fixture
def secrets(keys: Keys) -> dict[str, str]:
    """The keys of two readers, by name."""
    return {
        "ada": keys("create", "ada", "--read", "*", "--query", "*", "--admin"),
        "reader": keys("create", "reader", "--read", "by_city"),
    }


@pytest_asyncio.fixture(loop_scope="module")
async def shown(browser: Browser, stage: Stage, secrets: dict[str, str]) -> AsyncIterator[Screen]:
    """The login form; in the end no key was in an address, and nobody else was asked."""
    async with stage.serving('serve.auth=["key"]') as url, screen(browser, url) as page:
        await expect(_input(page)).to_be_focused()
        yield page
        assert page.strangers() == []
        # The browser itself reports refused requests; that is not the page's complaint.
        assert [line for line in page.complaints if "Failed to load resource" not in line] == []
        assert not [url for url in page.requests if any(key in url for key in secrets.values())]


def _input(shown: Screen) -> Locator:
    return shown.page.get_by_label("API key or token")


async def _log_in(shown: Screen, secret: str) -> None:
    await _input(shown).fill(secret)
    await _input(shown).press("Enter")


def _tickets(shown: Screen) -> list[str]:
    return [url for url in shown.requests if "/v1/connect?ticket=" in url]


async def test_a_wrong_key_is_refused_and_a_right_one_shows_the_page(
    shown: Screen, secrets: dict[str, str]
) -> None:
    await _log_in(shown, "ms_wrong")
    await expect(shown.page.get_by_role("alert")).to_contain_text(
        "Not accepted. The key is unknown"
    )
    assert _tickets(shown) == []
    await _log_in(shown, secrets["ada"])
    await expect(shown.rows("by_city")).to_have_text(["Oslo3"])
    await expect(shown.page.locator(".pill")).to_have_text("live")
    await expect(shown.page.locator("[data-box=serve]")).to_have_attribute("data-state", "up")
    assert len(_tickets(shown)) == 1


async def test_a_reload_keeps_the_login_and_takes_another_ticket(
    shown: Screen, secrets: dict[str, str]
) -> None:
    await _log_in(shown, secrets["ada"])
    await expect(shown.rows("by_city")).to_have_text(["Oslo3"])
    await shown.page.reload()
    await expect(shown.rows("by_city")).to_have_text(["Oslo3"])
    assert len(set(_tickets(shown))) == len(_tickets(shown)) == 2
    cookies = await shown.page.context.cookies()
    stored = await shown.page.evaluate("JSON.stringify({...localStorage})")
    databases = await shown.page.evaluate("indexedDB.databases()")
    assert (cookies, databases) == ([], [])
    assert secrets["ada"] not in stored


async def test_a_ticket_in_an_address_opens_no_second_connection(
    shown: Screen, secrets: dict[str, str]
) -> None:
    await _log_in(shown, secrets["ada"])
    await expect(shown.page.locator(".pill")).to_have_text("live")
    [spent] = _tickets(shown)
    opened = await shown.page.evaluate(
        """(url) => new Promise((resolve) => {
            const socket = new WebSocket(url);
            socket.onopen = () => resolve(true);
            socket.onclose = () => resolve(false);
        })""",
        spent,
    )
    assert not opened
    shown.complaints[:] = [line for line in shown.complaints if spent not in line]


async def test_a_logout_forgets_the_key(shown: Screen, secrets: dict[str, str]) -> None:
    await _log_in(shown, secrets["ada"])
    await expect(shown.rows("by_city")).to_have_count(1)
    await shown.page.get_by_role("button", name="Log out").click()
    await expect(shown.page.get_by_role("alert")).to_have_text("You are logged out.")
    await shown.page.reload()
    await expect(_input(shown)).to_be_focused()
    stored = await shown.page.evaluate("JSON.stringify({...sessionStorage})")
    assert secrets["ada"] not in stored


async def test_a_revoked_key_returns_to_the_login_form_with_the_reason(
    shown: Screen, secrets: dict[str, str], keys: Keys
) -> None:
    await _log_in(shown, secrets["ada"])
    await expect(shown.rows("by_city")).to_have_count(1)
    keys("revoke", "ada")
    await expect(_input(shown)).to_be_focused()
    await expect(shown.page.get_by_role("alert")).to_contain_text("revoked")
    await expect(shown.rows("by_city")).to_have_count(0)


async def test_a_reader_sees_the_views_that_it_may_read_and_no_system(
    shown: Screen, secrets: dict[str, str]
) -> None:
    await _log_in(shown, secrets["reader"])
    await expect(shown.rows("by_city")).to_have_text(["Oslo3"])
    await expect(shown.page.get_by_role("note")).to_contain_text("admin")
    await expect(shown.page.locator(".tiers")).to_be_hidden()
    await expect(shown.page.locator(".connections")).to_be_hidden()
    await expect(shown.page.locator("article.card")).to_have_count(1)


async def test_an_administrator_closes_the_connection_of_a_client(
    browser: Browser, shown: Screen, secrets: dict[str, str]
) -> None:
    await _log_in(shown, secrets["ada"])
    async with screen(browser, shown.url) as other:
        await _log_in(other, secrets["reader"])
        await expect(other.page.locator(".pill")).to_have_text("live")
        await shown.page.locator(".connections summary").click()
        line = shown.page.locator(".connections tbody tr", has_text="reader")
        await expect(line).to_contain_text("view by_city")
        await line.get_by_role("button").click()
        await shown.page.get_by_role("button", name="Close connection").click()
        await expect(other.page.get_by_role("alert")).to_contain_text("administrator")
        await expect(other.page.locator(".pill")).to_have_text("disconnected")
        await expect(shown.page.locator(".connections tbody tr", has_text="reader")).to_have_count(
            0
        )
