"""The HTTP server of the collector: rights are checked before a body is read."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from functools import partial
from pathlib import Path

from millstream.collect.http.fast_path import CollectFastPath
from millstream.collect.settings import CollectSettings
from millstream.web.access_server import AccessServer
from millstream.web.asgi import Application
from millstream.web.auth.caller import Caller

_STREAMS = "/v1/streams/"


class CollectServer(AccessServer):
    """The collector's server.

    SettingsError if the keys, the issuer's keys or the certificate cannot be read.
    """

    def __init__(
        self,
        application: Application,
        settings: CollectSettings,
        *,
        fast_path: CollectFastPath | None = None,
        streams: Iterable[str] = (),
        keys_file: Path = Path("keys.json"),
    ) -> None:
        super().__init__(
            application,
            settings,
            tier="collect",
            stop_seconds=round(settings.stop_timeout) + 1,
            keys_file=keys_file,
            authorize=partial(_check_writes, frozenset(streams)),
            fast_path=fast_path,
        )


def _check_writes(streams: Collection[str], caller: Caller, path: str) -> None:
    """Refuse a request before its body is read if the caller may not write to the stream."""
    stream = path.removeprefix(_STREAMS)
    if stream != path and stream in streams:
        caller.check("write", "stream", stream)
