"""A check before a server listens on a public address."""

from __future__ import annotations

import ipaddress
import logging

from millstream.errors import SettingsError
from millstream.web.settings import LOOPBACK, HttpSettings

_log = logging.getLogger(__name__)


def check_exposure(
    settings: HttpSettings, *, tier: str, has_login: bool, has_tls: bool, remedy: str = ""
) -> None:
    """SettingsError if anybody on the network could call the server; logs lesser risks.

    `remedy` says how to set up a login, if the tier has one.
    """
    if _is_loopback(settings.host):
        return
    if not has_login and not settings.insecure:
        raise SettingsError(
            f"will not {tier} on {settings.host}: others can reach it, and nobody has to log in",
            remedy=f"{remedy}listen on 127.0.0.1, or use --insecure ({tier}.insecure) if something "
            "else protects the port",
        )
    if not has_login:
        _log.warning("anybody who reaches %s may call: nobody has to log in", settings.host)
    elif not has_tls:
        _log.warning(
            "clients send keys and tokens to %s unencrypted, unless a proxy does TLS: set "
            "%s.tls_certificate and %s.tls_key",
            settings.host,
            tier,
            tier,
        )


def _is_loopback(host: str) -> bool:
    try:
        return host in LOOPBACK or ipaddress.ip_address(host).is_loopback
    except ValueError:  # a name, which may be any address
        return False
