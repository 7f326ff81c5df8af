"""Options that several commands share, and functions that read them."""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from millstream.errors import LogError, MachineError, MillstreamError, SettingsError
from millstream.values.clock import to_ms

if TYPE_CHECKING:
    from millstream.client.credentials import Credentials
    from millstream.log.settings import LogSettings
    from millstream.pipeline.app import App
    from millstream.runtime.home import Home
    from millstream.settings import Settings

F = TypeVar("F", bound=Callable[..., Any])

_KEY_VARIABLE = "MILLSTREAM_KEY"

PORTS = {"kafka_port": "log", "collect_port": "collect", "serve_port": "serve"}


def home_option(function: F) -> F:
    return click.option(
        "--home",
        type=click.Path(file_okay=False, path_type=Path),
        default=".millstream",
        envvar="MILLSTREAM_HOME",
        show_default=True,
        show_envvar=True,
        help="The folder with the system's state.",
    )(function)


def set_option(function: F) -> F:
    return click.option(
        "--set",
        "assignments",
        multiple=True,
        metavar="SECTION.FIELD=VALUE",
        help="Override a setting, as in --set analyze.checkpoint_interval='1 minute'.",
    )(function)


def accept_schema_change_option(function: F) -> F:
    return click.option(
        "--accept-schema-change",
        "accept_schema_change",
        is_flag=True,
        help="Start even if events in the log do not fit a stream's changed schema.",
    )(function)


def insecure_option(function: F) -> F:
    return click.option(
        "--insecure",
        is_flag=True,
        help="Listen on a public address without authentication.",
    )(function)


def with_flag_settings(
    assignments: tuple[str, ...], *, accept_schema_change: bool = False, insecure: bool = False
) -> tuple[str, ...]:
    """The assignments, and the settings of the flags: `run` passes them to the tiers."""
    flags = {
        "collect.accept_schema_change=true": accept_schema_change,
        "collect.insecure=true": insecure,
        "serve.insecure=true": insecure,
    }
    return (*assignments, *(text for text, is_given in flags.items() if is_given))


def port_option(tier: str) -> Callable[[F], F]:
    return click.option(
        f"--{tier}-port",
        type=click.IntRange(0, 65535),
        default=None,
        help=f"The port of {tier}; 0: any free one.",
    )


def pipeline_argument(required: bool = True) -> Callable[[F], F]:
    # The loader checks that the file exists: its message is better than click's.
    return click.argument(
        "pipeline",
        type=click.Path(path_type=Path),
        required=required,
        metavar="PIPELINE" if required else "[PIPELINE]",
    )


def url_option(function: F) -> F:
    return click.option(
        "--url", default="", help="The server's address; default: the one that runs in --home."
    )(function)


def access_options(function: F) -> F:
    """Options for a server that requires authentication; no secret is an argument."""
    key_file = click.option(
        "--key-file",
        type=click.Path(path_type=Path),
        default=None,
        envvar="MILLSTREAM_KEY_FILE",
        show_envvar=True,
        help="A file with the API key or token to use; default: the variable "
        f"{_KEY_VARIABLE}, if it is set.",
    )
    return key_file(ca_option(function))


def ca_option(function: F) -> F:
    return click.option(
        "--ca",
        default="",
        metavar="FILE",
        envvar="MILLSTREAM_CA",
        show_envvar=True,
        help="CA certificates (PEM) to verify the server with; default: the system's.",
    )(function)


def access_of(key_file: Path | None, ca: str) -> Credentials:
    from millstream.client.credentials import Credentials, read_key

    key = read_key(key_file) if key_file is not None else os.environ.get(_KEY_VARIABLE, "").strip()
    return Credentials(key, ca)


def serve_access(
    url: str, home: Path, key_file: Path | None, ca: str, option: str = "--url"
) -> tuple[str, Credentials]:
    """The address of a server, and what to log in with.

    The server that runs in the home gets the home's operator key, and no other server does.
    """
    given = access_of(key_file, ca)
    if url:
        return url_of("serve", url, home, option), given
    address = url_of("serve", "", home, option)
    own = home_access(open_home(home))
    return address, replace(
        given, key=given.key or own.key, certificate="" if ca else own.certificate
    )


def home_access(home: Home) -> Credentials:
    """What to log in with to the server that runs in this home."""
    from millstream.client.credentials import Credentials
    from millstream.runtime.operator_key import find_operator_key

    entry = home.running().get("serve") or {}
    return Credentials(find_operator_key(home), certificate=str(entry.get("certificate", "")))


def json_option(function: F) -> F:
    return click.option("--json", "as_json", is_flag=True, help="Print JSON.")(function)


def parameter_option(function: F) -> F:
    return click.option(
        "-p",
        "--param",
        "parameters",
        multiple=True,
        metavar="NAME=VALUE",
        help="A parameter of the named query.",
    )(function)


def read_parameters(given: tuple[str, ...]) -> dict[str, str]:
    """The parameters of a named query; click.UsageError if one has no value."""
    pairs = [text.partition("=") for text in given]
    for name, equals, _ in pairs:
        if not equals or not name:
            raise click.UsageError(f"-p {name} has no value: write -p name=value")
    return {name: value for name, _, value in pairs}


@dataclass(frozen=True, slots=True)
class Flags:
    """Settings given on the command line."""

    assignments: tuple[str, ...] = ()
    kafka_port: int | None = None
    collect_port: int | None = None
    serve_port: int | None = None

    def sections(self) -> dict[str, dict[str, Any]]:
        """The flags as nested settings."""
        sections: dict[str, dict[str, Any]] = {}
        for text in self.assignments:
            _assign(sections, text)
        for name, section in PORTS.items():
            if (port := getattr(self, name)) is not None:
                sections.setdefault(section, {})["port"] = port
        return sections

    def arguments(self) -> list[str]:
        """The assignments as arguments of another command."""
        return [word for text in self.assignments for word in ("--set", text)]


def _assign(sections: dict[str, dict[str, Any]], text: str) -> None:
    name, equals, value = text.partition("=")
    section, _, rest = name.partition(".")
    field, _, inner = rest.partition(".")
    if not equals or not field:
        raise SettingsError(
            f"cannot use --set {text!r}: not of the form section.field=value",
            remedy="write for example --set serve.port=0",
        )
    target = sections.setdefault(section.strip(), {})
    if inner:  # an entry of a table; its name may have dots: analyze.spark.spark.ui.enabled=true
        table = target.setdefault(field, {})
        if not isinstance(table, dict):
            raise SettingsError(
                f"cannot use --set {text!r}: another --set gives {section}.{field} as a whole",
                remedy="write the whole table as JSON, or each entry by itself",
            )
        table[inner] = value
    else:
        target[field] = _value(name, value)


def _value(name: str, text: str) -> Any:
    """The value: JSON for lists and tables; the settings' types convert other text."""
    if not text.startswith(("[", "{")):
        return text
    try:
        return json.loads(text)
    except ValueError as error:
        # The value may contain passwords: it is not repeated in the error.
        raise SettingsError(
            f"cannot use --set {name}: its value is not JSON: {error}",
            remedy='write it as JSON, as in {"name": "value"}',
        ) from None


def parse_time(text: str, option: str = "--since") -> int:
    """Milliseconds since the epoch of `1 hour` (ago) or `2026-01-31T12:00:00Z`."""
    from millstream.syntax.duration import parse_duration

    try:
        return to_ms(text)
    except ValueError:
        pass
    try:
        return round((time.time() - parse_duration(text).total_seconds()) * 1000)
    except ValueError:
        raise MillstreamError(
            f"{option} {text!r} is neither a duration nor a time",
            remedy="write '2 hours', or '2026-01-31T12:00:00Z'",
        ) from None


def open_home(path: Path) -> Home:
    """A home, which may not exist yet; MachineError if it belongs to another user."""
    from millstream.runtime.home import Home

    home = Home(path.resolve())
    try:
        os.listdir(home.path)
    except PermissionError:
        raise MachineError(
            f"cannot read {home.path}: only {_owner(home.path)} may",
            remedy="run the command as that user, or choose another --home",
        ) from None
    except OSError:  # missing, or no folder: `make_home` reports it
        pass
    return home


def _owner(path: Path) -> str:
    try:
        return f"its owner {path.owner()}"
    except (KeyError, OSError):
        return "its owner"


def make_home(path: Path) -> Home:
    """A home to run in; MachineError if the folder cannot be created or written."""
    home = open_home(path)
    try:
        home.make()
        with tempfile.TemporaryFile(dir=home.path):
            pass
    except OSError as error:
        raise MachineError(
            f"cannot store state in {home.path}: {error.strerror}", remedy="choose another --home"
        ) from None
    return home


def load_app(pipeline: Path) -> App:
    from millstream.pipeline.load import load

    return load(pipeline)


def settings_of(pipeline: Path | None, flags: Flags) -> Settings:
    from millstream.settings import load_settings

    return load_settings(pipeline, **flags.sections())


def with_bootstrap(settings: Settings, home: Home) -> Settings:
    """Settings with `log.bootstrap`: of a cluster, or of the broker in this home."""
    if settings.log.bootstrap:
        return settings
    broker = home.running().get("kafka")
    if not broker:
        raise LogError(
            f"no Kafka runs in {home.path}, and log.bootstrap is not set",
            remedy=f"start `millstream kafka --home {home.path}`, or name a cluster: "
            "--set log.bootstrap=host:port",
        )
    log = settings.log.model_copy(update={"bootstrap": broker["bootstrap"]})
    return settings.model_copy(update={"log": log})


def log_of(home: Path, assignments: tuple[str, ...]) -> LogSettings:
    """The log's settings for a command without a pipeline; LogError if Kafka does not answer."""
    from millstream.log.connection import await_broker

    log = with_bootstrap(settings_of(None, Flags(assignments)), open_home(home)).log
    await_broker(log)
    return log


def url_of(tier: str, url: str, home: Path, option: str = "--url") -> str:
    """The address of a running tier: the given one, else the one in `run.json`.

    `option` is the command's option for the address.
    """
    if url:
        return url.rstrip("/")
    from millstream.runtime.home import collectors

    running = open_home(home).running()
    entry = running.get(tier)
    if not entry and tier == "collect":  # another process on its port
        entry = next(iter(collectors(running).values()), None)
    if not entry:
        raise MillstreamError(
            f"no {tier} runs in {home}",
            remedy="start the system with `millstream run PIPELINE`, or say where it is: "
            f"--home FOLDER or {option} http://HOST:PORT",
        )
    return str(entry["url"])
