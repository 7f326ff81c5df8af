"""Builds a view's rows from the user's function or SQL, and checks them against the declaration."""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from millstream.analyze.lineage.estimates import NotEstimable
from millstream.analyze.lineage.lineage import TracedQuery, trace
from millstream.analyze.records.reader import add_temp_view, is_hidden
from millstream.analyze.spark.catalyst import Catalyst, items
from millstream.analyze.spark.realtime import UnsupportedQuery, condense, explain_refusal
from millstream.analyze.spark.remedies import SUBQUERY, remedy_for
from millstream.errors import PipelineError
from millstream.pipeline.model import View
from millstream.pipeline.view_sql import to_spark_sql
from millstream.syntax.names import suggest
from millstream.values.hidden_columns import OF_EVENTS, RESERVED

# Spark's error for an action (count, collect) on a stream.
_ACTION = "must be executed with writeStream"
_UNKNOWN_COLUMN = re.compile(r"with name `(.+?)` cannot be resolved\..*?(\[.*\])")


def build(spark: SparkSession, view: View, inputs: Mapping[str, DataFrame]) -> DataFrame:
    """The rows that a view's query gives; PipelineError, with the user's line, if it fails."""
    with _located_errors(view):
        if view.sql is not None:
            frame = _run_sql(spark, view.sql, inputs)
        else:
            assert view.function is not None
            frame = view.function(**inputs)
    if not isinstance(frame, DataFrame):
        raise mistake(
            view,
            f"returns a {type(frame).__name__}, not a DataFrame",
            "return the DataFrame that the query gives",
        )
    _check_columns(view, frame)
    return _without_hidden(frame)


def mistake(view: View, problem: str, remedy: str = "", line: int = 0) -> PipelineError:
    """A PipelineError about a view."""
    return PipelineError(
        f"view {view.name!r} {problem}",
        file=view.location.file,
        line=line or view.location.line,
        remedy=remedy,
    )


def _run_sql(spark: SparkSession, sql: str, inputs: Mapping[str, DataFrame]) -> DataFrame:
    for name, frame in inputs.items():
        add_temp_view(frame, name, sql)
    return spark.sql(to_spark_sql(sql))


def _without_hidden(frame: DataFrame) -> DataFrame:
    """The result without hidden columns that the user has selected."""
    catalyst = Catalyst.of(frame)
    output = items(catalyst.analysed(frame).output())
    kept = [each for each in output if each.name() not in OF_EVENTS or not is_hidden(each)]
    if len(kept) == len(output):
        return frame
    return frame.select(*(catalyst.column(each) for each in kept))


def _check_columns(view: View, frame: DataFrame) -> None:
    seen = set[str]()
    for attribute in items(Catalyst.of(frame).analysed(frame).output()):
        name = str(attribute.name())
        if name.lower() in RESERVED and not is_hidden(attribute):
            raise mistake(view, f"names a column {name!r}, which is one of ours", "rename it")
        if name.lower() in seen:
            remedy = "give one of them another name by alias or AS"
            raise mistake(view, f"has two columns {name!r}", remedy)
        seen.add(name.lower())


def trace_view(view: View, frame: DataFrame, batch: bool | None = None) -> TracedQuery:
    """The view's rows with their lineage; PipelineError if Spark can't run it, or the key is wrong.

    `batch`: for a batch over all events. A frame that is not streaming is always one.
    """
    try:
        traced = trace(
            frame,
            view.key,
            batch=batch,
            lists_late=bool(view.ledger),
            weighs=view.shed is not None,
        )
    except NotEstimable as error:
        raise mistake(view, f"has shed, but {error}", error.remedy) from error
    except UnsupportedQuery as error:
        raise mistake(view, f"cannot be built: {error}") from error
    _check_key(view, traced)
    if traced.window is not None and traced.window.lacks_groups:
        raise mistake(
            view,
            "groups by sessions and nothing else, which Spark cannot keep up to date",
            "group by what has the sessions too, such as a user's id",
        )
    return traced


def _check_key(view: View, traced: TracedQuery) -> None:
    """PipelineError unless the key identifies the same rows as the query's groups."""
    groups = ", ".join(repr(name) for name in traced.grouping or ())
    if view.key is None:
        if traced.grouping is not None:
            problem = "groups, so that its rows replace each other, but has no key"
            remedy = f"write key=[{groups}]"
            if not groups:
                remedy = "add a column F.lit('all').alias('scope'), and write key=['scope']"
            raise mistake(view, problem, remedy)
        return
    known = {name.lower() for name in traced.columns}
    for name in view.key:
        if name.lower() not in known:
            problem = f"has a key column {name!r} that is not in its result"
            raise mistake(view, problem, suggest(name, traced.columns))
    if traced.missing_in_key:
        missing = ", ".join(repr(name) for name in traced.missing_in_key)
        problem = f"groups by {missing} too: rows of different groups would replace each other"
        raise mistake(view, problem, f"write key=[{groups}]")


@contextmanager
def _located_errors(view: View) -> Iterator[None]:
    """Turns any error of a user's query into a PipelineError with their file and line."""
    try:
        yield
    except (Exception, SystemExit) as error:
        lines = [
            frame.lineno
            for frame in traceback.extract_tb(error.__traceback__)
            if frame.filename == view.location.file and frame.lineno
        ]
        line = lines[-1] if lines else 0
        if isinstance(error, PipelineError):  # raised by a function of ours that it calls
            if error.file:
                raise
            problem = f"cannot be built: {error.message}"
            raise mistake(view, problem, error.remedy, line) from error
        if isinstance(error, SystemExit):
            problem, remedy = "ends the process", "leave the exit out: a view gives a DataFrame"
            raise mistake(view, problem, remedy, line) from error
        if not isinstance(error, PySparkException):
            problem = f"cannot be built: {type(error).__name__}: {error}"
            raise mistake(view, problem, line=line) from error
        why = condense(str(error))
        if unknown := _UNKNOWN_COLUMN.search(why):
            # Spark's own suggestions are in no useful order.
            columns = [
                each.split("`.`")[-1] for each in re.findall(r"`(.+?)`(?=[,\]])", unknown[2])
            ]
            problem = f"has no column {unknown[1]!r} to use"
            raise mistake(view, problem, suggest(unknown[1], columns), line) from error
        if explain_refusal(str(error)) == SUBQUERY:
            problem = f"cannot run as a continuous query: {SUBQUERY}"
            raise mistake(view, problem, remedy_for(view, SUBQUERY), line) from error
        if _ACTION in why:
            problem = "asks for rows while it is built, when there are none"
            remedy = "leave show(), count(), collect(), cache() and the like out: return the query"
            raise mistake(view, problem, remedy, line) from error
        raise mistake(view, f"cannot be built: {why}", line=line) from error
