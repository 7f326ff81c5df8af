"""The tables of the windows benchmark."""

from __future__ import annotations

from bench.engines import Refused
from bench.figures import Latency
from bench.load import KEYS, event
from bench.windows import BEGIN, DOCUMENT, END, FLINK, QUICK, Figures, tables

from millstream.errors import MillstreamError


def test_each_figure_is_compared_with_the_reference() -> None:
    text = tables(
        [
            Figures("tumbling", FLINK, Latency(10, 20, 30), 20_000.0),
            Figures("tumbling", "real_time", Latency(5, 40, 50), 10_000.0),
            Figures("sliding", "micro_batch", Latency(400, 500, 600), 30_000.0, missing=2),
        ],
        QUICK,
    )
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines()]
    assert [
        "tumbling, 1 minute",
        "real-time",
        "5.0",
        "40.0",
        "50.0",
        "0.5×",
        "10,000",
        "0.5×",
    ] in rows
    assert any(row[-1:] == ["1.5×"] and "40×" in row for row in rows)
    assert "2 events missing" in text


def test_an_engine_that_cannot_run_is_listed_with_the_reason() -> None:
    text = tables([Figures("session", "real_time", refused="it uses session windows")], QUICK)
    assert "- session, gap 0.5 s, real-time: it uses session windows" in text


def test_the_document_has_the_section() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    assert text.index(BEGIN) < text.index(END)
    assert issubclass(Refused, MillstreamError)


def test_events_have_the_stated_size() -> None:
    assert 500 < len(event(KEYS + 1, 1_794_798_000_000)) < 600
    assert b'"key":1,' in event(KEYS + 1, 1)
