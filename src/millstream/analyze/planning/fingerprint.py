"""A view's generation: the same text for the same query, another one when the answer may differ."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from pyspark.sql import DataFrame

from millstream.analyze.spark.catalyst import Catalyst

# Goes up when the hidden columns change, because they are part of a query's state.
_VERSION = 1
# What Python code, or data that lives in the pipeline's file, looks like in a plan.
_FROM_SOURCE = re.compile(r"LogicalRDD|LocalRelation|InPandas|InArrow|PySpark|BatchEvalPython")


def generation(
    frame: DataFrame,
    source: Path | str,
    more: Iterable[object],
    modules: Mapping[str, Path] | None = None,
) -> str:
    """The fingerprint of a query that gives `frame`; `source` is the file that has it.

    `modules` are those of the user's that the file imports.
    """
    catalyst = Catalyst.of(frame)
    plan = catalyst.analysed(frame)
    text = str(plan.toString())
    patterns = catalyst.module("org.apache.spark.sql.catalyst.trees.TreePattern")
    parts = [str(_VERSION), normalise(text), frame.schema.json(), *(repr(each) for each in more)]
    if plan.containsPattern(patterns.PYTHON_UDF()) or _FROM_SOURCE.search(text):
        # A plan shows a Python function's name and an inline table's columns, not what is in them.
        parts.append(_content(source))
        parts += [f"{name} {_content(file)}" for name, file in (modules or {}).items()]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def normalise(plan: str) -> str:
    """A plan's text without what differs from one run to the next."""
    text = re.sub(
        r"StreamingRelationV2 .*?\bsubscribe=([^,\]]+).*", r"StreamingRelationV2 \1", plan
    )
    text = re.sub(r"\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b", "", text)
    text = re.sub(r"@[0-9a-f]{4,}\b", "", text)
    text = re.sub(r"\b(lambda [xyz])_\d+", r"\1", text)  # numbered through all of a session
    numbers: dict[str, str] = {}
    return re.sub(r"#(\d+)", lambda m: f"#{numbers.setdefault(m[1], str(len(numbers)))}", text)


def _content(source: Path | str) -> str:
    try:
        return hashlib.sha256(Path(source).read_bytes()).hexdigest()
    except OSError:  # typed into an interpreter, say
        return ""
