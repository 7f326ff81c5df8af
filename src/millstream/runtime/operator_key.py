"""The key with which commands on this machine log in to the servers of their home."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from millstream.runtime.home import Home

_PREFIX = "mso_"


def operator_key(home: Home) -> str:
    """The home's key; the first server creates it. Only the home's owner can read the file.

    Who can read it could also create keys in the home, so it needs no protection beyond that.
    """
    path = _file(home)
    if (key := _read(path)) is None:
        home.make()
        fresh = path.with_suffix(f".{os.getpid()}.new")
        fresh.unlink(missing_ok=True)
        with open(fresh, "x", encoding="ascii", opener=_private) as file:
            file.write(_PREFIX + secrets.token_urlsafe(32))
        try:
            os.link(fresh, path)  # fails if another server was faster
        except FileExistsError:
            pass
        finally:
            fresh.unlink()
        key = _read(path)
    assert key is not None
    return key


def find_operator_key(home: Home) -> str:
    """The home's key; empty if no server with logins has run there."""
    return _read(_file(home)) or ""


def _file(home: Home) -> Path:
    return home.path / "operator.key"


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="ascii").strip() or None
    except FileNotFoundError:
        return None


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
