"""A collector that others can reach does not start without a login, unless it is said twice."""

from __future__ import annotations

from typing import Any

import pytest

from millstream.collect.exposure import check_exposure
from millstream.collect.settings import CollectSettings
from millstream.errors import SettingsError

TLS = {"tls_certificate": "a", "tls_key": "b"}


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.9", "localhost", "::1"])
def test_on_this_machine_nobody_has_to_log_in(host: str, caplog: pytest.LogCaptureFixture) -> None:
    check_exposure(CollectSettings(host=host))
    assert caplog.text == ""


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "", "10.0.0.5", "collect.example", "localhost."])
def test_elsewhere_it_refuses_and_says_what_to_do(host: str) -> None:
    with pytest.raises(SettingsError, match="nobody has to log in") as refused:
        check_exposure(CollectSettings(host=host))
    assert all(word in str(refused.value) for word in ("collect.auth", "keys create", "--insecure"))


@pytest.mark.parametrize(
    ("given", "warning"),
    [
        ({"insecure": True}, "anybody who reaches 0.0.0.0 may send"),
        ({"auth": ["key"]}, "unencrypted"),
        ({"auth": ["key"], **TLS}, ""),
        ({"tls_client_ca": "c", **TLS}, ""),
    ],
)
def test_what_is_merely_risky_is_logged(
    given: dict[str, Any], warning: str, caplog: pytest.LogCaptureFixture
) -> None:
    check_exposure(CollectSettings(host="0.0.0.0", **given))
    assert warning in caplog.text
    assert bool(caplog.text) == bool(warning)


def test_tls_alone_is_no_login() -> None:
    with pytest.raises(SettingsError):
        check_exposure(CollectSettings(host="0.0.0.0", **TLS))
