"""A server on a public address does not start without a login, unless it is `insecure`."""

from __future__ import annotations

from typing import Any

import pytest

from millstream.collect.settings import CollectSettings
from millstream.errors import SettingsError
from millstream.serve.settings import ServeSettings

TLS = {"tls_certificate": "a", "tls_key": "b"}


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.9", "localhost", "::1"])
def test_on_this_machine_nobody_has_to_log_in(host: str, caplog: pytest.LogCaptureFixture) -> None:
    CollectSettings(host=host).check_exposure()
    assert caplog.text == ""


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "", "10.0.0.5", "collect.example", "localhost."])
def test_on_a_public_address_it_refuses_and_says_what_to_do(host: str) -> None:
    with pytest.raises(SettingsError, match="nobody has to log in") as refused:
        CollectSettings(host=host).check_exposure()
    assert all(word in str(refused.value) for word in ("collect.auth", "keys create", "--insecure"))


@pytest.mark.parametrize(
    ("given", "warning"),
    [
        ({"insecure": True}, "anybody who reaches 0.0.0.0 may call"),
        ({"auth": ["key"]}, "unencrypted"),
        ({"auth": ["key"], **TLS}, ""),
        ({"tls_client_ca": "c", **TLS}, ""),
    ],
)
def test_lesser_risks_are_logged(
    given: dict[str, Any], warning: str, caplog: pytest.LogCaptureFixture
) -> None:
    CollectSettings(host="0.0.0.0", **given).check_exposure()
    assert warning in caplog.text
    assert bool(caplog.text) == bool(warning)


def test_tls_alone_is_no_login() -> None:
    with pytest.raises(SettingsError):
        CollectSettings(host="0.0.0.0", **TLS).check_exposure()


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "", "10.0.0.5", "views.example"])
def test_a_server_of_views_refuses_too_since_it_has_no_login(host: str) -> None:
    with pytest.raises(
        SettingsError, match=r"will not serve on .* nobody has to log in"
    ) as refused:
        ServeSettings(host=host).check_exposure()
    assert "--insecure" in str(refused.value)
    assert "collect" not in str(refused.value)


def test_a_server_of_views_starts_anywhere_with_insecure(
    caplog: pytest.LogCaptureFixture,
) -> None:
    ServeSettings().check_exposure()
    assert caplog.text == ""
    ServeSettings(host="0.0.0.0", insecure=True).check_exposure()
    assert "anybody who reaches 0.0.0.0" in caplog.text
