"""Health and metrics of the collector processes that share a port, whichever of them is asked.

The kernel gives a connection to any of them. So each process publishes its own health and metrics
in a file of the home every second, and each answers for all.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from millstream.runtime.home import Home

_EVERY_SECONDS = 1.0
_SILENT_SECONDS = 4.0  # without a fresh file
_WELL = ("open", "up", "ready")
_PREFIX = "millstream_collect_"


class Published(msgspec.Struct, frozen=True):
    """The health and metrics of one process."""

    reason: str  # why it accepts no events; empty if it does
    details: dict[str, Any]
    metrics: str


class Merged(NamedTuple):
    """The health of all processes."""

    reason: str  # why none of them accepts events; empty if one does
    details: dict[str, Any]


class Peers:
    """The processes that share the port: this one is number `worker` of `workers`."""

    def __init__(self, folder: Path, worker: int, workers: int) -> None:
        self._folder, self._worker, self._workers = folder, worker, workers

    async def publish(self, own: Callable[[], Published]) -> None:
        """Write this process's health and metrics every second, until cancelled."""
        await asyncio.to_thread(self._folder.mkdir, mode=0o700, parents=True, exist_ok=True)
        while True:
            content = msgspec.json.encode(own())
            await asyncio.to_thread(_replace, self._file(self._worker), content)
            await asyncio.sleep(_EVERY_SECONDS)

    def health(self, own: Published) -> Merged:
        """Ready as long as one process accepts events. Blocks for the time of some small reads."""
        return merge_health(self._all(own))

    def metrics(self, own: Published) -> str:
        """The metrics of all processes, each sample with its process. Blocks likewise."""
        texts = {number: each.metrics for number, each in self._all(own).items() if each}
        return merge_metrics(texts, self._workers)

    def _all(self, own: Published) -> dict[int, Published | None]:
        return {
            number: own if number == self._worker else self._read(number)
            for number in range(self._workers)
        }

    def _read(self, number: int) -> Published | None:
        path = self._file(number)
        try:
            if time.time() - path.stat().st_mtime > _SILENT_SECONDS:
                return None
            return msgspec.json.decode(path.read_bytes(), type=Published)
        except (OSError, msgspec.MsgspecError):
            return None

    def _file(self, number: int) -> Path:
        return self._folder / f"{number}.json"


def _replace(path: Path, content: bytes) -> None:
    with contextlib.suppress(OSError):  # a full disk: others report this process as silent
        Home.replace_file(path, content)


def merge_metrics(texts: Mapping[int, str], workers: int) -> str:
    """The OpenMetrics of several processes as one text, in which each sample names its process.

    Nothing is added up: a reader can add up counts, and must not add up latencies.
    """
    families: dict[str, tuple[list[str], list[str]]] = {}
    for worker, text in texts.items():
        heads: list[str] = []
        samples: list[str] = []
        for line in text.splitlines():
            if line.startswith("# TYPE "):
                heads, samples = families.setdefault(line.split()[2], ([], []))
            if line == "# EOF":
                continue
            if not line.startswith("#"):
                samples.append(_labelled(line, worker))
            elif line not in heads:
                heads.append(line)
    lines = [each for head, samples in families.values() for each in (*head, *samples)]
    for name, text, value in (
        ("workers", "Processes that share the port", workers),
        ("workers_answering", "Those whose counts are here", len(texts)),
    ):
        lines += [f"# TYPE {_PREFIX}{name} gauge", f"# HELP {_PREFIX}{name} {text}."]
        lines.append(f"{_PREFIX}{name} {value}")
    return "\n".join([*lines, "# EOF"]) + "\n"


def _labelled(sample: str, worker: int) -> str:
    name, brace, rest = sample.partition("{")
    if brace:
        return f'{name}{{worker="{worker}",{rest}'
    name, _, value = sample.partition(" ")
    return f'{name}{{worker="{worker}"}} {value}'


def merge_health(published: Mapping[int, Published | None]) -> Merged:
    """Whether any process accepts events, and the state of all."""
    workers: list[dict[str, Any]] = []
    for worker, each in published.items():
        if each is None:
            workers.append({"worker": worker, "state": "silent", "reason": "it does not answer"})
        elif each.reason:
            workers.append({"worker": worker, "state": "not ready", "reason": each.reason})
        else:
            workers.append({"worker": worker, "state": "ready"})
    details = _merged([each.details for each in published.values() if each is not None])
    reasons = dict.fromkeys(each["reason"] for each in workers if "reason" in each)
    is_ready = any(each["state"] == "ready" for each in workers)
    return Merged("" if is_ready else "; ".join(reasons), {**details, "workers": workers})


def _merged(values: list[Any]) -> Any:
    """Numbers added up, lists joined; of several states, one that is not well."""
    first = values[0]
    if isinstance(first, dict):
        names = dict.fromkeys(name for value in values for name in value)
        return {name: _merged([v[name] for v in values if name in v]) for name in names}
    if isinstance(first, list):
        return [each for value in values for each in value]
    if isinstance(first, int | float) and not isinstance(first, bool):
        return sum(values)
    return next((value for value in values if value not in _WELL), first)
