"""Writes the figures as tables, for the terminal and docs/explanation/performance.md."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from bench.figures import STEPS, Figures, Latency

BEGIN, END = "<!-- measured -->", "<!-- /measured -->"
VIEWS = {"stream": "the stream itself", "stateless": "stateless view", "windowed": "windowed view"}
MODES = {"none": "no analysis", "real_time": "real-time", "micro_batch": "micro-batch"}


def tables(measured: Sequence[Figures]) -> str:
    """All tables, as Markdown."""
    parts = [
        "From the post's moment to the client's message, ms:",
        table(
            ["", "events/s", "mode", "p50", "p99", "max", "micro-batch is slower by"],
            (
                [VIEWS[f.view], f"{f.rate:,}", MODES[f.mode], *_cells(f.whole), _ratio(f, measured)]
                for f in measured
            ),
        ),
        "Step by step, p50 / p99 ms:",
        table(
            ["", "events/s", "mode", *STEPS],
            (
                [
                    VIEWS[f.view],
                    f"{f.rate:,}",
                    MODES[f.mode],
                    *(_short(f.steps.get(s)) for s in STEPS),
                ]
                for f in measured
            ),
        ),
        "Processor cores in use meanwhile:",
        table(
            ["", "events/s", "mode", *measured[0].cores],
            (
                [
                    VIEWS[f.view],
                    f"{f.rate:,}",
                    MODES[f.mode],
                    *(f"{c:.2f}" for c in f.cores.values()),
                ]
                for f in measured
            ),
        ),
    ]
    lost = sum(f.missing for f in measured)
    refused = sum(f.refused for f in measured)
    sent = sum(f.sent for f in measured)
    parts.append(f"{sent:,} events measured, {lost:,} missing, {refused:,} posts refused.")
    return "\n\n".join(parts)


def machine() -> str:
    """Where and when this was measured, in a sentence."""
    model = re.search(r"model name\s*:\s*(.+)", Path("/proc/cpuinfo").read_text())
    memory = re.search(r"MemTotal:\s*(\d+)", Path("/proc/meminfo").read_text())
    java = subprocess.run(["java", "-version"], capture_output=True, text=True, check=False).stderr
    found = re.search(r'version "([^"]+)"', java)
    return (
        f"Measured on {datetime.now(UTC):%Y-%m-%d}: {os.cpu_count()} cores"
        f" ({model[1].strip() if model else platform.machine()}),"
        f" {int(memory[1]) / 2**20 if memory else 0:.0f} GB of memory, {platform.system()}"
        f" {platform.release()}, Python {platform.python_version()},"
        f" Java {found[1] if found else '?'}, Spark {version('pyspark')},"
        f" Millstream {version('millstream')}."
    )


def write(document: Path, measured: Sequence[Figures], how: str) -> None:
    """Replace the measured part of the document."""
    picture = f"![latencies]({document.stem}.svg)"
    replace(document, BEGIN, END, f"{machine()} {how}\n\n{picture}\n\n{tables(measured)}")


def replace(document: Path, begin: str, end: str, part: str) -> None:
    """Replace the text between two marks in the document."""
    text = document.read_text(encoding="utf-8")
    start, stop = text.index(begin) + len(begin), text.index(end)
    document.write_text(f"{text[:start]}\n{part}\n{text[stop:]}", encoding="utf-8")


def _ratio(figures: Figures, measured: Iterable[Figures]) -> str:
    if figures.mode != "real_time" or figures.whole is None:
        return ""
    for other in measured:
        if (other.view, other.rate, other.mode) == (figures.view, figures.rate, "micro_batch"):
            return f"{other.whole.p50 / figures.whole.p50:.0f}×" if other.whole else ""
    return ""


def _cells(latency: Latency | None) -> list[str]:
    if latency is None:
        return ["–"] * 3
    return [_number(value) for value in (latency.p50, latency.p99, latency.max)]


def _short(latency: Latency | None) -> str:
    return "–" if latency is None else f"{_number(latency.p50)} / {_number(latency.p99)}"


def _number(milliseconds: float) -> str:
    return f"{milliseconds:.1f}" if milliseconds < 100 else f"{milliseconds:,.0f}"


def table(head: list[str], body: Iterable[list[str]]) -> str:
    rows = [head, *body]
    widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
    rows.insert(1, ["-" * width for width in widths])
    return "\n".join(
        "| " + " | ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)) + " |"
        for row in rows
    )
