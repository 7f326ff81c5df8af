"""`run`: runs everything on one machine."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterable, Sized
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from millstream.cli.shared.options import (
    Flags,
    accept_schema_change_option,
    home_access,
    home_option,
    insecure_option,
    load_app,
    make_home,
    pipeline_argument,
    port_option,
    set_option,
    settings_of,
    with_flag_settings,
)
from millstream.cli.shared.outcome import INTERRUPTED

if TYPE_CHECKING:
    from millstream.runtime.home import Home
    from millstream.settings import Settings
    from millstream.supervise.plain_output import Display
    from millstream.supervise.processes import Ports
    from millstream.web.auth.settings import AccessSettings


@click.command()
@pipeline_argument()
@home_option
@set_option
@port_option("kafka")
@port_option("collect")
@port_option("serve")
@click.option(
    "--with",
    "extras",
    multiple=True,
    metavar="COMMAND",
    help="Another process to run, such as a simulator; may be given several times.",
)
@accept_schema_change_option
@insecure_option
@click.option("--plain", is_flag=True, help="Print lines instead of a live screen.")
@click.option(
    "--give-up",
    is_flag=True,
    help="Stop everything, with exit code 1, when a process dies five times in a row.",
)
def run(
    pipeline: Path,
    home: Path,
    assignments: tuple[str, ...],
    kafka_port: int | None,
    collect_port: int | None,
    serve_port: int | None,
    extras: tuple[str, ...],
    accept_schema_change: bool,
    insecure: bool,
    plain: bool,
    give_up: bool,
) -> int:
    """Start everything on this machine and keep it running, until Ctrl-C.

    Kafka is started, too, unless log.bootstrap names a cluster. The output of each tier is in
    HOME/logs/<tier>.log. A process that dies is restarted, and the others continue: see
    `millstream status`. With --give-up, a process that keeps dying ends the run.

    \b
    millstream run pipeline.py
    millstream run pipeline.sql --serve-port 9000 --home /var/lib/millstream
    millstream run pipeline.py --with "python simulator.py --rate 50"
    """
    from millstream.supervise.processes import await_leftovers

    # Check the user's input before the home is changed and the first process is started.
    given = with_flag_settings(
        assignments, accept_schema_change=accept_schema_change, insecure=insecure
    )
    flags = Flags(given, kafka_port, collect_port, serve_port)
    app, settings = load_app(pipeline), settings_of(pipeline, flags)
    check_exposed(settings)
    check_cluster(settings)
    place = make_home(home)
    with place.hold("run"):
        display = choose_display(plain)
        display.step(f"{app.name}: {_count(app.streams, 'stream')}, {_count(app.views, 'view')}")
        await_leftovers(place, display.step)
        ask_about_removed(place, app.views)
        ended_by = start(pipeline.resolve(), place, settings, flags, extras, display, give_up)
    return INTERRUPTED if ended_by == signal.SIGINT else 0


def start(
    pipeline: Path,
    home: Home,
    settings: Settings,
    flags: Flags,
    extras: tuple[str, ...],
    display: Display,
    give_up: bool,
) -> int:
    """Fetch missing jars and run the processes; returns the signal that stopped them."""
    from millstream.supervise.process_spec import RestartPolicy
    from millstream.supervise.processes import choose_ports, system_processes
    from millstream.supervise.run import run_processes

    ports = choose_ports(settings)
    specs = system_processes(
        pipeline, home, settings, ports, flags=flags.arguments(), extras=extras
    )
    fetch_jars(settings, display)
    home.announce_run()
    try:
        return run_processes(
            specs,
            home,
            display,
            ready_lines=ready_lines(settings, ports, home),
            serve_url=_url(settings.serve, ports.serve),
            serve_access=partial(home_access, home),
            policy=RestartPolicy(give_up=give_up),
        )
    finally:
        home.withdraw()


def check_exposed(settings: Settings) -> None:
    """SettingsError if a server would refuse its address: before anything is started."""
    settings.collect.check_exposure()
    settings.serve.check_exposure()


def check_cluster(settings: Settings) -> None:
    """LogError if the cluster in the settings does not answer."""
    if settings.log.bootstrap:
        from millstream.log.connection import await_broker

        await_broker(settings.log)


def ready_lines(settings: Settings, ports: Ports, home: Home) -> list[str]:
    """Lines with the addresses, to print when all is ready."""
    serve, collect = _url(settings.serve, ports.serve), _url(settings.collect, ports.collect)
    lines = [f"all ready: dashboard {serve}/ · events to {collect}/v1/streams/…"]
    if not (dashboard_folder() / "index.html").exists():
        lines.append("the dashboard is not built: `make dashboard` builds it (needs Node 20)")
    return [*lines, f"logs in {home.logs}"]


def dashboard_folder() -> Path:
    import millstream.serve

    return Path(millstream.serve.__file__).parent / "static"


def choose_display(plain: bool) -> Display:
    if plain or not sys.stdout.isatty():
        from millstream.supervise.plain_output import PlainOutput

        return PlainOutput()
    from millstream.supervise.terminal_screen import TerminalScreen

    return TerminalScreen()


def fetch_jars(settings: Settings, display: Display) -> None:
    """Fetch the jars of the processes that run here; the first time takes half a minute."""
    from millstream.runtime.jars import jars

    if not settings.log.bootstrap:
        jars("broker", report=display.step)
    jars("connector", report=display.step)


def ask_about_removed(home: Home, views: Iterable[str]) -> None:
    """Ask whether to drop the state of views that are no longer in the pipeline."""
    if not sys.stdin.isatty():
        return
    from millstream.analyze.rebuild.dropping import note_drop
    from millstream.analyze.recovery.checkpoint import removed_views

    for name in removed_views(home.checkpoints, views):
        if click.confirm(f"View {name} is no longer in the pipeline. Drop its state?", err=True):
            note_drop(home, name)


def _count(things: Sized, noun: str) -> str:
    number = len(things)
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _url(settings: AccessSettings, port: int) -> str:
    scheme = "https" if settings.tls_certificate else "http"
    return f"{scheme}://{_reachable(settings.host)}:{port}"


def _reachable(host: str) -> str:
    """The host as a browser on this machine can open it."""
    return "127.0.0.1" if host in ("0.0.0.0", "::", "") else f"[{host}]" if ":" in host else host
