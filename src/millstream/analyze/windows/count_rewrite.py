"""Rewrites a Spark plan that groups by count windows, which Spark does not have.

A real-time query writes a row for each event that changes a group. So it only counts each group's
events and keeps the newest ones, as many as a window has. When the count is that of a full window,
these events are the window's. The user's aggregate functions are then applied to them in Spark's
way: by initial value, update and result.

A batch sees each group once, at its end. There all events are kept, and all windows cut from them.

The names inside the rewritten plan are part of a view's generation and state: they cannot change.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from millstream.analyze.spark.catalyst import (
    LOGICAL,
    Attribute,
    Catalyst,
    Expression,
    LogicalPlan,
    identity,
    items,
    name_of,
)
from millstream.analyze.spark.realtime import UnsupportedQuery
from millstream.analyze.windows.count_window import CountWindowSpec
from millstream.analyze.windows.window_spec import WindowSpec
from millstream.pipeline.windows import CountWindow, parse_marker
from millstream.values.hidden_columns import EVENT_TIME, POSITION, RECEIVED, REVISION

_EXPRESSIONS = "org.apache.spark.sql.catalyst.expressions"
_ROW = "_row"
_HIDDEN = {  # by their names in lineage
    "position": POSITION,
    "row": _ROW,
    "received": RECEIVED,
    "event_time": EVENT_TIME,
    "revision": REVISION,
}


@dataclass(frozen=True, slots=True)
class EventColumns:
    """Hidden columns of the events that are counted."""

    position: Attribute
    row: Attribute | None
    received: Attribute
    event_time: Attribute


@dataclass(frozen=True, slots=True)
class CountWindowPlan:
    """A plan with one row for each full window."""

    kind: ClassVar[type[WindowSpec]] = CountWindowSpec

    plan: LogicalPlan
    hidden: dict[str, Attribute]  # of the event that filled the window, named as in lineage
    window: CountWindow
    keys: tuple[str, ...]  # the columns that are grouped by


def counted_window(aggregate: LogicalPlan) -> CountWindow | None:
    """The count windows that an Aggregate groups by, if any."""
    for group in items(aggregate.groupingExpressions()):
        if window := parse_marker(str(group.toString())):
            return window
    return None


def count_windows(
    catalyst: Catalyst, aggregate: LogicalPlan, child: LogicalPlan, event: EventColumns, whole: bool
) -> CountWindowPlan:
    """The Aggregate's rows, one for each full window; UnsupportedQuery if not possible.

    `whole`: for a batch, which has all events at once.
    """
    groups = items(aggregate.groupingExpressions())
    window = counted_window(aggregate)
    assert window is not None
    keys = [group for group in groups if not parse_marker(str(group.toString()))]
    functions = _functions(aggregate)
    read = {
        identity(a): a
        for function in functions
        for a in items(function.aggregateFunction().references().toSeq())
    }
    held = _newest_events(
        catalyst, child, keys, list(read.values()), event, None if whole else window.size
    )
    rows = catalyst.analysed(_full_windows(held, window, len(keys)))
    shown = items(rows.output())
    given = {str(attribute.name()): attribute for attribute in shown[len(keys) :]}
    fold = _Fold(catalyst, given["events"], list(read))

    def swap(node: Expression) -> Expression | None:
        if name_of(node) == "AggregateExpression":
            return fold.of(node)
        for number, key in enumerate(keys):
            if node.semanticEquals(key):
                return shown[number]
        return given["window"] if _is_marker(node) else None

    output = [_rewritten(catalyst, each, swap) for each in items(aggregate.aggregateExpressions())]
    hidden = {name: given[column] for name, column in _HIDDEN.items()}
    project = catalyst.java(f"{LOGICAL}.Project")
    plan = project(catalyst.seq([*output, *hidden.values()]), rows)
    names = tuple(str(key.name()) for key in keys if name_of(key) == "AttributeReference")
    return CountWindowPlan(plan, hidden, window, names)


def _newest_events(
    catalyst: Catalyst,
    child: LogicalPlan,
    keys: list[Expression],
    read: list[Attribute],
    event: EventColumns,
    most: int | None,
) -> DataFrame:
    """Each group's number of events, and the newest of them in order; `most`: how many."""
    position = catalyst.column(event.position)
    row = F.lit(0) if event.row is None else catalyst.column(event.row)
    offset, row = position.getField("offset").alias("offset"), row.cast("bigint").alias("row")
    one = F.struct(
        *(catalyst.column(attribute).alias(f"x{n}") for n, attribute in enumerate(read)),
        position.getField("partition").alias("partition"),
        offset,
        row,
        catalyst.column(event.received).alias("received"),
        catalyst.column(event.event_time).alias("event_time"),
    )
    newest = (
        F.reverse(F.max_by(one, F.struct(offset, row), most))
        if most is not None
        else F.collect_list(one)
    )
    grouped = catalyst.frame(child).groupBy(*map(catalyst.column, keys))
    found = grouped.agg(
        F.count(F.lit(1)).alias("_n"),
        F.max(position.getField("source")).alias("_source"),
        newest.alias("_newest"),
    )
    if most is not None:
        return found
    order = (
        "CASE WHEN l.offset < r.offset OR l.offset = r.offset AND l.row < r.row THEN -1 ELSE 1 END"
    )
    return found.withColumn("_newest", F.expr(f"array_sort(_newest, (l, r) -> {order})"))


def _full_windows(held: DataFrame, window: CountWindow, keys: int) -> DataFrame:
    """A row for each full window whose events are kept."""
    size, every = window
    # The number of events at the end of the first window of which all events are still there.
    first = f"({size}L + ((_n - size(_newest) + {every - 1}L) DIV {every}L) * {every}L)"
    cut = f"slice(_newest, CAST(e - {size}L - _n + size(_newest) + 1L AS INT), {size})"
    windows = F.expr(
        f"transform(sequence({first}, _n, {every}L), e -> struct(e AS filled, {cut} AS events))"
    )
    catalyst = Catalyst.of(held)
    groups = [catalyst.column(each) for each in items(catalyst.analysed(held).output())[:keys]]
    full = held.filter(f"{first} <= _n")
    rows = full.select(*groups, "_source", F.explode(windows).alias("_window"))
    last = F.element_at("_window.events", F.lit(-1))
    filled = F.col("_window.filled")
    place = ("partition", "offset")
    return rows.select(
        *groups,
        F.struct((filled - size).alias("start"), filled.alias("end")).alias("window"),
        F.col("_window.events").alias("events"),
        F.struct(
            F.col("_source").alias("source"), *(last.getField(each).alias(each) for each in place)
        ).alias(POSITION),
        last.getField("row").alias(_ROW),
        last.getField("received").alias(RECEIVED),
        last.getField("event_time").alias(EVENT_TIME),
        filled.alias(REVISION),
    )


class _Fold:
    """Turns Spark's aggregate functions into functions of an array of events."""

    def __init__(self, catalyst: Catalyst, events: Attribute, read: list[int]) -> None:
        self._catalyst = catalyst
        self._events = events
        self._places = {attribute: place for place, attribute in enumerate(read)}

    def of(self, call: Expression) -> Expression:
        function = _declarative(self._catalyst, call)
        initial = items(function.initialValues())
        buffer = {identity(a): n for n, a in enumerate(items(function.aggBufferAttributes()))}
        zero = self._struct(initial)
        held = self._variable("held", zero.dataType().asNullable())
        result = self._variable("held", zero.dataType().asNullable())
        event = self._variable("event", self._events.dataType().elementType())

        def inside(variable: Expression) -> Callable[[Expression], Expression | None]:
            def swap(node: Expression) -> Expression | None:
                if name_of(node) != "AttributeReference":
                    return None
                if (place := buffer.get(identity(node))) is not None:
                    return self._field(variable, place)
                return self._field(event, self._places[identity(node)])

            return swap

        updates = [
            _replaced(self._catalyst, each, inside(held))
            for each in items(function.updateExpressions())
        ]
        finish = _replaced(self._catalyst, function.evaluateExpression(), inside(result))
        return self._catalyst.java(f"{_EXPRESSIONS}.ArrayAggregate")(
            self._events,
            zero,
            self._lambda(self._struct(updates), held, event),
            self._lambda(finish, result),
        )

    def _struct(self, values: list[Expression]) -> Expression:
        literal = self._catalyst.module(f"{_EXPRESSIONS}.Literal")
        named = [part for n, each in enumerate(values) for part in (literal.apply(f"b{n}"), each)]
        return self._catalyst.java(f"{_EXPRESSIONS}.CreateNamedStruct")(self._catalyst.seq(named))

    def _variable(self, name: str, of: Any) -> Expression:
        made = self._catalyst.java(f"{_EXPRESSIONS}.NamedLambdaVariable")
        number = self._catalyst.module(f"{_EXPRESSIONS}.NamedExpression").newExprId()
        value = self._catalyst.java("java.util.concurrent.atomic.AtomicReference")()
        return made(name, of, True, number, value)

    def _lambda(self, body: Expression, *variables: Expression) -> Expression:
        made = self._catalyst.java(f"{_EXPRESSIONS}.LambdaFunction")
        return made(body, self._catalyst.seq(variables), False)

    def _field(self, of: Expression, place: int) -> Expression:
        made = self._catalyst.java(f"{_EXPRESSIONS}.GetStructField")
        return made(of, place, self._catalyst.none)


def _functions(aggregate: LogicalPlan) -> list[Expression]:
    found, pending = [], items(aggregate.aggregateExpressions())
    while pending:
        node = pending.pop()
        if name_of(node) == "AggregateExpression":
            found.append(node)
        else:
            pending.extend(items(node.children()))
    return found


def _declarative(catalyst: Catalyst, call: Expression) -> Expression:
    """The aggregate function; UnsupportedQuery unless it consists of plain expressions."""
    function = call.aggregateFunction()
    if _is(catalyst, function, f"{_EXPRESSIONS}.RuntimeReplaceable"):
        function = function.replacement()
    name = str(function.prettyName())
    if call.isDistinct() or call.filter().isDefined():
        raise UnsupportedQuery(
            f"{name}() over a window by count supports neither DISTINCT nor FILTER"
        )
    if not _is(catalyst, function, f"{_EXPRESSIONS}.aggregate.DeclarativeAggregate"):
        raise UnsupportedQuery(
            f"{name}() is not available over a window by count; count, sum, avg, min, max, first,"
            " last, max_by, min_by, stddev and similar functions are"
        )
    return function


def _is(catalyst: Catalyst, value: Any, kind: str) -> bool:
    return bool(catalyst.java("java.lang.Class").forName(kind).isInstance(value))


def _rewritten(
    catalyst: Catalyst, output: Expression, swap: Callable[[Expression], Expression | None]
) -> Expression:
    """A column of the Aggregate with the same name and id, computed from the window's row."""
    if name_of(output) == "AttributeReference":  # a grouping column
        return output
    made = output.child()
    alias = catalyst.java(f"{_EXPRESSIONS}.Alias")
    fresh = _replaced(catalyst, made, swap)
    empty = catalyst.seq([])
    return alias(fresh, output.name(), output.exprId(), empty, catalyst.none, empty)


def _replaced(
    catalyst: Catalyst, node: Expression, swap: Callable[[Expression], Expression | None]
) -> Expression:
    """The expression with each part replaced by what `swap` returns for it, if not None."""
    if (other := swap(node)) is not None:
        return other
    children = items(node.children())
    if not children:
        return node
    return node.withNewChildren(
        catalyst.seq([_replaced(catalyst, child, swap) for child in children])
    )


def _is_marker(node: Expression) -> bool:
    return name_of(node) == "CreateNamedStruct" and parse_marker(str(node.toString())) is not None
