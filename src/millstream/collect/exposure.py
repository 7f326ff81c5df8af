"""Whether a collector may be started where others can reach it."""

from __future__ import annotations

import ipaddress
import logging

from millstream.collect.protection_settings import LOOPBACK
from millstream.collect.settings import CollectSettings
from millstream.errors import SettingsError

_logger = logging.getLogger(__name__)


def check_exposure(settings: CollectSettings) -> None:
    """SettingsError if anybody on the network could send; what is merely risky is logged."""
    if _is_loopback(settings.host):
        return
    protected = settings.auth or settings.tls_client_ca
    if not protected and not settings.insecure:
        raise SettingsError(
            f"will not collect on {settings.host}: others can reach it, and nobody has to log in",
            remedy="set collect.auth (for key, `millstream keys create` makes one), or listen "
            "on 127.0.0.1, or say --insecure if something else guards the port",
        )
    if not protected:
        _logger.warning("anybody who reaches %s may send: nobody has to log in", settings.host)
    elif not settings.tls_certificate:
        _logger.warning(
            "keys and tokens come to %s unencrypted, unless a proxy does TLS: set "
            "collect.tls_certificate and collect.tls_key",
            settings.host,
        )


def _is_loopback(host: str) -> bool:
    try:
        return host in LOOPBACK or ipaddress.ip_address(host).is_loopback
    except ValueError:  # a name, which may mean any address
        return False
