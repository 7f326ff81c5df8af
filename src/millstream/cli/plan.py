"""`plan`: what would run, and why so."""

from __future__ import annotations

from pathlib import Path

import click

from millstream.cli.options import (
    Flags,
    json_option,
    load_app,
    pipeline_argument,
    set_option,
    settings_of,
)


@click.command()
@pipeline_argument()
@set_option
@json_option
def plan(pipeline: Path, assignments: tuple[str, ...], as_json: bool) -> None:
    """Explain what `run` would run: per view its inputs, topics, key, mode and the reason for it.

    Builds every query with Spark (some 10 s), but starts none and needs no Kafka.

    \b
    millstream plan pipeline.py
    millstream plan pipeline.py --json | jq '.views[].mode'
    """
    from millstream.analyze.planner import plan as make_plan

    app = load_app(pipeline)
    found = make_plan(app, settings_of(pipeline, Flags(assignments)))
    click.echo(found)
