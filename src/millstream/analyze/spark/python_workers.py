"""Python functions in Spark's workers: their interpreter, the user's modules, what is missing."""

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

# What a worker raises when it lacks something, whatever event it is given.
_LACKS_MODULE = re.compile(r"^\s*ModuleNotFoundError: No module named '([^']+)'", re.MULTILINE)
_LACKS = re.compile(
    r"^\s*(?:[\w.]+\.)?((?:ImportError|PySparkImportError): .+|"
    r"\w+: \[(?:PYTHON_VERSION_MISMATCH|PACKAGE_NOT_INSTALLED|UNSUPPORTED_PACKAGE_VERSION)\].+)",
    re.MULTILINE,
)
_EPOCH = (1980, 1, 1, 0, 0, 0)  # the earliest time that a zip file can hold
# A cluster's executors fetch the archive when they start: it stays until this process ends.
_SERVED: list[tempfile.TemporaryDirectory[str]] = []


def python_of(settings: AnalyzeSettings) -> str:
    """The interpreter of Spark's workers: on this machine ours, unless the user says another."""
    chosen = settings.spark.get("spark.pyspark.python") or os.environ.get("PYSPARK_PYTHON")
    is_here = (settings.spark_master or "local").startswith("local")
    return chosen or (sys.executable if is_here else "python3")


def modules_of(app: App, file: Path | str) -> dict[str, Path]:
    """The user's modules that a file of the app's pipeline imports."""
    return imported_modules(Path(file), Path(app.location.file).parent)


def ship_modules(spark: SparkSession, app: App) -> None:
    """Make the modules beside the pipeline importable in every worker, on a cluster too."""
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
    _SERVED.append(folder)
    archive = Path(folder.name, name)
    with zipfile.ZipFile(archive, "w") as packed:
        for path, content in contents.items():
            packed.writestr(zipfile.ZipInfo(path, _EPOCH), content)
    context.addPyFile(str(archive))


def blame_environment(text: str) -> str:
    """Why workers cannot run a view's Python, if they lack something; else nothing.

    The events are not to blame: each of them would fail in the same way.
    """
    if lacking := _LACKS_MODULE.findall(text):
        module = lacking[-1]
        return (
            f"its Python function needs the module {module!r}, which Spark's Python workers do not"
            f" have; install the package that has it where they run, or put {module.split('.')[0]}"
            ".py beside the pipeline"
        )
    if lacking := _LACKS.findall(text):
        return f"Spark's Python workers cannot run its function: {lacking[-1].strip()}"
    return ""
