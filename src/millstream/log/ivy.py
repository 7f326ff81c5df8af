"""The Ivy inside pyspark, which fetches jars from its own default repositories."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from xml.sax.saxutils import quoteattr

from millstream.errors import JarError
from millstream.log.java import find_java

_DESCRIPTION = """<ivy-module version="2.0">
  <info organisation="millstream" module="{title}"/>
  <configurations><conf name="default"/></configurations>
  <dependencies>
{dependencies}
  </dependencies>
</ivy-module>
"""
_DOWNLOAD = re.compile(r"^downloading .*/(?P<file>[^/]+\.jar)")
_EVERY = 1.0  # seconds between lines of progress


def retrieve(
    coordinates: list[str],
    folder: Path,
    *,
    transitive: bool,
    title: str,
    report: Callable[[str], None],
) -> dict[str, Path]:
    """Fetch these jars (and what they depend on, if transitive) below `folder`; coordinates → path.

    Blocks for as long as the network takes. Ivy's own cache lies in `folder` too: a damaged one in
    the user's home cannot spoil what we get.
    """
    java = find_java()
    description = folder / "ivy.xml"
    description.write_text(
        _DESCRIPTION.format(
            title=title, dependencies="\n".join(_dependency(c, transitive) for c in coordinates)
        )
    )
    retrieved = folder / "retrieved"
    command = [
        *[java, f"-Divy.default.ivy.user.dir={folder / 'user'}", "-cp", _ivy_jar()],
        *["org.apache.ivy.Main", "-cache", folder / "cache", "-ivy", description],
        *["-confs", "default", "-types", "jar", "bundle"],
        *["-retrieve", f"{retrieved}/[organisation]/[module]/[revision]/[artifact].[ext]"],
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
        "conf": f"default->{'default' if transitive else 'master'}",
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
    output, downloaded, told = [], 0, time.monotonic()
    report(f"fetching the {title}'s jars (once; kept in a cache) …")
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            output.append(line.strip())
            match = _DOWNLOAD.match(line)
            downloaded += bool(match)
            if match and time.monotonic() - told > _EVERY:
                told = time.monotonic()
                report(
                    f"  {title} jar {downloaded} of {max(expected, downloaded)}: {match['file']}"
                )
    if process.returncode != 0:
        raise JarError(f"cannot fetch the {title}'s jars: {_cause(output)}", remedy=_remedy(output))


def _cause(output: list[str]) -> str:
    # Ivy ends with a table of what it could not find; the reason stands in the lines before it.
    for line in output:
        if "UnknownHost" in line or "Connect" in line or "timed out" in line:
            return f"no connection to Ivy's repository ({line.split('Exception: ')[-1][:120]})"
    missing = [line for line in output if "not found" in line or "UNRESOLVED" in line]
    return (missing or output or ["Ivy said nothing"])[-1].strip(": ")[:200]


def _remedy(output: list[str]) -> str:
    return (
        "check the network; behind a proxy set "
        "JAVA_TOOL_OPTIONS='-Dhttps.proxyHost=HOST -Dhttps.proxyPort=PORT'"
    )
