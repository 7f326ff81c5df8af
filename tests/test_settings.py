"""Settings from the file, the environment and flags."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from pydantic import BaseModel

from millstream.errors import SettingsError
from millstream.settings import Settings, describe, load_settings

ROOT = Path(__file__).parent.parent


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("MILLSTREAM_"):
            monkeypatch.delenv(name)


@pytest.fixture
def pipeline(tmp_path: Path) -> Path:
    return tmp_path / "pipeline.py"


def write(pipeline: Path, text: str) -> None:
    (pipeline.parent / "millstream.toml").write_text(text, encoding="utf-8")


def test_without_anything_set_the_defaults_hold(pipeline: Path) -> None:
    assert load_settings(pipeline) == Settings()


def test_flags_replace_variables_and_variables_replace_the_file(
    pipeline: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(pipeline, "[collect]\nport = 1\nhost = '0.0.0.0'\n[serve]\nport = 1\n[log]\nport = 1")
    monkeypatch.setenv("MILLSTREAM_SERVE__PORT", "2")
    monkeypatch.setenv("MILLSTREAM_COLLECT__PORT", "2")
    settings = load_settings(pipeline, collect={"port": 3, "host": None}, serve={}, log=None)
    assert settings.log.port == 1
    assert settings.serve.port == 2
    assert (settings.collect.port, settings.collect.host) == (3, "0.0.0.0")


def test_tables_are_toml_in_the_file_and_json_in_a_variable(
    pipeline: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(pipeline, '[analyze.spark]\n"spark.a" = "1"\n')
    monkeypatch.setenv("MILLSTREAM_LOG__SECURITY", '{"sasl.mechanism": "PLAIN"}')
    settings = load_settings(pipeline)
    assert settings.analyze.spark == {"spark.a": "1"}
    assert settings.log.security == {"sasl.mechanism": "PLAIN"}


def test_without_a_pipeline_the_current_folder_s_file_is_read(
    pipeline: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(pipeline, "[serve]\nport = 7")
    monkeypatch.chdir(pipeline.parent)
    assert load_settings(None).serve.port == 7


def test_variables_that_are_no_settings_are_left_alone(
    pipeline: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("MILLSTREAM_HOME", "MILLSTREAM_CACHE", "MILLSTREAM_", "MILLSTREAMER__X"):
        monkeypatch.setenv(name, "/somewhere")
    assert load_settings(pipeline) == Settings()


@pytest.mark.parametrize(
    ("toml", "line", "says"),
    [
        (
            "[collect]\n\nprt = 1",
            3,
            "no setting 'prt' in the section 'collect'; did you mean 'port'?",
        ),
        ("[colect]\nport = 1", 2, "no section 'colect'; did you mean 'collect'?"),
        ("[colect]", 1, "no section 'colect'"),
        ("colect.port = 1", 1, "no section 'colect'"),
        ("# x\nport = 1", 2, "'port' stands in no section; write it under one of [log]"),
        ("[collect]\nbootstrap = 'x'", 2, "it is in the section 'log'"),
        ("[serve]\nhost = 'x'\nport = 'abc'", 3, "setting serve.port is 'abc': input should be"),
        ("[serve]\nport = 70000", 2, "setting serve.port is 70000: input should be less than"),
        ("serve.port = -1", 1, "setting serve.port is -1"),
        ("[log]\nport = 1\n[serve]\nport = 1.5", 4, "serve.port is 1.5"),
        ("[analyze]\nspark = 3", 2, "setting analyze.spark is 3"),
        ("[serve\nport = 1", 1, "this is not TOML"),
        ("[serve]\nport = 1\nport = 2", 3, "this is not TOML"),
    ],
)
def test_a_mistake_in_the_file_is_reported_with_its_line(
    pipeline: Path, toml: str, line: int, says: str
) -> None:
    write(pipeline, toml)
    with pytest.raises(SettingsError) as caught:
        load_settings(pipeline)
    assert str(caught.value).startswith(f"{pipeline.parent / 'millstream.toml'}:{line}: ")
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        (
            "MILLSTREAM_COLLECT__PORT",
            "abc",
            "variable MILLSTREAM_COLLECT__PORT: setting collect.port",
        ),
        ("MILLSTREAM_COLLECT__PRT", "1", "did you mean 'port'?"),
        ("MILLSTREAM_COLECT__PORT", "1", "did you mean 'collect'?"),
        ("MILLSTREAM_COLLECT_PORT", "1", "write MILLSTREAM_COLLECT__PORT (two underscores)"),
        ("MILLSTREAM_LOG__SECURITY", "x=y", "which is not JSON"),
    ],
)
def test_a_mistake_in_a_variable_names_the_variable(
    pipeline: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: str, says: str
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(SettingsError) as caught:
        load_settings(pipeline)
    assert name in str(caught.value)
    assert says in str(caught.value)


def test_a_mistake_in_a_flag_names_the_flag(pipeline: Path) -> None:
    with pytest.raises(SettingsError, match=r"flag for serve\.port: setting serve\.port is 'x'"):
        load_settings(pipeline, serve={"port": "x"})
    with pytest.raises(SettingsError, match="did you mean 'serve'"):
        load_settings(pipeline, srve={"port": 1})


@pytest.mark.parametrize(
    "toml",
    [
        "[log]\nsecurity = {'sasl.password' = 5, 'x' = 'secret'}",
        "[analyze]\nspark = {'spark.hadoop.fs.s3a.secret.key' = 'secret', 'spark.x' = 5}",
    ],
)
def test_a_password_is_not_shown(pipeline: Path, toml: str) -> None:
    write(pipeline, toml)
    with pytest.raises(SettingsError) as caught:
        load_settings(pipeline)
    assert "'secret'" not in str(caught.value)


@pytest.mark.parametrize("name", ["MILLSTREAM_LOG__SECURITY", "MILLSTREAM_ANALYZE__SPARK"])
def test_a_password_in_an_invalid_variable_is_not_shown(
    pipeline: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv(name, '{"sasl.password": "hunter2"')
    with pytest.raises(SettingsError, match=f"{name} .* not JSON: .* column 28") as caught:
        load_settings(pipeline)
    assert "hunter2" not in str(caught.value)


def test_every_setting_is_described() -> None:
    for section, info in Settings.model_fields.items():
        model = info.annotation
        assert isinstance(model, type)
        assert issubclass(model, BaseModel)
        assert model.__doc__
        for name, field in model.model_fields.items():
            assert field.description, f"{section}.{name} lacks a description"


def test_the_page_of_settings_is_up_to_date() -> None:
    page = ROOT / "docs/reference/settings.md"
    assert page.read_text(encoding="utf-8") == describe(), (
        f"{page} is stale: run python -m millstream.settings > docs/reference/settings.md"
    )
