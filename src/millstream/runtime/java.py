"""The Java that runs the broker, Spark and Ivy."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

from millstream.errors import MachineError

OLDEST = 17
_REMEDY = f"install a JDK {OLDEST} or newer (Debian: apt-get install openjdk-17-jre-headless)"


def find_java() -> Path:
    """The path of `java`, from JAVA_HOME or PATH; MachineError if it is missing or too old."""
    home = os.environ.get("JAVA_HOME")
    found = shutil.which("java", path=f"{home}/bin" if home else None)
    if found is None:
        where = f"JAVA_HOME ({home}/bin)" if home else "PATH"
        raise MachineError(f"cannot find Java: no `java` in {where}", remedy=_REMEDY)
    version = java_version(Path(found))
    if version < OLDEST:
        raise MachineError(
            f"cannot use {found}: it is Java {version or 'of an unknown version'}", remedy=_REMEDY
        )
    return Path(found)


def java_version(java: Path) -> int:
    """The feature release (8, 17, 21 …) of a `java`; 0 if unknown."""
    try:
        answer = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return 0
    match = re.search(r'version "(?:1\.)?(\d+)', answer.stderr)
    return int(match[1]) if match and answer.returncode == 0 else 0
