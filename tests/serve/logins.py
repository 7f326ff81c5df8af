"""Keys, tokens and certificates for servers of the tests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.web.auth.token_issuer import AUDIENCE, ISSUER, jwk, jwks, private_key

from millstream.web.auth.api_keys import ApiKeyFile


class Keys:
    """A file of API keys, and settings of a server that requires one of them."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "keys.json"
        self.file = ApiKeyFile(self.path)
        self.settings: dict[str, Any] = {"auth": ["key"], "keys_file": str(self.path)}

    def create(self, name: str, **rights: Any) -> dict[str, str]:
        """The header of a new key with these rights."""
        return bearer(self.file.create(name, **rights))

    def change(self, name: str, **fields: Any) -> None:
        """Change stored fields of a key, as an editor would."""
        content = json.loads(self.path.read_text())
        for key in content["keys"]:
            if key["name"] == name:
                key.update(fields)
        fresh = self.path.with_suffix(".edited")
        fresh.write_text(json.dumps(content))
        fresh.replace(self.path)


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def jwt_settings(folder: Path, **more: Any) -> dict[str, Any]:
    """Settings of a server that accepts tokens of the tests' issuer."""
    file = folder / "jwks.json"
    file.write_bytes(jwks(jwk(private_key("ES256"), "ES256")))
    return {
        "auth": ["jwt"],
        "jwt_jwks": str(file),
        "jwt_issuer": ISSUER,
        "jwt_audience": AUDIENCE,
        "jwt_leeway": 0.0,
        **more,
    }
