"""`kafka`, `collect`, `analyze`, `serve`: run one tier in the foreground."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from millstream.cli.shared.options import (
    Flags,
    accept_schema_change_option,
    home_option,
    insecure_option,
    load_app,
    make_home,
    open_home,
    pipeline_argument,
    port_option,
    set_option,
    settings_of,
    with_bootstrap,
    with_flag_settings,
)
from millstream.cli.shared.outcome import INTERRUPTED

if TYPE_CHECKING:
    from millstream.pipeline.app import App
    from millstream.runtime.home import Home
    from millstream.settings import Settings


@click.command()
@pipeline_argument(required=False)
@home_option
@set_option
@port_option("kafka")
def kafka(
    pipeline: Path | None, home: Path, assignments: tuple[str, ...], kafka_port: int | None
) -> None:
    """Run the embedded Kafka broker, for one machine.

    PIPELINE is needed only if a millstream.toml beside it configures the log.

    \b
    millstream kafka
    millstream kafka --kafka-port 0 --home /var/lib/millstream
    """
    from millstream.log.broker import run
    from millstream.runtime.output import write_logs

    settings = settings_of(pipeline, Flags(assignments, kafka_port=kafka_port))
    write_logs(settings.output, "kafka")
    run(settings.log, make_home(home))


@click.command()
@pipeline_argument()
@home_option
@set_option
@port_option("collect")
@accept_schema_change_option
@insecure_option
@click.option(
    "--worker",
    type=click.IntRange(0),
    metavar="N",
    help="Run only process N of collect.workers, from 0: for your own process manager.",
)
def collect(
    pipeline: Path,
    home: Path,
    assignments: tuple[str, ...],
    collect_port: int | None,
    accept_schema_change: bool,
    insecure: bool,
    worker: int | None,
) -> int:
    """Run the collector: it accepts events over HTTP and reads sources.

    With collect.workers above 1, it starts that many processes on one port and keeps them up.

    \b
    millstream collect pipeline.py
    millstream collect pipeline.py --collect-port 0 --set log.bootstrap=kafka-1:9092
    """

    def start(app: App, settings: Settings, home: Home) -> None:
        from millstream.collect.service import run

        run(app, settings, home, worker or 0)

    given = with_flag_settings(
        assignments, accept_schema_change=accept_schema_change, insecure=insecure
    )
    flags = Flags(given, collect_port=collect_port)
    workers = settings_of(pipeline, flags).collect.workers
    if worker is not None and worker >= workers:
        raise click.BadParameter(f"{worker} is not below collect.workers, which is {workers}")
    if worker is None and workers > 1:
        return run_collectors(pipeline, home, flags)
    run_tier("collect", start, pipeline, home, flags)
    return 0


@click.command()
@pipeline_argument()
@home_option
@set_option
def analyze(pipeline: Path, home: Path, assignments: tuple[str, ...]) -> None:
    """Run the continuous queries on Spark.

    \b
    millstream analyze pipeline.py
    millstream analyze pipeline.py --set analyze.spark_master=spark://host:7077
    """

    def start(app: App, settings: Settings, home: Home) -> None:
        from millstream.analyze.service import run

        run(app, settings, home)

    run_tier("analyze", start, pipeline, home, Flags(assignments))


@click.command()
@pipeline_argument()
@home_option
@set_option
@port_option("serve")
@insecure_option
def serve(
    pipeline: Path,
    home: Path,
    assignments: tuple[str, ...],
    serve_port: int | None,
    insecure: bool,
) -> None:
    """Run a server for clients: HTTP, WebSocket, SQL and the dashboard.

    Any number of servers may run at once; all give the same answers.

    \b
    millstream serve pipeline.py
    millstream serve pipeline.py --serve-port 8501
    """

    def start(app: App, settings: Settings, home: Home) -> None:
        from millstream.serve.service import run

        run(app, settings, home)

    given = with_flag_settings(assignments, insecure=insecure)
    run_tier("serve", start, pipeline, home, Flags(given, serve_port=serve_port))


def run_collectors(pipeline: Path, path: Path, flags: Flags) -> int:
    """Run `collect.workers` processes until a signal stops them; returns the exit code."""
    from millstream.runtime.ports import choose_port
    from millstream.supervise.plain_output import PlainOutput
    from millstream.supervise.processes import await_leftovers, collector_processes
    from millstream.supervise.run import run_processes

    load_app(pipeline)  # reports the user's errors before any process is started
    settings = settings_of(pipeline, flags)
    collect = settings.collect
    collect.check_exposure()
    home, display = make_home(path), PlainOutput(every=float("inf"))
    with home.hold("collectors"):
        await_leftovers(home, display.step, ["collect"])
        port = choose_port(collect.host, collect.port, what="collect", flag="--collect-port")
        specs = collector_processes(
            pipeline.resolve(), home, settings, port, flags=flags.arguments()
        )
        scheme = "https" if collect.tls_certificate else "http"
        ready = f"collect ready on {scheme}://{collect.host}:{port}; logs in {home.logs}"
        ended_by = run_processes(specs, home, display, ready_lines=[ready])
    return INTERRUPTED if ended_by == signal.SIGINT else 0


def run_tier(
    name: str,
    start: Callable[[App, Settings, Home], None],
    pipeline: Path,
    path: Path,
    flags: Flags,
) -> None:
    """Start a tier with its pipeline, settings, home and logging."""
    from millstream.runtime.output import write_logs

    home = open_home(path)
    app = load_app(pipeline)
    settings = with_bootstrap(settings_of(pipeline, flags), home)
    write_logs(settings.output, name)
    start(app, settings, make_home(path))
