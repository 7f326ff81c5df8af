"""All settings: `millstream.toml` beside the pipeline, then MILLSTREAM_SECTION__FIELD, then flags.

`python -m millstream.settings` prints docs/reference/settings.md.
"""

from __future__ import annotations

import json
import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_origin

from pydantic import BaseModel, ConfigDict, ValidationError

from millstream.analyze.settings import AnalyzeSettings
from millstream.collect.journal.settings import JournalSettings
from millstream.collect.settings import CollectSettings
from millstream.errors import SettingsError
from millstream.log.settings import LogSettings
from millstream.runtime.output import OutputSettings
from millstream.serve.settings import ServeSettings
from millstream.syntax.names import suggest

FILE = "millstream.toml"
_PREFIX = "MILLSTREAM_"


class Settings(BaseModel):
    """The settings of all sections."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    log: LogSettings = LogSettings()
    collect: CollectSettings = CollectSettings()
    journal: JournalSettings = JournalSettings()
    analyze: AnalyzeSettings = AnalyzeSettings()
    serve: ServeSettings = ServeSettings()
    output: OutputSettings = OutputSettings()


@dataclass(frozen=True, slots=True)
class _Given:
    """One value that a user has set, and where."""

    section: str
    field: str
    value: Any
    where: str  # the file and line, the variable or the flag, for errors


def load_settings(pipeline: Path | None, **flags: Mapping[str, Any] | None) -> Settings:
    """The settings for a pipeline; SettingsError names where a wrong value was set.

    A flag that is None was not given. Without a pipeline, the file in the current folder is read.
    """
    folder = pipeline.parent if pipeline is not None else Path()
    winners: dict[tuple[str, str], _Given] = {}
    for given in (*_from_file(folder / FILE), *_from_environment(), *_from_flags(flags)):
        _check_known(given)
        winners[given.section, given.field] = given
    values: dict[str, dict[str, Any]] = {}
    for given in winners.values():
        values.setdefault(given.section, {})[given.field] = given.value
    try:
        return Settings.model_validate(values)
    except ValidationError as error:
        raise _invalid(error, winners) from None


def _from_file(file: Path) -> Iterator[_Given]:
    try:
        text = file.read_text(encoding="utf-8")
    except FileNotFoundError:
        return
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"{file} cannot be read: {error}") from None
    try:
        sections = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        why, _, at = str(error).rpartition(" (at ")
        found = re.match(r"line (\d+)", at)  # else "end of document"
        line = found[1] if found else len(text.splitlines())
        raise SettingsError(
            f"{file}:{line}: this is not TOML: {why}", remedy="correct it"
        ) from None
    for section, fields in sections.items():
        if not isinstance(fields, dict):
            raise SettingsError(
                f"{file}:{_line(text, '', section)}: {section!r} stands in no section",
                remedy=f"write it under one of {', '.join(f'[{each}]' for each in _sections())}",
            )
        if not fields:
            _check_section(section, f"{file}:{_line(text, section, '')}")
        for field, value in fields.items():
            yield _Given(section, field, value, f"{file}:{_line(text, section, field)}")


def _line(text: str, section: str, field: str) -> int:
    """The line of a field of a section, or else the section's line."""
    current, header = "", 1
    for number, line in enumerate(text.splitlines(), 1):
        if found := re.match(r"\s*\[\s*\"?([\w.-]+)\"?\s*\]", line):
            current = found[1]
            if current.partition(".")[0] == section:
                header = number
                if current == f"{section}.{field}":
                    return number
        elif found := re.match(r"\s*([\w.\"'-]+)\s*=", line):
            path = ".".join(filter(None, (current, found[1].replace('"', "").replace("'", ""))))
            wanted = ".".join(filter(None, (section, field)))
            if path == wanted or path.startswith(f"{wanted}."):
                return number
    return header


def _from_environment() -> Iterator[_Given]:
    for name, text in sorted(os.environ.items()):
        if not name.startswith(_PREFIX):
            continue
        section, separator, field = name.removeprefix(_PREFIX).lower().partition("__")
        if separator:
            yield _Given(section, field, _from_text(section, field, text, name), f"variable {name}")
        else:
            # Other variables (MILLSTREAM_HOME) are no settings; but report a missing underscore.
            for each, model in _sections().items():
                if section.removeprefix(f"{each}_") in model.model_fields and each in section:
                    field = section.removeprefix(f"{each}_")
                    raise SettingsError(
                        f"variable {name} is not read",
                        remedy=f"write {_PREFIX}{each.upper()}__{field.upper()} (two underscores)",
                    )


def _from_text(section: str, field: str, text: str, name: str) -> Any:
    model = _sections().get(section)
    info = model.model_fields.get(field) if model else None
    if info is None or get_origin(info.annotation) not in (dict, list, tuple):
        return text
    try:
        return json.loads(text)
    except ValueError as error:
        # The text is not quoted: it may hold a password.
        raise SettingsError(
            f"variable {name} has a value which is not JSON: {error}",
            remedy='write it as JSON, as in {"name": "value"}',
        ) from None


def _from_flags(flags: Mapping[str, Mapping[str, Any] | None]) -> Iterator[_Given]:
    for section, fields in flags.items():
        for field, value in (fields or {}).items():
            if value is not None:
                yield _Given(section, field, value, f"flag for {section}.{field}")


def _sections() -> dict[str, type[BaseModel]]:
    return {
        name: info.annotation
        for name, info in Settings.model_fields.items()
        if isinstance(info.annotation, type) and issubclass(info.annotation, BaseModel)
    }


def _check_section(section: str, where: str) -> None:
    if section not in _sections():
        raise SettingsError(
            f"{where}: there is no section {section!r}", remedy=suggest(section, _sections())
        )


def _check_known(given: _Given) -> None:
    _check_section(given.section, given.where)
    fields = _sections()[given.section].model_fields
    if given.field not in fields:
        remedy = suggest(given.field, fields)
        for section, model in _sections().items():
            if section != given.section and given.field in model.model_fields:
                remedy = f"it is in the section {section!r}"
        raise SettingsError(
            f"{given.where}: there is no setting {given.field!r} in the section {given.section!r}",
            remedy=remedy,
        )


def _invalid(error: ValidationError, winners: Mapping[tuple[str, str], _Given]) -> SettingsError:
    detail = error.errors()[0]
    section, field = [*(str(part) for part in detail["loc"]), "", ""][:2]
    given = winners.get((section, field))
    why = detail["msg"].removeprefix("Value error, ")
    why = f"{why[:1].lower()}{why[1:]}"
    if given is None:
        return SettingsError(f"the settings of {section!r} do not fit together: {why}")
    info = _sections()[section].model_fields[field]
    return SettingsError(
        f"{given.where}: setting {section}.{field} is {_hidden(field, given.value)}: {why}",
        remedy=f"it is: {info.description}",
    )


def _hidden(field: str, value: Any) -> str:
    """The value, unless it may hold a password."""
    secret = field in ("security", "jwt_jwks") or isinstance(value, dict)
    return "as it is" if secret else repr(value)


def _cell(text: str | None) -> str:
    return (text or "").replace("|", "\\|")


def describe() -> str:
    """docs/reference/settings.md: every setting with its type, default and meaning."""
    lines = [
        "# Settings",
        "",
        "<!-- Written by `python -m millstream.settings`; change the descriptions there. -->",
        "",
        "Look up here every setting: its type, its default and its meaning.",
        "",
        f"Settings are read from `{FILE}` beside the pipeline, then from the environment, then",
        "from the command's flags. A later value replaces an earlier one of the same setting. In",
        "the file, write `field = value` under `[section]`. In the environment, the name is",
        "`MILLSTREAM_SECTION__FIELD`; tables and lists are JSON. An unknown name is an error that",
        "suggests the closest one.",
        "",
        "```toml",
        "[collect]",
        "port = 8401",
        "```",
        "",
        "Some variables are not settings: `MILLSTREAM_HOME` is the default of `--home`,",
        "`MILLSTREAM_CACHE` is the folder of downloaded jars and class archives. Senders read",
        "their key from `MILLSTREAM_KEY` or `MILLSTREAM_KEY_FILE`, and the certificate authority",
        "of the collector from `MILLSTREAM_CA`.",
    ]
    for section, model in _sections().items():
        lines += ["", f"## {section}", "", f"{(model.__doc__ or '').strip()}", ""]
        lines += ["| setting | type | default | meaning |", "|---|---|---|---|"]
        for name, info in model.model_fields.items():
            default = info.get_default(call_default_factory=True)
            kind = re.sub(r"<class '(.*)'>", r"\1", str(info.annotation))
            cells = [f"`{name}`", kind, f"`{json.dumps(default, default=str)}`", info.description]
            lines.append(f"| {' | '.join(map(_cell, cells))} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(describe(), end="")
