"""Python functions in Spark's workers: the interpreter, the user's modules, missing packages."""

from __future__ import annotations

import hashlib
import os
import re
import sys
import tempfile
import zipfile
from pathlib import Path

from pyspark.sql import SparkSession

from millstream.analyze.settings import AnalyzeSettings
from millstream.pipeline.app import App
from millstream.pipeline.imports import imported_modules

# Errors of a worker that lacks something; every event causes them.
_MISSING_MODULE = re.compile(r"^\s*ModuleNotFoundError: No module named '([^']+)'", re.MULTILINE)
_MISSING = re.compile(
    r"^\s*(?:[\w.]+\.)?((?:ImportError|PySparkImportError): .+|"
    r"\w+: \[(?:PYTHON_VERSION_MISMATCH|PACKAGE_NOT_INSTALLED|UNSUPPORTED_PACKAGE_VERSION)\].+)",
    re.MULTILINE,
)
_EPOCH = (1980, 1, 1, 0, 0, 0)  # the earliest time that a zip file can hold
# A cluster's executors fetch the archives when they start, so they stay until this process ends.
_ARCHIVES: list[tempfile.TemporaryDirectory[str]] = []


def python_of(settings: AnalyzeSettings) -> str:
    """The interpreter of Spark's workers: the user's choice, or on this machine our own."""
    chosen = settings.spark.get("spark.pyspark.python") or os.environ.get("PYSPARK_PYTHON")
    is_here = (settings.spark_master or "local").startswith("local")
    return chosen or (sys.executable if is_here else "python3")


def modules_of(app: App, file: Path | str) -> dict[str, Path]:
    """The user's modules that a file of the app's pipeline imports."""
    return imported_modules(Path(file), Path(app.location.file).parent)


def ship_modules(spark: SparkSession, app: App) -> None:
    """Make the modules beside the pipeline importable in all workers, also on a cluster."""
    files = {app.location.file, *(view.location.file for view in app.views.values())}
    modules = {name: path for file in files for name, path in modules_of(app, file).items()}
    if not modules:
        return
    contents = {name: path.read_bytes() for name, path in sorted(modules.items())}
    digest = hashlib.sha256(repr(list(contents.items())).encode()).hexdigest()[:16]
    name, context = f"millstream_modules_{digest}.zip", spark.sparkContext
    if name in (context._python_includes or ()):
        return
    folder = tempfile.TemporaryDirectory(
        prefix="millstream-modules-", dir=context.getConf().get("spark.local.dir")
    )
    _ARCHIVES.append(folder)
    archive = Path(folder.name, name)
    with zipfile.ZipFile(archive, "w") as packed:
        for path, content in contents.items():
            packed.writestr(zipfile.ZipInfo(path, _EPOCH), content)
    context.addPyFile(str(archive))


def missing_dependency(text: str) -> str:
    """What the workers lack to run a view's Python; empty if the text says nothing of that.

    Every event would fail in the same way.
    """
    if missing := _MISSING_MODULE.findall(text):
        module = missing[-1]
        return (
            f"its Python function needs the module {module!r}, which Spark's Python workers do not"
            f" have; install the package that has it where they run, or put {module.split('.')[0]}"
            ".py beside the pipeline"
        )
    if missing := _MISSING.findall(text):
        return f"Spark's Python workers cannot run its function: {missing[-1].strip()}"
    return ""
