"""Answers for a whole collector, whichever of its workers is asked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from millstream.collect.workers.peers import Answer, Siblings, get
from millstream.values.receipt import Receipts
from millstream.web.asgi import (
    Application,
    Receive,
    Scope,
    Send,
    send_json,
    send_problem,
    send_response,
)
from millstream.web.auth.caller import check_writes
from millstream.web.problem import Problem

_SECONDS = 0.5  # for the others to answer; who asks for health waits a second, often
_LOOKUP_SECONDS = 15.0  # a search of the log takes up to 5, and waits for others
_RECEIPTS = "/v1/receipts/"
_WELL = ("open", "up", "ready")
_PREFIX = "millstream_collect_"


class Whole:
    """Stands before a worker's application, and asks the siblings where one cannot know alone."""

    def __init__(self, inner: Application, siblings: Siblings, receipts: Receipts) -> None:
        self._inner = inner
        self._siblings = siblings
        self._receipts = receipts
        self.owners: Mapping[str, int] = {}  # a collector's identity → the worker that has it

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path: str = scope.get("path", "")
        try:
            if scope.get("method") not in ("GET", "HEAD"):
                await self._inner(scope, receive, send)
            elif path == "/metrics":
                await self._metrics(send)
            elif path == "/health/ready":
                await self._health(send)
            elif not path.startswith(_RECEIPTS) or not await self._look_up(path, scope, send):
                await self._inner(scope, receive, send)
        except Problem as problem:
            await send_problem(send, problem)

    async def _metrics(self, send: Send) -> None:
        answers = await self._all("/metrics")
        texts = {
            worker: each.body.decode()
            for worker, each in answers.items()
            if each is not None and each.status == 200
        }
        headers = dict((answers[self._siblings.worker] or Answer(200, [], b"")).headers)
        text = merge_metrics(texts, self._siblings.workers)
        await send_response(send, 200, text.encode(), headers.get(b"content-type", b"text/plain"))

    async def _health(self, send: Send) -> None:
        answers = await self._all("/health/ready")
        ready, content = merge_health(answers)
        if ready:
            await send_json(send, content)
            return
        retry = [
            header
            for each in answers.values()
            if each is not None
            for header in each.headers
            if header[0] == b"retry-after"
        ]
        raise Problem(503, content.pop("reason"), headers=retry[:1], **content)

    async def _look_up(self, path: str, scope: Scope, send: Send) -> bool:
        """Let the worker answer whose journal an event came in with; False if it cannot.

        It knows most; without it we look into the log, as for any other collector.
        """
        receipt = self._receipts.read(path[len(_RECEIPTS) :])
        worker = self.owners.get(receipt.collector) if receipt is not None else None
        if worker is None or worker == self._siblings.worker:
            return False
        assert receipt is not None
        check_writes(scope, receipt.stream)  # before anything is looked for
        found = await self._siblings.ask(worker, path, _LOOKUP_SECONDS)
        if found is None or found.status >= 500:
            return False
        headers = dict(found.headers)
        await send_response(send, found.status, found.body, headers[b"content-type"])
        return True

    async def _all(self, path: str) -> dict[int, Answer | None]:
        answers = await self._siblings.ask_all(path, _SECONDS)
        answers[self._siblings.worker] = await get(self._inner, path)
        return dict(sorted(answers.items()))


def merge_metrics(texts: Mapping[int, str], workers: int) -> str:
    """Several workers' OpenMetrics as one: each sample says whose it is.

    Nothing is added up: a reader can do so with counts, and must not with latencies.
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
        ("workers", "Processes that this collector has", workers),
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


def merge_health(answers: Mapping[int, Answer | None]) -> tuple[bool, dict[str, Any]]:
    """Whether any worker takes events in, and how all are; `reason` is there if none does."""
    workers: list[dict[str, Any]] = []
    details: list[dict[str, Any]] = []
    for worker, said in answers.items():
        if said is None:
            workers.append({"worker": worker, "state": "silent", "reason": "it does not answer"})
            continue
        content = said.json()
        if said.status == 200:
            workers.append({"worker": worker, "state": "ready"})
        else:
            workers.append({"worker": worker, "state": "not ready", "reason": content["detail"]})
        details.append(
            {name: value for name, value in content.items() if isinstance(value, dict | list)}
        )
    merged: dict[str, Any] = {**_merged(details), "workers": workers}
    if any(each["state"] == "ready" for each in workers):
        return True, {"status": "ready", **merged}
    reasons = dict.fromkeys(each["reason"] for each in workers)
    return False, {"reason": "; ".join(reasons), **merged}


def _merged(values: list[Any]) -> Any:
    """Numbers added up, lists put together, of words the one that is not well."""
    first = values[0]
    if isinstance(first, dict):
        names = dict.fromkeys(name for value in values for name in value)
        return {name: _merged([v[name] for v in values if name in v]) for name in names}
    if isinstance(first, list):
        return [each for value in values for each in value]
    if isinstance(first, int | float) and not isinstance(first, bool):
        return sum(values)
    return next((value for value in values if value not in _WELL), first)
