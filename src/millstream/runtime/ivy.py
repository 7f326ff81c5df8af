"""Fetches jars with the Ivy in pyspark, from its default repositories."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from xml.sax.saxutils import quoteattr

from millstream.errors import JarError
from millstream.runtime.java import find_java

_DESCRIPTION = """<ivy-module version="2.0">
  <info organisation="millstream" module="{title}"/>
  <configurations><conf name="default"/></configurations>
  <dependencies>
{dependencies}
  </dependencies>
</ivy-module>
"""
# For jars that are listed one by one: no POM is read, which would take most of the time. The public
# repository is Ivy's default.
_SETTINGS = """<ivysettings>
  <include url="${ivy.default.settings.dir}/ivysettings-shared.xml"/>
  <settings defaultResolver="all"/>
  <resolvers>
    <chain name="all" returnFirst="true">
      <resolver ref="shared"/>
      <ibiblio name="public" m2compatible="true" usepoms="false"/>
    </chain>
  </resolvers>
</ivysettings>
"""
_DOWNLOAD = re.compile(r"^downloading .*/(?P<file>[^/]+\.jar)")
_NO_ACCESS = re.compile(r"Server access error.*\((?:[\w.]+: )?(.+)\)$", re.IGNORECASE)
_PROGRESS_SECONDS = 2.0


def retrieve(
    coordinates: list[str],
    folder: Path,
    *,
    transitive: bool,
    title: str,
    report: Callable[[str], None],
) -> dict[str, Path]:
    """Fetch jars, with dependencies if `transitive`, into `folder`; returns path by coordinates.

    Blocks as long as the network takes. Ivy's cache is in `folder`, too: a damaged cache in the
    user's home has no effect.
    """
    java = find_java()
    description = folder / "ivy.xml"
    description.write_text(
        _DESCRIPTION.format(
            title=title, dependencies="\n".join(_dependency(c, transitive) for c in coordinates)
        )
    )
    settings = folder / "settings.xml"
    settings.write_text(_SETTINGS)
    retrieved = folder / "retrieved"
    command = [
        java,
        f"-Divy.default.ivy.user.dir={folder / 'user'}",
        "-cp",
        _ivy_jar(),
        "org.apache.ivy.Main",
        "-cache",
        folder / "cache",
        "-ivy",
        description,
        *([] if transitive else ["-settings", settings]),
        "-confs",
        "default",
        "-types",
        "jar",
        "bundle",
        "-retrieve",
        f"{retrieved}/[organisation]/[module]/[revision]/[artifact].[ext]",
    ]
    _run([str(part) for part in command], title, len(coordinates), report)
    return {
        f"{path.parts[-4]}:{path.parts[-3]}:{path.parts[-2]}": path
        for path in retrieved.glob("*/*/*/*.jar")
    }


def _dependency(coordinates: str, transitive: bool) -> str:
    organisation, name, version = coordinates.split(":")
    attributes = {
        "org": organisation,
        "name": name,
        "rev": version,
        "conf": "default->default",
        "transitive": str(transitive).lower(),
    }
    return f"    <dependency {' '.join(f'{k}={quoteattr(v)}' for k, v in attributes.items())}/>"


def _ivy_jar() -> Path:
    spark = importlib.util.find_spec("pyspark")
    folder = Path(spark.origin).parent / "jars" if spark and spark.origin else Path()
    for path in folder.glob("ivy-*.jar"):
        return path
    raise JarError(f"cannot fetch jars: no ivy-*.jar in {folder}", remedy="reinstall pyspark")


def _run(command: list[str], title: str, expected: int, report: Callable[[str], None]) -> None:
    report(f"fetching the {title}'s jars (once; kept in a cache) …")
    began = time.monotonic()
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    ) as process:
        output: list[str] = []
        listener = threading.Thread(target=_listen, args=(process, output), daemon=True)
        listener.start()
        while listener.is_alive():
            listener.join(_PROGRESS_SECONDS)
            if listener.is_alive():
                report(f"  {_progress(output, expected)} ({time.monotonic() - began:.0f} s)")
    if process.returncode != 0:
        raise _failure(title, output)


def _listen(process: subprocess.Popen[str], output: list[str]) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        output.append(line.strip())


def _progress(output: list[str], expected: int) -> str:
    files = [match["file"] for line in tuple(output) if (match := _DOWNLOAD.match(line))]
    if not files:
        return "asking which files there are"
    return f"jar {len(files)} of {max(expected, len(files))}: {files[-1]}"


def _failure(title: str, output: list[str]) -> JarError:
    # Ivy ends with a table of missing jars; the reason is in an earlier line.
    for line in output:
        if match := _NO_ACCESS.search(line):
            return JarError(
                f"cannot fetch the {title}'s jars: no connection to Ivy's repository ({match[1]})",
                remedy="check the network; behind a proxy set "
                "JAVA_TOOL_OPTIONS='-Dhttps.proxyHost=HOST -Dhttps.proxyPort=PORT'",
            )
    missing = [line.strip(": ") for line in output if line.endswith("not found")]
    why = ", ".join(missing) or (output or ["Ivy said nothing"])[-1]
    return JarError(f"cannot fetch the {title}'s jars: {why[:300]}")
