"""Reads and builds Catalyst plans from Python, through py4j."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession, functions

# py4j's objects have no types.
LogicalPlan = Any
Attribute = Any
Expression = Any
LOGICAL = "org.apache.spark.sql.catalyst.plans.logical"


class Catalyst:
    """Builds plans in one Spark session."""

    def __init__(self, spark: SparkSession) -> None:
        self.spark = spark
        self.session: Any = spark._jsparkSession
        self.jvm: Any = spark._jvm
        self._classes: dict[str, Any] = {}
        self.none = self.module("scala.None")

    @classmethod
    def of(cls, frame: DataFrame) -> Catalyst:
        """That of the DataFrame's session."""
        return _catalyst(frame.sparkSession)

    def java(self, path: str) -> Any:
        """The Java class of that name."""
        if path not in self._classes:  # py4j asks the JVM for each part of the path
            found = self.jvm
            for part in path.split("."):
                found = getattr(found, part)
            self._classes[path] = found
        return self._classes[path]

    def module(self, path: str) -> Any:
        """The Scala object of that name."""
        return getattr(self.java(f"{path}$"), "MODULE$")

    def contains(self, node: LogicalPlan | Expression, pattern: str) -> bool:
        """Whether the tree has a node with that one of Spark's TreePatterns."""
        patterns = self.module("org.apache.spark.sql.catalyst.trees.TreePattern")
        return bool(node.containsPattern(getattr(patterns, pattern)()))

    def some(self, value: Any) -> Any:
        return self.java("scala.Some")(value)

    def seq(self, values: Iterable[Any]) -> Any:
        """A Scala Seq."""
        java = self.java("java.util.ArrayList")()
        for value in values:
            java.add(value)
        return self.java("org.apache.spark.api.python.PythonUtils").toSeq(java)

    def analysed(self, frame: DataFrame) -> LogicalPlan:
        return frame._jdf.queryExecution().analyzed()

    def frame(self, plan: LogicalPlan) -> DataFrame:
        """The DataFrame that a plan gives."""
        rows = self.java("org.apache.spark.sql.classic.Dataset").ofRows(self.session, plan)
        return DataFrame(rows, self.spark)

    def column(self, expression: Expression) -> Column:
        """An attribute or expression of a plan, as a Column of a DataFrame over that plan."""
        utilities = self.java("org.apache.spark.sql.classic.ExpressionUtils")
        return Column(utilities.column(expression))

    def extend(
        self, child: LogicalPlan, **columns: Column
    ) -> tuple[LogicalPlan, dict[str, Attribute]]:
        """`child` with more columns computed from its own, and the attributes of these."""
        kept = [self.column(attribute) for attribute in items(child.output())]
        added = [column.alias(name) for name, column in columns.items()]
        plan = self.analysed(self.frame(child).select(*kept, *added))
        return plan, dict(zip(columns, items(plan.output())[len(kept) :], strict=True))

    def renamed(self, plan: LogicalPlan, like: Iterable[Attribute]) -> LogicalPlan:
        """The plan, its columns with the names and ids of the attributes `like`."""
        alias = self.java("org.apache.spark.sql.catalyst.expressions.Alias")
        aliases = [
            alias(own, theirs.name(), theirs.exprId(), self.seq([]), self.none, self.seq([]))
            for own, theirs in zip(items(plan.output()), like, strict=True)
        ]
        return self.java(f"{LOGICAL}.Project")(self.seq(aliases), plan)

    def aggregates(self, child: LogicalPlan, **columns: Column) -> list[Expression]:
        """Aliased aggregate expressions for an Aggregate over `child`."""
        named = [column.alias(name) for name, column in columns.items()]
        return items(self.analysed(self.frame(child).groupBy().agg(*named)).aggregateExpressions())


@lru_cache(maxsize=4)
def _catalyst(spark: SparkSession) -> Catalyst:
    return Catalyst(spark)


def quoted(name: str) -> str:
    """A column's name, quoted for Spark's functions."""
    return "`" + name.replace("`", "``") + "`"


def named(name: str) -> Column:
    """The column of exactly that name."""
    return functions.col(quoted(name))


def items(seq: Any) -> list[Any]:
    """A Scala Seq as a list."""
    return [seq.apply(index) for index in range(seq.size())]


def name_of(node: Any) -> str:
    """The class name of a plan or expression, such as `Project`."""
    return str(node.getClass().getSimpleName())


def identity(attribute: Attribute) -> int:
    """The attribute's id, which is the same everywhere in a plan."""
    return int(attribute.exprId().id())


def unwrapped(expression: Expression) -> Expression:
    """The expression without its aliases and casts."""
    while name_of(expression) in ("Alias", "Cast"):
        expression = expression.child()
    return expression


def spelled(names: Iterable[str], columns: Iterable[str]) -> tuple[str, ...]:
    """The names, spelled as the columns are: Spark ignores case."""
    known = {column.lower(): column for column in columns}
    return tuple(known[name.lower()] for name in names)


def references(expression: Expression) -> set[int]:
    return {identity(each) for each in items(expression.references().toSeq())}


def nodes(plan: LogicalPlan) -> Iterator[LogicalPlan]:
    """Every node of the tree, parents before their children."""
    pending = [plan]
    while pending:
        node = pending.pop()
        yield node
        pending.extend(items(node.children()))


def streamed_topic(leaf: LogicalPlan) -> str:
    """The Kafka topic that a leaf reads as a stream; empty if it is another kind of leaf."""
    if name_of(leaf) != "StreamingRelationV2":
        return ""
    return str(leaf.extraOptions().get("subscribe"))


def streamed_topics(plan: LogicalPlan) -> list[str]:
    """The Kafka topics that a plan reads as streams, each once."""
    return list(dict.fromkeys(topic for leaf in leaves(plan) if (topic := streamed_topic(leaf))))


def leaves(plan: LogicalPlan) -> list[LogicalPlan]:
    return items(plan.collectLeaves())


def replace_leaves(
    catalyst: Catalyst, plan: LogicalPlan, replace: Callable[[LogicalPlan], LogicalPlan]
) -> LogicalPlan:
    """The plan with each leaf replaced by `replace(leaf)`."""
    children = items(plan.children())
    if not children:
        return replace(plan)
    fresh = [replace_leaves(catalyst, child, replace) for child in children]
    return plan.withNewChildren(catalyst.seq(fresh))
