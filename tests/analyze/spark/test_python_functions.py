"""Python functions in views: the interpreter and the modules of Spark's workers."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from millstream.analyze.query.view_query import Searching
from millstream.analyze.recovery.poison import is_data_error
from millstream.analyze.settings import AnalyzeSettings
from millstream.analyze.spark.python_workers import missing_dependency, python_of
from millstream.testing import run

STREAM = """
app.stream("orders", schema="id LONG, city STRING")
"""
FUNCTIONS = f"""{STREAM}
from cities_of_ours import spelling
import pandas as pd

@F.udf("string")
def interpreter(city):
    import sys
    return sys.executable

@F.udf("struct<size: int, text: string>")
def packed(city):
    import msgspec
    return len(msgspec.json.encode(city)), msgspec.json.encode(city).decode()

@F.udf("string")
def spelled(city):
    from cities_of_ours import rules  # not at the top: found all the same
    return rules.SIGN + spelling.spell(city)

@F.pandas_udf("long")
def length(city: pd.Series) -> pd.Series:
    return city.str.len()

@app.view
def rows(orders: DataFrame) -> DataFrame:
    return orders.select("id", interpreter("city").alias("python"), packed("city").alias("packed"),
                         spelled("city").alias("spelled"), length("city").alias("length"))
"""
ROW = {
    "id": 1,
    "python": sys.executable,
    "packed": {"size": 7, "text": '"Ghent"'},
    "spelled": "* GHENT",
    "length": 5,
}


@pytest.fixture
def modules(tmp_path: Path) -> Path:
    """A package beside the pipeline, which is read from `tmp_path`."""
    folder = tmp_path / "cities_of_ours"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "spelling.py").write_text("from . import case\ndef spell(city): return case.up(city)")
    (folder / "case.py").write_text("def up(text): return text.upper()")
    (folder / "rules.py").write_text("SIGN = '* '")
    return folder


@pytest.fixture(autouse=True)
def _imported_anew() -> Any:
    before = list(sys.path)
    yield
    sys.path[:] = before
    for name in [each for each in sys.modules if each.startswith("cities_of_ours")]:
        del sys.modules[name]


@pytest.mark.usefixtures("modules")
@pytest.mark.timeout(300)
def test_workers_have_the_packages_and_the_modules_of_the_pipeline(
    live: Any, pipeline: Any
) -> None:
    live.start(app := pipeline(FUNCTIONS))
    (query,) = live.planned
    assert query.plan.mode == "micro_batch"
    assert "Python function" in query.plan.reason
    live.send("orders", {"id": 1, "city": "Ghent"})
    live.gives(lambda: live.stream("rows"), [ROW])
    assert run(app, {"orders": [{"id": 1, "city": "Ghent"}]}) == {"rows": [ROW]}


def test_a_changed_module_is_a_changed_view(planned: Any, modules: Path) -> None:
    body = f"""{FUNCTIONS}
app.view("plain", sql="SELECT id FROM orders")
"""

    def generations() -> dict[str, str]:
        return {name: query.plan.generation for name, query in planned(body).items()}

    first = generations()
    (modules / "other.py").write_text("that_nobody_imports = 1")
    assert generations() == first
    (modules / "case.py").write_text("def up(text): return text.lower()")
    after = generations()
    assert after["rows"] != first["rows"]
    assert after["plain"] == first["plain"]


@pytest.mark.timeout(300)
def test_a_missing_module_is_named_and_no_event_is_set_aside(live: Any, pipeline: Any) -> None:
    live.start(
        pipeline(f"""{STREAM}
@F.udf("string")
def lacking(city):
    import no_such_module.inside
    return city

@app.view
def rows(orders: DataFrame) -> DataFrame:
    return orders.select(lacking("city").alias("city"))
""")
    )
    live.send("orders", {"id": 1, "city": "Ghent"}, {"id": 2, "city": "Bruges"})
    live.until(lambda: live.queries.counts()["rows"].error)
    counts = live.queries.counts()["rows"]
    assert "needs the module 'no_such_module', which Spark's Python workers do not" in counts.error
    assert counts.broken == 0
    assert not isinstance(live.queries._views["rows"].phase, Searching)


def test_a_missing_dependency_is_not_a_data_error() -> None:
    def raised(error: str) -> str:
        return f"PythonException: \nTraceback (most recent call last):\n  File x, line 1\n{error}\n"

    assert is_data_error(raised("ValueError: no number: 'x'"))
    for error in (
        "ModuleNotFoundError: No module named 'msgspec'",
        "ImportError: cannot import name 'a' from 'b'",
        "pyspark.errors.exceptions.base.PySparkImportError: [PACKAGE_NOT_INSTALLED] Pandas >= 2.2",
        "pyspark.errors.exceptions.base.PySparkRuntimeError: [PYTHON_VERSION_MISMATCH] Python 3.9",
    ):
        assert not is_data_error(raised(error))
        assert missing_dependency(raised(error))


def test_workers_run_our_interpreter_unless_another_is_chosen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    assert python_of(AnalyzeSettings()) == sys.executable
    cluster = AnalyzeSettings(spark_master="spark://127.0.0.1:7077")
    assert python_of(cluster) == "python3"
    chosen = AnalyzeSettings(spark={"spark.pyspark.python": "/opt/python"})
    assert python_of(chosen) == "/opt/python"
    monkeypatch.setenv("PYSPARK_PYTHON", "/usr/bin/other")
    assert python_of(AnalyzeSettings()) == "/usr/bin/other"
