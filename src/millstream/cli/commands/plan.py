"""`plan`: explains what would run, and why."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from millstream.cli.shared.options import (
    Flags,
    home_option,
    json_option,
    load_app,
    open_home,
    pipeline_argument,
    set_option,
    settings_of,
)
from millstream.cli.shared.spark_output import hidden_spark_output

if TYPE_CHECKING:
    from millstream.analyze.plan import Plan, ViewPlan
    from millstream.pipeline.app import App
    from millstream.pipeline.model import NamedQuery
    from millstream.serve.settings import ServeSettings


@click.command()
@pipeline_argument()
@home_option
@set_option
@json_option
def plan(pipeline: Path, home: Path, assignments: tuple[str, ...], as_json: bool) -> None:
    """Explain what would run: each view's inputs, topics, key, mode and the reason for it.

    Builds every query with Spark, which takes about 10 s. It starts no query and needs no Kafka. If
    the views ran before in --home, it says which of them continue and which are rebuilt.

    \b
    millstream plan pipeline.py
    millstream plan pipeline.py --json | jq '.views[].mode'
    """
    import json

    from rich.console import Console

    app = load_app(pipeline)
    settings = settings_of(pipeline, Flags(assignments))
    with Console().status("building the queries with Spark"), hidden_spark_output():
        from millstream.analyze.planning.planner import plan as make_plan
        from millstream.analyze.recovery.checkpoint import checkpoint_generations, removed_views

        checkpoints = open_home(home).checkpoints
        before = {name: checkpoint_generations(checkpoints, app.name, name) for name in app.views}
        topics = {name: next(iter(held)) for name, held in before.items() if held}
        found = make_plan(app, settings, topics)
    states = {view.name: state(view.generation, before[view.name]) for view in found.views}
    if not any(before.values()):
        states = {}
    gone = removed_views(checkpoints, app.views)
    if as_json:
        click.echo(json.dumps(as_data(app, found, states, gone), indent=2))
    else:
        show(app, found, states, gone)
        show_warning(app, settings.serve)


def state(generation: str, before: dict[str, str]) -> str:
    """What happens to a view when it starts; `before` has its earlier generations by topic."""
    if not before:
        return "new: computed from the log's beginning"
    served, *others = before.values()
    if generation == served:
        return "unchanged: continues where it stopped"
    meanwhile = "the old rows are served meanwhile, unless the key has changed"
    if generation in others:
        return f"changed: the rebuild that was started continues; {meanwhile}"
    return f"changed: rebuilt from the log; {meanwhile}"


def as_data(app: App, found: Plan, states: dict[str, str], gone: list[str]) -> dict[str, Any]:
    """The plan as JSON."""
    import msgspec

    from millstream.log.topic_names import stream_topic

    streams = [
        {
            "name": stream.name,
            "topic": stream_topic(app.name, stream.name),
            "key": stream.key,
            "event_time": stream.event_time,
            "delivery": stream.delivery,
        }
        for stream in app.streams.values()
    ]
    views = [
        {
            **msgspec.to_builtins(view),
            "guarantee": view.guarantee,
            "slots": view.slots,
            "state": states.get(view.name),
        }
        for view in found.views
    ]
    queries = [
        {
            "name": query.name,
            "sql": query.sql,
            "views": query.views,
            "key": query.key,
            "parameters": {each.name: each.default for each in query.parameters},
        }
        for query in app.queries.values()
    ]
    whole = {"app": found.app, "slots": found.slots, "streams": streams, "views": views}
    return {**whole, "queries": queries, "not_in_the_pipeline": gone}


def show(app: App, found: Plan, states: dict[str, str], gone: list[str]) -> None:
    from rich.text import Text

    from millstream.log.topic_names import stream_topic
    from millstream.supervise.status_tables import console

    out = console()
    out.print(Text(f"app {found.app}", "bold"))
    for stream in app.streams.values():
        source = stream.source.address if stream.source else "HTTP"
        out.print(Text.assemble("\n", ("stream ", "dim"), (stream.name, "bold cyan")))
        out.print(
            lines(
                {
                    "from": source,
                    "topic": stream_topic(app.name, stream.name),
                    "key": stream.key or "none: events go to any partition",
                    "event time": stream.event_time or "none",
                    "delivery": stream.delivery.replace("_", " "),
                }
            )
        )
    for view in found.views:
        out.print(Text.assemble("\n", ("view ", "dim"), (view.name, "bold cyan")))
        known = {"state": states[view.name]} if view.name in states else {}
        out.print(lines({**facts(app.name, view), **known}))
    for query in app.queries.values():
        out.print(Text.assemble("\n", ("query ", "dim"), (query.name, "bold cyan")))
        out.print(lines(query_facts(query)))
    for name in gone:
        words = f"is no longer in the pipeline; `millstream drop {name}` removes its state"
        out.print(Text.assemble("\n", ("view ", "dim"), (name, "bold"), f" {words}"))
    out.print(f"\n{found.slots} task slots in all")


def show_warning(app: App, settings: ServeSettings) -> None:
    from rich.text import Text

    from millstream.serve.access.missing_login import warn_of_missing_login
    from millstream.supervise.status_tables import console

    if warning := warn_of_missing_login(app, settings):
        console().print(Text(f"! {warning}", "yellow"))


def facts(app: str, view: ViewPlan) -> dict[str, str]:
    """The properties of a view as text."""
    windowed = {"window": view.window_spec.text} if view.window_spec else {}
    return {
        "reads": f"{', '.join(view.inputs)} ({', '.join(view.reads)})",
        "topic": view.topic,
        "key": ", ".join(view.key) if view.key else "none: a stream of result rows",
        "columns": ", ".join(f"{column.name} {column.type}" for column in view.columns),
        "mode": f"{view.mode.replace('_', '-')}: {view.reason}",
        **windowed,
        "trigger": view.trigger,
        "eviction": view.eviction,
        **output_facts(app, view),
        **({"shed": view.shedding} if view.shedding else {}),
        "slots": str(view.slots),
        "lineage": view.lineage,
        "guarantee": view.guarantee,
    }


def query_facts(query: NamedQuery) -> dict[str, str]:
    """The properties of a named query as text."""
    parameters = [f"{each.name} {each.type} = {each.default}" for each in query.parameters]
    return {
        "reads": ", ".join(query.views),
        "sql": " ".join(query.sql.split()),
        "parameters": ", ".join(parameters) or "none",
        "key": ", ".join(query.key) if query.key else "none: rows are known by their rank",
        "served at": f"/v1/queries/{query.name}",
    }


def output_facts(app: str, view: ViewPlan) -> dict[str, str]:
    """The trigger, accumulation and ledger of a view, if it has any."""
    from millstream.log.topic_names import ledger_topic

    if view.output is None:
        return {}
    facts_ = (
        {} if view.output.is_direct else {"shown": f"{view.output.text} (from {view.query_topic})"}
    )
    if view.output.ledger:
        facts_["ledger"] = f"{', '.join(view.output.ledger)} ({ledger_topic(app, view.name)})"
    return facts_


def lines(pairs: dict[str, str]) -> Any:
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2))
    for name, value in pairs.items():
        table.add_row(Text(f"  {name}", "dim"), Text(value))
    return table
