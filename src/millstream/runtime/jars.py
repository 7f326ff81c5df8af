"""The jars of the broker and of Spark's Kafka connector: locked, fetched once, always verified.

`jars.lock` lists every jar with its SHA-256. Missing jars are fetched by the Ivy in pyspark, so
that no Maven is needed, into a cache that all of a user's projects share.

    python -m millstream.runtime.jars lock    write a new jars.lock from ROOTS
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import sys
import tempfile
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Literal

from millstream.errors import JarError, MillstreamError
from millstream.runtime import ivy

Group = Literal["broker", "connector"]
Report = Callable[[str], None]  # called with one line of progress

# The direct dependencies; the lock has all of them. The connector's jars are listed one by one,
# because it depends on a token provider of its own version, which was never published.
ROOTS: dict[Group, tuple[bool, list[str]]] = {
    "broker": (
        True,
        [
            "org.apache.kafka:kafka_2.13:4.3.1",
            "org.apache.logging.log4j:log4j-slf4j-impl:2.25.4",
        ],
    ),
    "connector": (
        False,
        [
            "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0",
            "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.0.0",
            "org.apache.kafka:kafka-clients:3.9.2",
            "org.apache.commons:commons-pool2:2.13.1",
        ],
    ),
}


@dataclass(frozen=True, slots=True)
class Jar:
    """One locked jar."""

    coordinates: str  # organisation:name:version
    sha256: str

    @property
    def file_name(self) -> str:
        _, name, version = self.coordinates.split(":")
        return f"{name}-{version}.jar"


def jars(group: Group, report: Report | None = None) -> list[Path]:
    """The paths of a group's jars, all verified; missing ones are fetched first.

    Blocks: 0.1 s when cached, half a minute the first time. Many processes may call it at once.
    JarError if a jar cannot be fetched or does not match the lock.
    """
    wanted, cache = locked(group), cache_folder()
    if _unfit(wanted, cache):
        with _only_one_fetcher(cache, report or _silent):
            _fetch(group, _unfit(wanted, cache), cache, report or _silent)
    return [cache / jar.file_name for jar in wanted]


def locked(group: Group) -> list[Jar]:
    """The jars in the lock."""
    table = tomllib.loads(resources.files(__package__).joinpath("jars.lock").read_text())
    return [Jar(coordinates, sha256) for coordinates, sha256 in table[group].items()]


def cache_folder() -> Path:
    """The folder of this user's jars."""
    if own := os.environ.get("MILLSTREAM_CACHE"):
        return Path(own).absolute() / "jars"
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base).absolute() / "millstream" / "jars"


def _unfit(wanted: list[Jar], folder: Path) -> list[Jar]:
    return [jar for jar in wanted if sha256_of(folder / jar.file_name) != jar.sha256]


def _fetch(group: Group, missing: list[Jar], cache: Path, report: Report) -> None:
    if not missing:  # another process has fetched them meanwhile
        return
    for jar in missing:
        if (cache / jar.file_name).exists():
            report(f"{jar.file_name} in {cache} is damaged: fetching it again")
    with tempfile.TemporaryDirectory(prefix="fetching-", dir=cache) as folder:
        staged = Path(folder)
        found = ivy.retrieve(
            [jar.coordinates for jar in missing],
            staged,
            transitive=False,
            title=group,
            report=report,
        )
        for jar in missing:
            path = found.get(jar.coordinates)
            if path is None:
                raise JarError(f"cannot fetch {jar.coordinates}: Ivy did not deliver it")
            if (actual := sha256_of(path)) != jar.sha256:
                raise JarError(
                    f"refused {jar.coordinates}: SHA-256 is {actual}, the lock says {jar.sha256}",
                    remedy="do not use this network's copy; try another network or proxy",
                )
            path.replace(cache / jar.file_name)


@contextlib.contextmanager
def _only_one_fetcher(cache: Path, report: Report) -> Iterator[None]:
    try:
        cache.mkdir(parents=True, exist_ok=True)
        guard = (cache / "fetch.lock").open("a", encoding="utf-8")
    except OSError as error:
        raise JarError(
            f"cannot store jars in {cache}: {error.strerror}",
            remedy="make it writable, or name another folder in MILLSTREAM_CACHE",
        ) from error
    with guard:
        try:
            fcntl.flock(guard, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            report("another process is fetching jars: waiting for it")
            fcntl.flock(guard, fcntl.LOCK_EX)
        for leftover in cache.glob("fetching-*"):  # of a process that was killed
            shutil.rmtree(leftover, ignore_errors=True)
        yield


def sha256_of(path: Path) -> str:
    """The file's SHA-256 in hexadecimal; empty if it cannot be read."""
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return ""


def _silent(_: str) -> None:
    pass


def make_lock(report: Report) -> str:
    """The text of a new lock, resolved from ROOTS."""
    lines = ["# Made by `python -m millstream.runtime.jars lock`. Coordinates = SHA-256."]
    for group, (transitive, roots) in ROOTS.items():
        with tempfile.TemporaryDirectory() as folder:
            found = ivy.retrieve(
                roots, Path(folder), transitive=transitive, title=group, report=report
            )
            hashes = {coordinates: sha256_of(path) for coordinates, path in sorted(found.items())}
        lines += ["", f"[{group}]"]
        lines += [f'"{coordinates}" = "{sha256}"' for coordinates, sha256 in hashes.items()]
    return "\n".join(lines) + "\n"


def main(arguments: list[str]) -> int:
    """The command line: `lock`."""

    def report(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    try:
        match arguments:
            case ["lock"]:
                Path(__file__).with_name("jars.lock").write_text(make_lock(report))
            case _:
                report("usage: python -m millstream.runtime.jars lock")
                return 2
    except MillstreamError as error:
        report(f"error: {error}")
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
