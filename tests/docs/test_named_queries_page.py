"""docs/guides/named_queries.md: its pipelines declare the same queries, and its examples run."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

from tests.docs.pages import read, snippets
from tests.docs.test_api_page import Place, pattern, run_console
from tests.serve.pipeline import SECONDS, Pipeline
from tests.wait_until import until
from websockets.asyncio.client import connect

from millstream import App
from millstream.log.settings import LogSettings
from millstream.pipeline.load import load
from millstream.values.view_description import ViewColumn

PAGE = read("docs/guides/named_queries.md")
IN_PYTHON, IN_SQL = (code for _, code in snippets(PAGE)[:2])
COLUMNS = [ViewColumn("product", "string"), ViewColumn("views", "bigint")]


def declared(folder: Path, kind: str, code: str, name: str = "shop") -> App:
    path = folder / f"pipeline.{kind}"
    path.write_text(code.replace('App("shop")', f'App("{name}")'), encoding="utf-8")
    return load(path)


def test_the_queries_in_sql_are_those_in_python(tmp_path: Path) -> None:
    one, other = declared(tmp_path, "py", IN_PYTHON), declared(tmp_path, "sql", IN_SQL)
    assert list(one.queries) == list(other.queries)
    for query, twin in zip(one.queries.values(), other.queries.values(), strict=True):
        assert (query.parameters, query.key, query.views, query.description) == (
            *(twin.parameters, twin.key, twin.views, twin.description),
        )
        assert query.sql.split() == twin.sql.split()


async def test_the_examples_give_what_the_page_shows(
    log_settings: LogSettings, app_name: str, tmp_path: Path
) -> None:
    app = declared(tmp_path, "py", IN_PYTHON, app_name)
    pipeline = Pipeline(app_name, log_settings, app)
    pipeline.describe("viewed", ["product"], COLUMNS)
    view(pipeline, lamp=30, chair=20, cup=5)
    async with pipeline.server() as server:
        await until(lambda: server.context.queries.served["top_products"].columns)
        (console,) = re.findall(r"```console\n(.*?)```", PAGE, re.DOTALL)
        await run_console(Place(pipeline, server.url, server.url), console)
        (messages,) = re.findall(r"```text\n(.*?)```", PAGE, re.DOTALL)
        request, snapshot, *changes = (line[2:] for line in messages.splitlines())
        async with connect(server.url.replace("http", "ws") + "/v1/connect") as connection:

            async def gets(expected: str) -> None:
                received = str(await asyncio.wait_for(connection.recv(), SECONDS))
                assert pattern(expected).fullmatch(received), received

            await connection.send(request)
            await gets(snapshot)
            view(pipeline, desk=40)
            for change in changes:
                await gets(change)


def view(pipeline: Pipeline, **products: int) -> None:
    """The products have been viewed that many times."""
    for product, views in products.items():
        pipeline.put("viewed", [product], {"product": product, "views": views}, views)
    pipeline.flush()


def test_every_setting_that_the_page_names_exists() -> None:
    settings = read("docs/reference/settings.md")
    for name in re.findall(r"`serve\.(\w+)`", PAGE):
        assert f"`{name}`" in settings
