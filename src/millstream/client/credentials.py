"""A sender's key, and the authorities that it trusts.

Neither is ever part of a message: an error may name the file, but not its content.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from millstream.errors import SettingsError


@dataclass(frozen=True, slots=True)
class Credentials:
    """`key` is an API key or a token; `ca` a file (PEM) of authorities to trust."""

    key: str = field(default="", repr=False)
    ca: str = ""

    def options(self) -> dict[str, Any]:
        """Arguments for an httpx client; SettingsError if they cannot be used."""
        options: dict[str, Any] = {"trust_env": False}
        if self.key:
            if not (self.key.isascii() and self.key.isprintable() and " " not in self.key):
                raise SettingsError(
                    "the key is not one line of printable characters",
                    remedy="give it as `millstream keys create` printed it",
                )
            options["headers"] = {"authorization": f"Bearer {self.key}"}
        if self.ca:
            options["verify"] = ssl_context(self.ca)
        return options


def ssl_context(ca: str) -> ssl.SSLContext:
    """A context that trusts the authorities in a file, or the usual ones if it is empty."""
    try:
        return ssl.create_default_context(cafile=ca or None)
    except OSError as error:
        raise SettingsError(
            f"cannot use the certificates in {ca}: {error.strerror or 'not PEM'}",
            remedy="give a file of certificates in PEM",
        ) from None


def read_key(file: Path) -> str:
    """Read a key from a file."""
    try:
        return file.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not text"
        raise SettingsError(
            f"cannot read the key in {file}: {why}", remedy="give a file with nothing but the key"
        ) from None
