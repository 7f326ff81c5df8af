"""Several workers' answers as one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from millstream.collect.workers.merged import Whole, merge_health, merge_metrics
from millstream.collect.workers.peers import Answer, Siblings
from millstream.values.receipt import Receipt, Receipts
from millstream.web.asgi import Message, Receive, Scope, Send, send_json
from millstream.web.auth.caller import Caller, set_caller

_ONE = """# TYPE millstream_collect_accepted counter
# HELP millstream_collect_accepted Events.
millstream_collect_accepted_total{stream="clicks"} 3
# TYPE millstream_collect_pending_bytes gauge
# HELP millstream_collect_pending_bytes Bytes.
millstream_collect_pending_bytes 0
# EOF
"""


def _health(status: int, pending: int, state: str = "open", **more: Any) -> Answer:
    content = {
        "journal": {"state": state, "pending_entries": pending, "max_bytes": 100},
        "kafka": {"state": "up"},
        **more,
    }
    return Answer(status, [(b"retry-after", b"3")], msgspec.json.encode(content))


def test_each_sample_tells_its_worker_and_a_family_stays_together() -> None:
    text = merge_metrics({0: _ONE, 2: _ONE.replace(" 3", " 4")}, 3)
    assert text.splitlines() == [
        "# TYPE millstream_collect_accepted counter",
        "# HELP millstream_collect_accepted Events.",
        'millstream_collect_accepted_total{worker="0",stream="clicks"} 3',
        'millstream_collect_accepted_total{worker="2",stream="clicks"} 4',
        "# TYPE millstream_collect_pending_bytes gauge",
        "# HELP millstream_collect_pending_bytes Bytes.",
        'millstream_collect_pending_bytes{worker="0"} 0',
        'millstream_collect_pending_bytes{worker="2"} 0',
        "# TYPE millstream_collect_workers gauge",
        "# HELP millstream_collect_workers Processes that this collector has.",
        "millstream_collect_workers 3",
        "# TYPE millstream_collect_workers_answering gauge",
        "# HELP millstream_collect_workers_answering Those whose counts are here.",
        "millstream_collect_workers_answering 2",
        "# EOF",
    ]


def test_what_waits_is_added_up_and_a_silent_worker_is_named() -> None:
    ready, content = merge_health({0: _health(200, 2), 1: None, 2: _health(200, 5)})
    assert ready
    assert content == {
        "status": "ready",
        "journal": {"state": "open", "pending_entries": 7, "max_bytes": 200},
        "kafka": {"state": "up"},
        "workers": [
            {"worker": 0, "state": "ready"},
            {"worker": 1, "state": "silent", "reason": "it does not answer"},
            {"worker": 2, "state": "ready"},
        ],
    }


def test_it_is_ready_as_long_as_one_worker_takes_events_in() -> None:
    full = _health(503, 9, "full", title="…", detail="the journal is full")
    ready, content = merge_health({0: _health(200, 0), 1: full})
    assert ready
    assert content["journal"] == {"state": "full", "pending_entries": 9, "max_bytes": 200}
    assert content["workers"][1]["reason"] == "the journal is full"
    ready, content = merge_health({0: full, 1: full, 2: None})
    assert not ready
    assert content["reason"] == "the journal is full; it does not answer"
    assert content["journal"]["pending_entries"] == 18


@pytest.mark.parametrize(
    ("streams", "status", "asked"), [({"clicks"}, 200, 1), ({"notes"}, 403, 0)]
)
async def test_who_may_not_ask_for_a_receipt_is_refused_before_anything_is_looked_for(
    tmp_path: Path, streams: set[str], status: int, asked: int
) -> None:
    paths: list[str] = []

    async def owner(scope: Scope, receive: Receive, send: Send) -> None:
        paths.append(scope["path"])
        await send_json(send, {"state": "logged"})

    async def nobody(scope: Scope, receive: Receive, send: Send) -> None:
        raise AssertionError("the worker itself has nothing to say of it")

    answers: list[int] = []

    async def send(message: Message) -> None:
        answers.extend([message["status"]] if "status" in message else [])

    async def receive() -> Message:
        return {"type": "http.disconnect"}

    own, other = Siblings(tmp_path, 0, 2), Siblings(tmp_path, 1, 2)
    await other.listen(owner)
    receipts = Receipts(b"key")
    whole = Whole(nobody, own, receipts)
    whole.owners = {"them": 1}
    receipt = receipts.write(Receipt("them", 7, 0, "clicks", 1))
    scope: Scope = {"type": "http", "method": "GET", "path": f"/v1/receipts/{receipt}"}
    set_caller(scope, Caller("key", "shop", frozenset(streams)))
    await whole(scope, receive, send)
    assert (answers, len(paths)) == ([status], asked)
    for each in (own, other):
        await each.close()
