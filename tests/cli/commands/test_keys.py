"""`millstream keys`: a key is shown once, and nothing that is printed later opens anything."""

from __future__ import annotations

import json
import re
import stat
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from millstream.web.auth.api_keys import ApiKeys, digest

if TYPE_CHECKING:
    from tests.cli.conftest import Run

FILE = Path(".millstream/keys.json")


def test_the_key_alone_is_on_stdout_and_never_again(run: Run) -> None:
    made = run("keys", "create", "shop", "--write", "orders", "--write", "clicks_*")
    assert made.code == 0
    assert re.fullmatch(r"msk_[\w-]{43}\n", made.out)
    assert "shop may write to orders, clicks_*." in made.err
    found = ApiKeys(FILE).find(digest(made.out.strip().encode()))
    assert found is not None
    assert found.write == ["orders", "clicks_*"]
    assert stat.S_IMODE(FILE.stat().st_mode) == 0o600
    assert stat.S_IMODE(FILE.parent.stat().st_mode) == 0o700
    listed = run("keys", "list").out + run("keys", "list", "--json").out
    assert "shop  may write to orders, clicks_* · until revoked" in listed
    assert not any(secret in listed for secret in (made.out.strip(), found.sha256))


def test_json_tells_all_of_a_key(run: Run) -> None:
    made = json.loads(
        run("keys", "create", "a", "--json", "--expires", "90 days", "--rate", "5").out
    )
    assert made.pop("key").startswith("msk_")
    assert run("keys", "list", "--json").out == json.dumps([made]) + "\n"
    assert (made["write"], made["expired"], made["rate"]) == ([], False, 5.0)
    assert "a  may do nothing · until 20" in run("keys", "list").out


def test_a_revoked_key_is_gone(run: Run) -> None:
    assert "there are no keys" in run("keys", "list").out
    run("keys", "create", "a")
    assert run("keys", "revoke", "a").out == "revoked a\n"
    assert json.loads(run("keys", "list", "--json").out) == []
    assert len(ApiKeys(FILE)) == 0


def test_the_settings_may_name_another_file(run: Run, tmp_path: Path) -> None:
    (tmp_path / "millstream.toml").write_text('[collect]\nkeys_file = "there.json"')
    assert run("keys", "create", "a").code == 0
    assert len(ApiKeys(tmp_path / "there.json")) == 1
    run("keys", "create", "b", "--set", "collect.keys_file=other.json")
    assert len(ApiKeys(tmp_path / "other.json")) == 1


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["create", "a b"], "cannot be called 'a b'"),
        (["create", "x", "--write", "Orders"], "fits no stream's name"),
        (["create", "x", "--expires", "soon"], "neither a duration nor a time"),
        (["create", "x", "--expires", "2020-01-01"], "is in the past"),
        (["create", "x", "--expires", "99999999 weeks"], "neither a duration nor a time"),
        (["revoke", "x"], "there is no key 'x'"),
        (["create", "x", "--home", "/proc/nowhere"], "cannot change the keys in /proc/nowhere"),
    ],
)
def test_mistakes_are_explained_and_change_nothing(run: Run, words: list[str], says: str) -> None:
    outcome = run("keys", *words)
    assert outcome.code == 1
    assert says in outcome.err
    assert outcome.out == ""
    assert not FILE.exists() or len(ApiKeys(FILE)) == 0


@pytest.mark.parametrize(
    ("command", "tier"),
    [("collect", "collect"), ("run", "collect"), ("serve", "serve"), ("run", "serve")],
)
def test_a_public_address_without_logins_does_not_start(
    run: Run, pipeline: Path, command: str, tier: str
) -> None:
    given = ["--set", f"{tier}.host=0.0.0.0", "--set", "log.bootstrap=127.0.0.1:1"]
    outcome = run(command, str(pipeline), *given)
    assert outcome.code == 1
    assert f"will not {tier} on 0.0.0.0" in outcome.err
    assert "--insecure" in outcome.err
    assert "--insecure" in run(command, "--help").out


def test_the_remedy_for_a_damaged_file_works(run: Run, tmp_path: Path) -> None:
    file = tmp_path / ".millstream" / "keys.json"
    file.parent.mkdir()
    file.write_bytes(b'{"keys": "\xff"')
    outcome = run("keys", "create", "shop", "--write", "orders")
    assert outcome.code == 1
    assert "or remove it and create new keys" in outcome.err
    file.unlink()
    assert run("keys", "create", "shop", "--write", "orders").code == 0
