"""`can`: says whether a caller may read a view or a row, and which rule decides."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import click

from millstream.cli.commands.keys import key_file
from millstream.cli.shared.options import home_option, json_option, set_option
from millstream.cli.shared.outcome import FAILED
from millstream.cli.views.history import open_history
from millstream.errors import MillstreamError, QueryError

if TYPE_CHECKING:
    from millstream.log.settings import LogSettings
    from millstream.pipeline.app import App
    from millstream.pipeline.model import Policy
    from millstream.values.view_description import ViewColumn, ViewDescription
    from millstream.values.visibility import Visibility
    from millstream.web.auth.caller import Caller
    from millstream.web.auth.rights import Action, Kind

Rule = Literal["right", "rows", "no policy"]


@click.command()
@click.argument("caller")
@click.argument("action", type=click.Choice(["read", "query"]))
@click.argument("view")
@click.argument("key", required=False)
@click.option(
    "--claims",
    metavar="JSON",
    default="",
    help='The claims of a caller who has no key, as in \'{"tenant": "acme"}\'. CALLER is then only '
    "a name, and has all rights.",
)
@click.option(
    "--pipeline",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="The pipeline's file; default: the one that runs in --home.",
)
@home_option
@set_option
@json_option
def can(
    caller: str,
    action: Action,
    view: str,
    key: str | None,
    claims: str,
    pipeline: Path | None,
    home: Path,
    assignments: tuple[str, ...],
    as_json: bool,
) -> int:
    """Say whether CALLER may read VIEW, or its row KEY, and which rule decides.

    CALLER is the name of a key. VIEW is a view or a stream; ledger/VIEW is a view's ledger. KEY is
    a JSON array, or the plain value where the key is one column. `query` asks about the caller's
    own SQL. Columns and rows are read from the log.

    Exit code: 0 yes, 1 no.

    \b
    millstream can shop read orders
    millstream can shop read orders '["acme", 17]'
    millstream can somebody read orders --claims '{"tenant": "acme"}'
    """
    who = _caller(caller, claims, home, assignments)
    app, settings = open_history(pipeline, home, assignments)
    answer = _decide(app, settings.log, who, action, view, key)
    click.echo(json.dumps(answer._asdict()) if as_json else _text(who, action, view, key, answer))
    return 0 if answer.allowed else FAILED


class Answer(NamedTuple):
    """Whether a caller may read, and why."""

    allowed: bool
    rule: Rule
    reason: str
    hidden: list[str]  # columns that the caller does not see


class _Target(NamedTuple):
    """What is read."""

    kind: Kind
    name: str
    policy: Policy
    columns: tuple[ViewColumn, ...]
    description: ViewDescription | None = None


def _caller(name: str, claims: str, home: Path, assignments: tuple[str, ...]) -> Caller:
    from millstream.syntax.names import suggest
    from millstream.web.auth.caller import Caller
    from millstream.web.auth.rights import EVERYTHING, Rights

    if claims:
        return Caller("caller", name, EVERYTHING, claims=_claims(claims))
    keys = {each.name: each for each in key_file(home, assignments).read()}
    if name not in keys:
        remedy = suggest(name, keys) or "create it, or give --claims"
        raise MillstreamError(f"there is no key {name!r}", remedy=remedy)
    return Caller("key", name, Rights(keys[name].words), claims=keys[name].claims)


def _claims(text: str) -> dict[str, Any]:
    try:
        claims = json.loads(text)
    except ValueError:
        claims = None
    if not isinstance(claims, dict):
        raise MillstreamError(
            f"--claims {text[:100]!r} is no JSON object", remedy='write \'{"tenant": "acme"}\''
        )
    return claims


def _decide(
    app: App, log: LogSettings, who: Caller, action: Action, view: str, key: str | None
) -> Answer:
    from millstream.serve.access.visibility import AppliedPolicy

    target = _target(app, log, view)
    if not who.rights.allows(action, target.kind, target.name):
        return Answer(False, "right", f"it has no right {action}:{view}", [])
    if not target.policy:
        return Answer(True, "no policy", f"{target.kind} {target.name} has no policy", [])
    applied = AppliedPolicy(target.policy, f"{target.kind} {target.name}")
    amounts = target.description.ledger if target.description is not None else ()
    applied.fit(target.columns, frozenset(amounts) if target.kind == "ledger" else None)
    seen = applied.visibility(who.claims)
    hidden = sorted(seen.hidden)
    if applied.problem or not target.columns:
        reason = applied.problem or f"view {target.name} is not described yet: start analyze"
        return Answer(False, "rows", reason, hidden)
    written = "" if target.policy.rows is None else target.policy.rows.text
    if seen.rows is None:
        reason = f"{written} holds for every row" if written else "there is no condition on rows"
        return Answer(True, "rows", reason, hidden)
    if key is None:
        return Answer(seen.rows != "FALSE", "rows", f"{written}, which is {seen.rows}", hidden)
    holds = _holds(app, log, target, key, seen)
    said = "holds" if holds else "does not hold"
    return Answer(holds, "rows", f"{written}, which is {seen.rows}, {said}", hidden)


def _target(app: App, log: LogSettings, name: str) -> _Target:
    from millstream.expression.condition import event_columns
    from millstream.serve.views.served_ledger import ledger_columns
    from millstream.syntax.names import suggest

    if name in app.streams:
        stream = app.streams[name]
        return _Target("stream", name, stream.policy, event_columns(stream.schema))
    plain = name.removeprefix("ledger/")
    if plain not in app.views:
        remedy = suggest(plain, [*app.views, *app.streams])
        raise MillstreamError(f"there is no view or stream {plain!r}", remedy=remedy)
    view, described = app.views[plain], _description(app, log, plain)
    if plain == name:
        columns = described.shown_columns if described else ()
        return _Target("view", plain, view.policy, columns, described)
    if not view.ledger:
        raise MillstreamError(f"view {plain} has no ledger", remedy="declare it with ledger=[…]")
    columns = ledger_columns(described) if described else ()
    return _Target("ledger", plain, view.ledger_policy, columns, described)


def _description(app: App, log: LogSettings, view: str) -> ViewDescription | None:
    """The newest description that `analyze` wrote; None if it has not run."""
    import msgspec

    from millstream.log.topic_contents import read_topic
    from millstream.log.topic_names import views_topic
    from millstream.values.view_description import ViewDescription

    found = None
    for records in read_topic(log, views_topic(app.name)):
        for record in records:
            if record.key == view.encode() and record.value:
                found = msgspec.json.decode(record.value, type=ViewDescription)
    return found


def _holds(app: App, log: LogSettings, target: _Target, key: str, seen: Visibility) -> bool:
    """Whether the row of that key is visible; MillstreamError if there is none."""
    from millstream.expression.policy import compile_rows

    assert seen.rows is not None
    assert target.description is not None or target.kind == "stream"
    names = target.description.key if target.description is not None else None
    if names is None:
        raise MillstreamError(
            f"{target.kind} {target.name} has no key", remedy="leave KEY out, or ask about a view"
        )
    matches = compile_rows(seen.rows, target.columns)
    values = _key_values(key, names)
    if target.kind == "ledger":  # its policy uses nothing but the key
        return matches({"key": dict(zip(names, values, strict=True))})
    return matches(_row(app, log, target, values))


def _key_values(key: str, names: list[str]) -> list[Any]:
    try:
        values = json.loads(key)
    except ValueError:
        values = key
    values = values if isinstance(values, list) else [key if len(names) == 1 else values]
    if len(values) != len(names):
        raise QueryError(
            f"the key {key[:100]!r} is not of the columns {', '.join(names)}",
            remedy="write a JSON array of their values",
        )
    return values


def _row(app: App, log: LogSettings, target: _Target, values: list[Any]) -> dict[str, Any]:
    from millstream.log.topic_contents import read_topic
    from millstream.log.topic_names import view_topic

    assert target.description is not None
    topic = target.description.topic or view_topic(app.name, target.name)
    spellings = [values, [_number(each) for each in values]]
    found = None
    for records in read_topic(log, topic):
        for record in records:
            if record.key is not None and json.loads(record.key) in spellings:
                found = record.value
    if found is None:
        shown = json.dumps(values, ensure_ascii=False)
        raise MillstreamError(f"view {target.name} has no row with the key {shown}")
    row: dict[str, Any] = json.loads(found)
    return row


def _number(value: Any) -> Any:
    """A key's value that a shell wrote as text."""
    try:
        return json.loads(value) if isinstance(value, str) else value
    except ValueError:
        return value


def _text(who: Caller, action: str, view: str, key: str | None, answer: Answer) -> str:
    verb = "may" if answer.allowed else "may not"
    what = f"row {key} of {view}" if key is not None else view
    lines = [f"{'yes' if answer.allowed else 'no'}: {who.kind} {who.name!r} {verb} {action} {what}"]
    lines.append(f"  {answer.rule}: {answer.reason}")
    if answer.hidden and answer.allowed:
        lines.append(f"  hidden columns: {', '.join(answer.hidden)}")
    return "\n".join(lines)
