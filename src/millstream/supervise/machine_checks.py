"""The checks of `millstream doctor`: whether this machine has what a run needs."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Literal

from millstream.errors import MillstreamError
from millstream.runtime.ports import holder_of, is_free
from millstream.settings import Settings

GIGABYTE = 1_000_000_000
OLDEST_PYTHON = (3, 11)
PYSPARK = "4.3.0"
MEMORY_NEEDED, DISK_NEEDED = 2 * GIGABYTE, 2 * GIGABYTE
# A wrong clock makes every event late or early. This release did not exist before this time.
RELEASED = time.mktime((2026, 1, 1, 0, 0, 0, 0, 0, 0))


@dataclass(frozen=True, slots=True)
class Check:
    """One result; `remedy` says what to do if it is not good."""

    name: str
    state: Literal["good", "missing", "optional"]  # optional: Millstream runs without it
    found: str
    remedy: str = ""


def checks(settings: Settings, home: Path) -> Iterator[Check]:
    """The results, one after the other. No check changes the machine or raises."""
    yield _python()
    yield _pyspark()
    yield _java()
    yield _jars("broker")
    yield _jars("connector")
    yield _archives()
    yield _shuffle(settings)
    yield _memory()
    yield _disk(home)
    if not settings.log.bootstrap:
        yield _port("kafka", "127.0.0.1", settings.log.port)
    yield _port("collect", settings.collect.host, settings.collect.port)
    yield _port("serve", settings.serve.host, settings.serve.port)
    yield _clock()
    yield _program("node", "Node", "only to build the dashboard: install Node 20 or newer")
    yield _program("chromium", "Chromium", "only for the dashboard's tests: install chromium")


def _check(name: str, good: bool, found: str, remedy: str) -> Check:
    return Check(name, "good" if good else "missing", found, "" if good else remedy)


def _python() -> Check:
    wanted = ".".join(map(str, OLDEST_PYTHON))
    good = sys.version_info >= OLDEST_PYTHON
    return _check("Python", good, platform.python_version(), f"install Python {wanted} or newer")


def _pyspark() -> Check:
    try:
        version = metadata.version("pyspark")
    except metadata.PackageNotFoundError:
        version = "not installed"
    remedy = f"install pyspark=={PYSPARK}: only that release runs aggregations in real-time mode"
    return _check("pyspark", version == PYSPARK, version, remedy)


def _java() -> Check:
    from millstream.runtime.java import find_java, java_version

    try:
        path = find_java()
    except MillstreamError as error:
        return Check("Java", "missing", error.message, error.remedy)
    return Check("Java", "good", f"{java_version(path)} ({path})")


def _jars(group: Literal["broker", "connector"]) -> Check:
    from millstream.runtime.jars import cache_folder, locked, sha256_of

    folder = cache_folder()
    wanted = locked(group)
    absent = [jar for jar in wanted if not (folder / jar.file_name).exists()]
    damaged = [
        jar.file_name
        for jar in wanted
        if jar not in absent and sha256_of(folder / jar.file_name) != jar.sha256
    ]
    name = f"jars: {group}"
    if damaged:
        files = ", ".join(damaged)
        return Check(name, "missing", f"damaged: {files}", f"delete them in {folder}")
    if absent:
        found = f"{len(absent)} of {len(wanted)} not yet in {folder}"
        return Check(name, "optional", found, "the first `millstream run` fetches them")
    return Check(name, "good", f"{len(wanted)} in {folder}, checksums right")


def _archives() -> Check:
    from millstream.analyze.spark import driver
    from millstream.runtime.class_archive import ClassArchive
    from millstream.runtime.jars import cache_folder, locked
    from millstream.runtime.java import find_java

    files = [cache_folder() / jar.file_name for jar in locked("broker")]
    try:
        kafka = ClassArchive("kafka", find_java(), files).find()
        good = bool(kafka and driver.class_archive(make=False).find())
    except (MillstreamError, OSError):
        good = False
    if good:
        return Check("class archives", "good", "of Kafka and Spark, checksums right")
    found = "none for this Java and these jars: Kafka and Spark start more slowly"
    return Check("class archives", "optional", found, "`millstream prepare` creates them")


def _shuffle(settings: Settings) -> Check:
    from millstream.analyze.spark import driver
    from millstream.analyze.spark.bind_address import why_unbound

    name = "Spark's real-time shuffle"
    exposed = "listens on all addresses, without authentication"
    if settings.analyze.spark_master:
        remedy = "use a firewall: only the driver and the workers may reach the workers' ports"
        return Check(name, "optional", f"on a cluster, each worker {exposed}", remedy)
    if why := why_unbound(driver.spark_jars()):
        remedy = "use a firewall to close this machine's ports to others"
        return Check(name, "optional", f"{exposed}: {why}", remedy)
    return Check(name, "good", "listens on the driver's address only (127.0.0.1)")


def _memory() -> Check:
    available = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            available = int(line.split()[1]) * 1024
    found = f"{available / GIGABYTE:.1f} GB available"
    remedy = (
        f"close other programs: Kafka and Spark need {MEMORY_NEEDED / GIGABYTE:.0f} GB together"
    )
    return _check("memory", available >= MEMORY_NEEDED, found, remedy)


def _disk(home: Path) -> Check:
    folder = home.absolute()
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    if not os.access(folder, os.W_OK):
        return Check("disk", "missing", f"{folder} is not writable", "choose another --home")
    remedy = "free some space, or choose a --home on another disk"
    return _check("disk", free >= DISK_NEEDED, f"{free / GIGABYTE:.0f} GB free in {folder}", remedy)


def _port(tier: str, host: str, port: int) -> Check:
    name = f"port of {tier}"
    if port == 0 or is_free(host, port):
        return Check(name, "good", f"{port or 'any'} is free")
    found = f"{port} is taken by {holder_of(port) or 'another process'}"
    return Check(name, "missing", found, f"stop it, or use --{tier}-port (0: any free one)")


def _clock() -> Check:
    now = time.time()
    found = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(now))
    return _check("clock", now > RELEASED, found, "set the clock: events carry its time")


def _program(command: str, name: str, remedy: str) -> Check:
    path = shutil.which(command)
    if path is None:
        return Check(name, "optional", "not found", remedy)
    return Check(name, "good", _version_of(path) or path)


def _version_of(path: str) -> str:
    try:
        answer = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return answer.stdout.strip().partition("\n")[0]
