"""`verify` compares shown rows and ledgers with the query in batch."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Producer
from tests.analyze.commands import Commands
from tests.analyze.conftest import RunningUpkeep, read_topic

from millstream.analyze.verify.result import PartResult
from millstream.analyze.verify.shown_check import is_due
from millstream.cli.views.verify import part_note
from millstream.log.connection import client_config
from millstream.log.producing.write import write
from millstream.log.topic_names import ledger_topic, stream_topic, view_topic
from millstream.pipeline.trigger import parse_trigger
from millstream.values.event import ID, WATERMARK
from millstream.values.ledger_entry import LedgerEntry, encode

if TYPE_CHECKING:
    from tests.analyze.conftest import Live, Load

PIPELINE = """
app.stream("clicks", schema="page STRING, at TIMESTAMP, price DOUBLE", event_time="at",
           lateness="1 hour")

def view(name, **options):
    app.view(name, key=["window", "page"], **options, sql='''
        SELECT window(at, '1 minute') AS window, page, count(*) AS n, sum(price) AS total
        FROM clicks GROUP BY 1, 2''')

view("paid", ledger=["n", "total"])
view("delayed", trigger="at the watermark", accumulation="discard", ledger="n")
view("busy", trigger="when n > 2", accumulation="retract", ledger="n")
"""
FIRST = {"start": "2026-01-01T00:00:00.000000Z", "end": "2026-01-01T00:01:00.000000Z"}
SECOND = {"start": "2026-01-01T00:01:00.000000Z", "end": "2026-01-01T00:02:00.000000Z"}
WATERMARK_THEN = "1767225670000"  # a minute and ten seconds into that year


class Clicks:
    """A pipeline whose first minute is over, with a correction, and whose second is not."""

    def __init__(self, live: Live, app: Any) -> None:
        self.live = live
        live.start(app)
        self._producer = Producer(client_config(live.settings.log, linger_ms=0))
        analyze = live.settings.analyze.model_copy(update={"idle": "5 minutes"})
        settings = live.settings.model_copy(update={"analyze": analyze})
        self.upkeep = RunningUpkeep(settings, app, live.planned)
        self._is_settled = False

    def run(self) -> None:
        self._send(*[("a", "00:10", price) for price in (0.1, 0.2, 0.3)], ("b", "00:20", 1))
        self.live.gives(lambda: self._states("n"), self._all({"a0": 3, "b0": 1}), 240)
        self._send(("a", "01:10", 5))
        final = {"a0": "final", "b0": "final", "a1": None}
        self.live.gives(lambda: self._states("_state"), self._all(final))
        self._send(("a", "00:30", 0.7), **{ID: "late", WATERMARK: WATERMARK_THEN})
        corrected = {**final, "a0": "corrected"}
        self.live.gives(lambda: self._states("_state"), self._all(corrected))

    def _all(self, rows: dict[str, Any]) -> dict[str, dict[str, Any]]:
        return {query.plan.name: rows for query in self.live.planned}

    def _send(self, *events: tuple[str, str, float], **headers: str) -> None:
        topic = stream_topic(self.live.app.name, "clicks")
        for page, at, price in events:
            event = {"page": page, "at": f"2026-01-01T00:{at}Z", "price": price}
            self._producer.produce(topic, json.dumps(event), "k", headers=list(headers.items()))
        assert self._producer.flush(10) == 0

    def _states(self, column: str) -> dict[str, dict[str, Any]]:
        """This column of the newest rows of each query, by page and minute."""
        assert self.live.queries is not None
        if self._is_settled or self.live.queries.settled:
            self._is_settled = True
            self.upkeep.step(self.live.queries.counts())
        found: dict[str, dict[str, Any]] = {}
        for query in self.live.planned:
            rows = found.setdefault(query.plan.name, {})
            for _, row in read_topic(self.live.settings.log, query.plan.query_topic):
                if row is not None:
                    rows[f"{row['page']}{int(row['window'] == SECOND)}"] = row.get(column)
        return found


def key_of(window: dict[str, str], page: str) -> str:
    return json.dumps([window, page], separators=(",", ":"))


def assertion(window: dict[str, str], page: str, n: int) -> LedgerEntry:
    at = "2026-01-01T00:05:00.000Z"
    return LedgerEntry(f"forged {page}", [window, page], "assertion", {"n": n, "total": 0}, [], at)


@pytest.mark.timeout(600)
def test_verify_finds_forged_rows_and_entries_and_no_other_difference(
    live: Live, pipeline: Load, capfd: pytest.CaptureFixture[str]
) -> None:
    clicks = Clicks(live, pipeline(PIPELINE))
    try:
        clicks.run()
        run = Commands(live, capfd)
        code, result = run("verify", "busy")
        assert (code, result["differences"], result["same"]) == (0, [], 3)
        assert result["shown"] == {"same": 1, "not_compared": {"not_due": 2}}
        assert result["ledger"] == {"same": 1, "not_compared": {"not_due": 2}}

        log, app = live.settings.log, live.app.name
        forged = [assertion(FIRST, "a", 5), assertion(FIRST, "z", 1), assertion(SECOND, "a", 1)]
        entries = {key_of(*each.key): encode(each) for each in forged}
        write(log, ledger_topic(app, "paid"), entries, 10)
        code, result = run("verify", "paid", "--wait", "10")
        assert (code, result["same"], result["ledger"]) == (1, 3, {"same": 1, "not_compared": {}})
        found = {each["key"]: each for each in result["differences"]}
        assert {each["where"] for each in found.values()} == {"ledger"}
        twice = found[key_of(FIRST, "a")]
        assert (twice["kind"], twice["columns"]) == ("other sum", ["n"])
        assert (twice["live"]["n"], twice["recomputed"]["n"]) == (9, 4)
        assert found[key_of(FIRST, "z")]["kind"] == "not in the log"
        assert found[key_of(SECOND, "a")]["kind"] == "not owed"

        (row,) = [
            row for _, row in live.records("delayed") if row is not None and row["page"] == "b"
        ]
        # A server takes a corrected row for newer than the final one.
        more = json.dumps({**row, "_state": "corrected"}).encode()
        write(log, view_topic(app, "delayed"), {key_of(FIRST, "b"): more}, 10)
        code, result = run("verify", "delayed", "--wait", "10")
        (difference,) = result["differences"]
        assert (code, difference["where"], difference["kind"]) == (1, "shown", "other values")
        assert (difference["live"]["n"], difference["recomputed"]["n"]) == (2, 1)
        assert result["shown"] == {"same": 1, "not_compared": {"not_due": 1}}
        assert result["ledger"] == {"same": 2, "not_compared": {"not_due": 1}}
    finally:
        clicks.upkeep.close()


def test_the_result_says_what_was_not_compared_and_why() -> None:
    assert part_note(PartResult("shown", 2)) == "what is shown: 2 as recomputed"
    part = PartResult("ledger", 1_000, Counter({"not due": 3, "older": 1}))
    assert part_note(part) == (
        "the ledger: 1,000 sums as recomputed; not compared: 3 not due yet, "
        "1 with events that the log no longer has"
    )


@pytest.mark.parametrize(
    ("trigger", "events", "shown", "is_over", "expected"),
    [
        ("every change", 1, 0, False, True),
        ("every 100 events", 99, 0, False, False),
        ("every 100 events", 250, 203, False, False),
        ("every 100 events", 250, 199, False, True),
        ("every 100 events", 99, 0, True, True),
        ("every 15 seconds", 1, 0, False, True),
        ("every 1 minute", 1, 0, False, False),
        ("every 1 minute", 1, 0, True, True),
        ("at the watermark", 1, 0, False, False),
        ("at the watermark", 2, 1, True, True),
        ("when n > 1", 3, 2, False, False),
        ("when n > 1", 3, 2, True, True),
    ],
)
def test_a_row_is_due_when_its_trigger_must_have_shown_it(
    trigger: str, events: int, shown: int, is_over: bool, expected: bool
) -> None:
    assert is_due(parse_trigger(trigger), events, shown, is_over, patience=30) is expected
