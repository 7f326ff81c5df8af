"""A view's generation: a fingerprint that changes when the query may give other rows."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from pyspark.sql import DataFrame

from millstream.analyze.planning.policy_text import without_policies
from millstream.analyze.spark.catalyst import Catalyst

# Raised when the hidden columns change, because they are part of a query's state.
_VERSION = 1
# How a plan shows Python code, or data that is in the pipeline's file.
_FROM_SOURCE = re.compile(r"LogicalRDD|LocalRelation|InPandas|InArrow|PySpark|BatchEvalPython")


def generation(
    frame: DataFrame,
    source: Path | str,
    more: Iterable[str],
    modules: Mapping[str, Path] | None = None,
) -> str:
    """The fingerprint of a query with the rows `frame`, written in the file `source`.

    `modules`: the user's modules that the file imports.
    """
    catalyst = Catalyst.of(frame)
    plan = catalyst.analysed(frame)
    text = str(plan.toString())
    parts = [str(_VERSION), normalise(text), frame.schema.json(), *more]
    if catalyst.contains(plan, "PYTHON_UDF") or _FROM_SOURCE.search(text):
        # A plan has a Python function's name and an inline table's columns, but not their content.
        parts.append(_content(source))  # without policies, which decide no row's values
        parts += [f"{name} {_content(file)}" for name, file in (modules or {}).items()]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def normalise(plan: str) -> str:
    """A plan's text without the parts that differ from run to run."""
    text = re.sub(
        r"StreamingRelationV2 .*?\bsubscribe=([^,\]]+).*", r"StreamingRelationV2 \1", plan
    )
    text = re.sub(r"\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b", "", text)
    text = re.sub(r"@[0-9a-f]{4,}\b", "", text)
    text = re.sub(r"\b(lambda [xyz])_\d+", r"\1", text)  # counted through the whole session
    numbers: dict[str, str] = {}
    return re.sub(r"#(\d+)", lambda m: f"#{numbers.setdefault(m[1], str(len(numbers)))}", text)


def _content(source: Path | str) -> str:
    try:
        return hashlib.sha256(without_policies(Path(source).read_bytes())).hexdigest()
    except OSError:  # typed into an interpreter, say
        return ""
