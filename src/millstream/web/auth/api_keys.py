"""API keys, stored as hashes in a file; a running server reads the file when it changes."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import hmac
import os
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from millstream.errors import MillstreamError, SettingsError
from millstream.web.auth.rights import Action, words_of

PREFIX = "msk_"  # for people, and for programs that search files for secrets

Claim = str | bool | int | float

_Time = Annotated[datetime, msgspec.Meta(tz=True)]


class ApiKey(msgspec.Struct, frozen=True, omit_defaults=True):
    """The data of a key, without the key itself."""

    name: str
    sha256: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]
    write: list[str]  # patterns of streams
    created: _Time
    expires: _Time | None = None
    rate: Annotated[float, msgspec.Meta(gt=0)] | None = None  # events a second
    read: list[str] = []  # patterns of streams, views, ledgers and named queries
    query: list[str] = []  # patterns of views that its own SQL may read
    admin: bool = False
    claims: dict[str, Claim] = {}  # for row policies

    @property
    def words(self) -> tuple[str, ...]:
        """What the key may do, as `Rights` reads it."""
        patterns: dict[Action, list[str]] = {
            "write": self.write,
            "read": self.read,
            "query": self.query,
        }
        return words_of(patterns, admin=self.admin)

    def expired(self, now: float) -> bool:
        return self.expires is not None and self.expires.timestamp() <= now


class _Content(msgspec.Struct):
    version: Literal[1] = 1
    keys: list[ApiKey] = []


def digest(key: bytes) -> bytes:
    """The hash that is stored instead of a key.

    SHA-256 is enough. Passwords need a slow hash, because people choose guessable ones; a key is
    256 random bits. And each request computes the hash.
    """
    return hashlib.sha256(key).digest()


class ApiKeyFile:
    """The file of keys. Each change replaces the whole file, so that readers never see a part."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self) -> list[ApiKey]:
        """All keys; none if there is no file. SettingsError if it cannot be read."""
        try:
            return msgspec.json.decode(self._path.read_bytes(), type=_Content).keys
        except FileNotFoundError:
            return []
        except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
            raise SettingsError(
                f"cannot read the keys in {self._path}: {_reason(error)}",
                remedy="correct it, or remove it and create new keys: `millstream keys create`",
            ) from None

    def create(
        self,
        name: str,
        write: Sequence[str] = (),
        *,
        read: Sequence[str] = (),
        query: Sequence[str] = (),
        admin: bool = False,
        claims: Mapping[str, Claim] | None = None,
        expires: datetime | None = None,
        rate: float | None = None,
    ) -> str:
        """Create a key and return it; it cannot be shown again."""
        key = PREFIX + secrets.token_urlsafe(32)
        stored = ApiKey(
            name,
            digest(key.encode()).hex(),
            list(write),
            datetime.now(UTC),
            expires,
            rate,
            list(read),
            list(query),
            admin,
            dict(claims or {}),
        )
        with self._changing() as keys:
            if any(each.name == name for each in keys):
                raise MillstreamError(
                    f"there is a key {name!r} already", remedy="revoke it, or choose another name"
                )
            keys.append(stored)
        return key

    def revoke(self, name: str) -> None:
        """Remove a key; running servers refuse it within about a second."""
        with self._changing() as keys:
            left = [key for key in keys if key.name != name]
            if len(left) == len(keys):
                raise MillstreamError(
                    f"there is no key {name!r} in {self._path}", remedy="`millstream keys list`"
                )
            keys[:] = left

    @contextlib.contextmanager
    def _changing(self) -> Iterator[list[ApiKey]]:
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with open(self._path.with_suffix(".lock"), "a", encoding="utf-8") as guard:
                fcntl.flock(guard, fcntl.LOCK_EX)
                keys = self.read()
                yield keys
                self._replace(msgspec.json.encode(_Content(keys=keys)))
        except OSError as error:
            raise MillstreamError(
                f"cannot change the keys in {self._path}: {_reason(error)}; they are as before",
                remedy="run this as the user whose server reads them, or choose another --home",
            ) from None

    def _replace(self, content: bytes) -> None:
        path = self._path.resolve()  # a link stays a link
        fresh = path.with_suffix(".new")
        fresh.unlink(missing_ok=True)
        descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(descriptor, "wb") as file:
            file.write(msgspec.json.format(content, indent=2) + b"\n")
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(path)
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)  # else a revoked key could be back after a crash
        finally:
            os.close(folder)


class ApiKeys:
    """The keys of a file by their hashes, for checking requests."""

    def __init__(self, path: Path) -> None:
        self._file = ApiKeyFile(path)
        self._path = path
        self.version = 0  # grows when the file is read again: keys found before may be revoked
        self._seen = self._state()
        self._keys = self._read()

    def find(self, hashed: bytes) -> ApiKey | None:
        """The key of this hash, if there is one that has not expired."""
        key = self._keys.get(hashed)
        # The dictionary's comparison leaks timing, but only of hashes that the caller computed.
        if key is None or not hmac.compare_digest(bytes.fromhex(key.sha256), hashed):
            return None
        return None if key.expired(time.time()) else key

    def reload(self) -> bool:
        """Read the file again if it has changed; SettingsError leaves the keys as they were."""
        state = self._state()
        if state == self._seen:
            return False
        self._seen = state
        self._keys = self._read()
        self.version += 1
        return True

    def __len__(self) -> int:
        return len(self._keys)

    def _read(self) -> dict[bytes, ApiKey]:
        return {bytes.fromhex(key.sha256): key for key in self._file.read()}

    def _state(self) -> tuple[int, ...] | None:
        # Secret stores replace a link instead of the file, so this is the state of its target.
        try:
            status = self._path.stat()
        except OSError:
            return None
        return status.st_dev, status.st_ino, status.st_mtime_ns, status.st_ctime_ns, status.st_size


def _reason(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else "") or str(error)
