"""The journal folder's lock, and the identity of the collector that owns it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
from dataclasses import dataclass
from pathlib import Path

import google_crc32c
import msgspec

from millstream.errors import HomeInUse

_SLOT = 256  # bytes: less than a sector, which a disk writes atomically


class Lock:
    """Locks a folder for this process until `release` or the end of the process."""

    def __init__(self, folder: Path) -> None:
        self._file = open(folder / "lock", "a+", encoding="utf-8")  # noqa: SIM115
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._file.seek(0)
            holder = self._file.read().strip() or "unknown"
            self._file.close()
            raise HomeInUse(
                f"cannot open the journal in {folder}: process {holder} has it open",
                remedy=f"stop that collector (kill {holder}), or give another --home",
            ) from None
        self._file.truncate(0)
        with contextlib.suppress(OSError):  # the disk is full: the lock is held all the same
            os.write(self._file.fileno(), b"%d" % os.getpid())

    def release(self) -> None:
        self._file.close()


class Identity(msgspec.Struct, frozen=True):
    """Facts that must survive even if every segment is deleted."""

    identity: str
    start: int = 0  # how often the folder was opened
    reserved: int = 0  # no larger sequence number was ever used
    newest: int = 0  # the number of the last segment
    # Of that segment, after a clean close: then a damaged end is no torn write.
    closed_bytes: int = 0
    closed_last: int = 0  # the last durable sequence

    @classmethod
    def new(cls) -> Identity:
        return cls(secrets.token_hex(4))


@dataclass(slots=True)
class IdentityFile:
    """Two copies, written in turn and in place: one is always complete, even on a full disk."""

    path: Path
    _turn: int = 0

    def read(self) -> Identity | None:
        """The newer of the valid copies; None if there is none."""
        try:
            data = self.path.read_bytes()
        except FileNotFoundError:
            return None
        copies = [_decode(data[at : at + _SLOT]) for at in (0, _SLOT)]
        valid = [copy for copy in copies if copy is not None]
        if not valid:
            return None
        newest = max(valid, key=_age)
        self._turn = 1 - copies.index(newest)
        return newest

    def write(self, identity: Identity) -> None:
        """Overwrite the older copy; durable when it returns."""
        line = msgspec.json.encode(identity)
        slot = b"%s %08x" % (line, google_crc32c.value(line))
        descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            if os.fstat(descriptor).st_size < 2 * _SLOT:
                os.pwrite(descriptor, (b" " * (_SLOT - 1) + b"\n") * 2, 0)
            os.pwrite(descriptor, slot.ljust(_SLOT - 1) + b"\n", self._turn * _SLOT)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        self._turn = 1 - self._turn


def _age(copy: Identity) -> tuple[int, int, int]:
    return copy.start, copy.reserved, copy.closed_bytes


def _decode(slot: bytes) -> Identity | None:
    line, _, crc = slot.strip().rpartition(b" ")
    if crc != b"%08x" % google_crc32c.value(line):
        return None
    try:
        return msgspec.json.decode(line, type=Identity)
    except msgspec.MsgspecError:
        return None
