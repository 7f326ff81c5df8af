"""An event that cannot be read or checked because of a bug is rejected; all others go on."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
from tests.collect.conftest import click, collect, headers, problem, shop

from millstream.collect.formats.body import Unpacker
from millstream.log.settings import LogSettings
from millstream.schema.validate import Validator

POISON = b'{"id":1,"name":"poison","at":1}'


@pytest.mark.parametrize(("broken", "method"), [(Validator, "check"), (Unpacker, "unpack")])
async def test_an_event_that_causes_an_internal_error_stops_nothing(
    app_name: str,
    log_settings: LogSettings,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    broken: type,
    method: str,
) -> None:
    works = getattr(broken, method)

    def fail_on_poison(self: object, data: bytes, *more: Any) -> Any:
        if data == POISON:
            raise OverflowError("cannot convert float infinity to integer")
        return works(self, data, *more)

    monkeypatch.setattr(broken, method, fail_on_poison)
    async with collect(shop(app_name), log_settings, tmp_path) as collector:
        with caplog.at_level(logging.ERROR):
            content = problem(await collector.post("clicks", POISON), 422)
        assert "OverflowError" in str(content["detail"])
        assert (await collector.post("clicks", click(2))).status_code == 200
        assert [r.key for r in await collector.logged("clicks")] == [b"2"]
        [record] = await collector.rejected("clicks")
    assert record.value == POISON
    assert headers(record)["reason"] == content["detail"]
    assert "cannot convert float infinity" in caplog.text, "the log has the cause"
