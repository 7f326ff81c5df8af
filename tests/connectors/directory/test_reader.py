"""Reading files of a directory: all formats, incomplete and damaged files, crashes."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import decimal
import gzip
import json
import os
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as arrow
import pyarrow.parquet as parquet
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.collect.formats.unpack import unpack
from tests.collect.recording_output import FillingOutput, RecordingOutput
from tests.connectors.conformance_case import running
from tests.wait_until import until

from millstream.collect.formats.unpacked import Limits
from millstream.collect.settings import CollectSettings
from millstream.connectors import source_from_text
from millstream.connectors.directory.description import DirectorySource
from millstream.connectors.directory.file_reader import read_pieces
from millstream.connectors.directory.listing import File, SettledFiles
from millstream.connectors.directory.read_progress import MOST_DONE, DirectoryProgress
from millstream.connectors.directory.reader import DirectoryReader

_QUICK = CollectSettings(reconnect_first=0.02, reconnect_most=0.05, max_body=100_000)
_EVENTS = [{"n": number, "text": f"é\u2028 {number}"} for number in range(3)]


def source(folder: Path, **more: str) -> DirectorySource:
    return DirectorySource(folder, **{"settle": "", "poll": "10 ms", **more})


@contextlib.asynccontextmanager
async def reading(
    of: DirectorySource, bookmark: bytes | None = None, output: RecordingOutput | None = None
) -> AsyncIterator[tuple[DirectoryReader, RecordingOutput]]:
    reader = DirectoryReader("orders", of, _QUICK)
    output = output or RecordingOutput(bookmark=bookmark)
    try:
        async with running(reader, output):
            yield reader, output
    finally:
        assert reader.state.state == "stopped"


def events(output: RecordingOutput) -> list[Any]:
    """The received events, as the collector parses them."""
    return [
        json.loads(value)
        for body, content_type in zip(output.messages, output.content_types, strict=True)
        for value in unpack(body, content_type, "", Limits()).values
    ]


def numbers(output: RecordingOutput) -> list[int]:
    return [int(event["n"]) for event in events(output)]


def ndjson(*of: object) -> bytes:
    return b"".join(json.dumps(each, ensure_ascii=False).encode() + b"\n" for each in of)


def numbered(first: int, end: int, padding: int = 0) -> bytes:
    return ndjson(*({"n": number, "pad": "x" * padding} for number in range(first, end)))


def as_csv(of: list[dict[str, Any]]) -> bytes:
    rows = "".join(f'{event["n"]},"{event["text"]}"\r\n' for event in of)
    return f"n,text\r\n{rows}".encode()


def as_parquet(of: list[dict[str, Any]], **more: Any) -> bytes:
    sink = arrow.BufferOutputStream()
    parquet.write_table(arrow.Table.from_pylist(of), sink, **more)
    content: bytes = sink.getvalue().to_pybytes()
    return content


def name_of(value: object) -> str:
    """The id of a test case: without the content, because gzip writes the time into it."""
    return "" if isinstance(value, bytes) else str(value)


def zstd(content: bytes) -> bytes:
    return zstandard.ZstdCompressor(write_checksum=True).compress(content)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.ndjson", ndjson(*_EVENTS)),
        ("a.jsonl", b"\xef\xbb\xbf" + ndjson(*_EVENTS).rstrip(b"\n")),
        ("a.JSON", json.dumps(_EVENTS, indent=2, ensure_ascii=False).encode()),
        ("a.json", b"\n ".join(json.dumps(each, indent=1).encode() for each in _EVENTS)),
        ("a.csv", as_csv(_EVENTS)),
        ("a.csv", b"\xef\xbb\xbf\n" + as_csv(_EVENTS).rstrip(b"\r\n")),
        ("a.parquet", as_parquet(_EVENTS, row_group_size=2)),
        ("a.ndjson.gz", gzip.compress(ndjson(*_EVENTS))),
        ("a.json.zst", zstd(json.dumps(_EVENTS).encode())),
        ("a.csv.gz", gzip.compress(as_csv(_EVENTS[:2])) + gzip.compress(as_csv(_EVENTS)[-13:])),
        ("a.csv.zst", zstd(as_csv(_EVENTS))),
    ],
    ids=name_of,
)
async def test_each_format_gives_its_events(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    async with reading(source(tmp_path)) as (reader, output):
        await until(lambda: reader.state.received)
        assert [{**event, "n": int(event["n"])} for event in events(output)] == _EVENTS
        assert (reader.state.state, reader.state.error) == ("connected", "")
        assert reader.state.received == 3


async def test_types_of_parquet_are_converted_for_the_schema(tmp_path: Path) -> None:
    at = datetime.datetime(2026, 11, 16, 12, 0, 0, 123456)  # noqa: DTZ001 - Parquet has such
    table = arrow.table(
        {
            "at": arrow.array([at], arrow.timestamp("ns")),
            "there": arrow.array([at], arrow.timestamp("ms", tz="Europe/Berlin")),
            "nested": arrow.array([{"ats": [at]}]),
            "price": arrow.array([decimal.Decimal("1.50")]),
            "tags": arrow.array([[("a", 1)]], arrow.map_(arrow.string(), arrow.int64())),
            "raw": arrow.array([b"\xff"]),
            "none": arrow.array([float("nan")]),
            "day": arrow.array([at.date()]),
            "kind": arrow.array(["x"]).dictionary_encode(),
        }
    )
    parquet.write_table(table, tmp_path / "a.parquet")
    async with reading(source(tmp_path)) as (_, output):
        await until(lambda: output.messages)
        assert events(output) == [
            {
                "at": "2026-11-16T12:00:00.123456Z",
                "there": "2026-11-16T12:00:00.123000Z",
                "nested": {"ats": ["2026-11-16T12:00:00.123456Z"]},
                "price": "1.50",
                "tags": {"a": 1},
                "raw": "/w==",
                "none": None,
                "day": "2026-11-16",
                "kind": "x",
            }
        ]


async def test_a_file_is_read_once_and_new_ones_as_they_arrive(tmp_path: Path) -> None:
    async with reading(source(tmp_path)) as (_, output):
        for number in range(5):
            (tmp_path / f"{number}.ndjson").write_bytes(numbered(number, number + 1))
            await until(lambda: len(numbers(output)) == number + 1)  # noqa: B023
    # Nor after a restart, or when the mode of a file changes.
    os.chmod(tmp_path / "0.ndjson", 0o600)
    async with reading(source(tmp_path), output.bookmark) as (_, after):
        (tmp_path / "5.ndjson").write_bytes(numbered(5, 6))
        await until(lambda: after.messages)
        assert numbers(output) + numbers(after) == list(range(6))


async def test_files_are_read_in_the_order_of_their_times_then_names(tmp_path: Path) -> None:
    for name, number, modified in (("a", 2, 300), ("c", 1, 200), ("b", 0, 200), ("d", 3, 100)):
        path = tmp_path / f"{name}.ndjson"
        path.write_bytes(numbered(number, number + 1))
        os.utime(path, (modified, modified))
    async with reading(source(tmp_path)) as (_, output):
        await until(lambda: len(numbers(output)) == 4)
        assert numbers(output) == [3, 0, 1, 2]


@pytest.mark.parametrize("name", ["a.ndjson", "a.ndjson.gz", "a.json", "a.csv.zst", "a.parquet"])
async def test_a_crash_in_the_middle_of_a_file_loses_and_duplicates_nothing(
    tmp_path: Path, name: str
) -> None:
    total = 5_000
    rows = [{"n": number, "pad": 'x"\n,' * 30} for number in range(total)]
    match name.split(".")[1]:
        case "csv":
            cells = "".join(f'{row["n"]},"{"x" + chr(34) * 2}\n,"\n' for row in rows)
            content = f"n,pad\n{cells}".encode()
        case "json":
            content = json.dumps(rows, indent=1).encode()
        case "parquet":
            content = as_parquet(rows, row_group_size=1_700)
        case _:
            content = ndjson(*rows)
    if name.endswith(".gz"):
        content = gzip.compress(content, 1)
    elif name.endswith(".zst"):
        content = zstd(content)
    (tmp_path / name).write_bytes(content)
    (tmp_path / "b.ndjson").write_bytes(numbered(total, total + 1))

    bookmark: bytes | None = None
    read: list[int] = []
    crashes = 0
    while not read or read[-1] != total:
        async with reading(source(tmp_path), output=FillingOutput(2, bookmark)) as (_, output):
            await until(partial(_is_full_or_has, total, output))
        # Each time one more message is stored; the others that were offered are lost.
        read += numbers(_first(output))
        bookmark = output.bookmarks[0]
        crashes += 1
    assert read == list(range(total + 1))
    assert crashes > 3


def _is_full_or_has(number: int, output: RecordingOutput) -> bool:
    return not output.open.is_set() or number in numbers(output)


def _first(output: RecordingOutput) -> RecordingOutput:
    """The output after a crash: only the first message was stored."""
    return RecordingOutput(messages=output.messages[:1], content_types=output.content_types[:1])


async def test_a_half_written_file_is_waited_for(tmp_path: Path) -> None:
    async with reading(source(tmp_path, settle="1 second")) as (_, output):
        with (tmp_path / "a.ndjson").open("wb", buffering=0) as file:
            for number in range(3):
                file.write(numbered(number, number + 1)[:5])
                await asyncio.sleep(0.05)
                file.write(numbered(number, number + 1)[5:])
                assert output.messages == []
        await until(lambda: output.messages)
        assert len(output.messages) == 1
        assert numbers(output) == list(range(3))


def test_a_file_is_complete_when_it_did_not_change_for_long_enough() -> None:
    settling, name = SettledFiles(2.0), "a.ndjson"
    half, whole = File(name, 5, 100, 100), File(name, 9, 101, 101)
    assert settling.complete([half], now=0.0) == []
    assert settling.complete([half], now=1.9) == []
    assert settling.complete([whole], now=2.0) == []  # it grew: the time starts again
    assert settling.complete([whole], now=3.9) == []
    assert settling.complete([whole], now=4.0) == [whole]


async def test_a_file_that_is_renamed_into_place_is_read_at_once(tmp_path: Path) -> None:
    for name in (".a.ndjson", "b.ndjson.tmp", "c.ndjson.part", "_d.ndjson"):
        (tmp_path / name).write_bytes(numbered(0, 1))
    async with reading(source(tmp_path, settle="1 hour")) as (reader, output):
        await until(lambda: reader.state.state == "connected")
        for _ in range(2):  # a rename in the same clock tick as the write is not visible
            (tmp_path / "b.ndjson.tmp").rename(tmp_path / "b.ndjson")
            await asyncio.sleep(0.02)
            (tmp_path / "b.ndjson").rename(tmp_path / "b.ndjson.tmp")
        (tmp_path / "b.ndjson.tmp").rename(tmp_path / "b.ndjson")
        await until(lambda: output.messages)
        assert numbers(output) == [0]


async def test_thousands_of_small_files_share_messages(tmp_path: Path) -> None:
    total = 3_000
    for number in range(total):
        (tmp_path / f"{number:05}.ndjson").write_bytes(numbered(number, number + 1))
        os.utime(tmp_path / f"{number:05}.ndjson", (1, 1))
    (tmp_path / "empty.ndjson").touch()
    (tmp_path / "empty.csv.gz").write_bytes(gzip.compress(b"n\n"))
    async with reading(source(tmp_path)) as (reader, output):
        await until(lambda: reader.state.received == total)
        assert sorted(numbers(output)) == list(range(total))
        assert len(output.messages) < 50
        await until(lambda: reader.state.behind == 0)
    assert output.bookmark is not None
    assert len(output.bookmark) < 60_000
    async with reading(source(tmp_path), output.bookmark) as (_, after):
        (tmp_path / "last.ndjson").write_bytes(numbered(total, total + 1))
        await until(lambda: after.messages)
        assert numbers(after) == [total]


@pytest.mark.parametrize(
    ("name", "content", "before", "reason"),
    [
        ("a.ndjson.gz", gzip.compress(numbered(0, 2000, 50))[:-3000], 1, "damaged"),
        ("a.ndjson.gz", b"not gzip at all", 0, "damaged"),
        ("a.ndjson.zst", zstd(numbered(0, 20_000, 50))[:-5000], 1, "damaged"),
        ("a.parquet", as_parquet(_EVENTS)[:-20], 0, "not Parquet"),
        ("a.parquet", b"PAR1" + b"\xff" * 100 + b"PAR1", 0, "Parquet"),
        ("a.parquet.gz", gzip.compress(as_parquet(_EVENTS)), 0, "compressed inside"),
        ("a.json", b'[{"n": 0}, {"n": 1', 1, "middle of a value"),
        ("a.json", b'{"n": 0}}', 0, "} too many"),
        ("a.csv", b'n,text\n0,a\n1,"never ends\n', 1, "inside quotes"),
        ("a.csv", "n,text\n0,é\n".encode("latin-1"), 0, "not UTF-8"),
        ("a.ndjson", b'{"n": 0}\n' + b"x" * 200_000, 1, "more than"),
        ("a.csv", b"n" * 200_000, 0, "more than"),
        ("a.txt", b"n", 0, "suffix"),
    ],
    ids=name_of,
)
async def test_an_unreadable_file_is_reported_and_the_others_are_read(
    tmp_path: Path,
    name: str,
    content: bytes,
    before: int,
    reason: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    (tmp_path / name).write_bytes(content)
    os.utime(tmp_path / name, (1, 1))
    (tmp_path / "good.ndjson").write_bytes(numbered(77, 78))
    async with reading(source(tmp_path, done="delete")) as (reader, output):
        await until(lambda: 77 in numbers(output))
        assert len(numbers(output)) - 1 >= before
        await until(lambda: reason in reader.state.error)
        assert reader.state.state == "connected"
        # Never deleted, and no longer reported once somebody has removed it.
        await until(lambda: [path.name for path in (tmp_path / "failed").glob("*")] == [name])
        await until(lambda: not (tmp_path / "good.ndjson").exists())
        assert (tmp_path / "failed" / name).read_bytes() == content
        (tmp_path / "failed" / name).unlink()
        await until(lambda: reader.state.error == "")
    assert f"cannot read {name}" in caplog.text
    assert reason in caplog.text


async def test_a_failed_file_is_remembered_and_retried_when_it_changes(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_bytes(b"[")
    (tmp_path / "b.ndjson").write_bytes(numbered(1, 2))
    async with reading(source(tmp_path)) as (reader, output):
        await until(lambda: output.messages and "a.json" in reader.state.error)
    (tmp_path / "c.ndjson").write_bytes(numbered(2, 3))
    async with reading(source(tmp_path), output.bookmark) as (reader, output):
        await until(lambda: output.messages and "a.json" in reader.state.error)
        assert numbers(output) == [2]
        (tmp_path / "a.json").write_bytes(b'[{"n": 3}]')
        await until(lambda: numbers(output) == [2, 3])
        await until(lambda: reader.state.error == "")


async def test_read_files_are_moved_or_deleted_only_when_their_events_are_on_disk(
    tmp_path: Path,
) -> None:
    for done in ("move", "delete"):
        folder = tmp_path / done
        folder.mkdir()
        (folder / "a.ndjson").write_bytes(numbered(0, 1))
        async with reading(source(folder, done=done)) as (_, output):
            output.disk.clear()
            await until(lambda: output.messages)
            assert (folder / "a.ndjson").exists()
        assert (folder / "a.ndjson").exists()  # nor after the reader has ended
        assert output.bookmark is None
        # The message was stored, but the collector died before it removed the file.
        async with reading(source(folder, done=done), output.bookmarks[0]) as (_, after):
            await until(lambda: not (folder / "a.ndjson").exists())  # noqa: B023
            assert after.messages == []
            # A new file with the same name is another file.
            (folder / "a.ndjson").write_bytes(numbered(1, 2))
            await until(lambda: numbers(after) == [1])
            await until(lambda: not (folder / "a.ndjson").exists())  # noqa: B023
    moved = sorted(path.name for path in (tmp_path / "move" / "done").iterdir())
    assert moved == ["a.ndjson", "a.ndjson.1"]
    assert not list((tmp_path / "delete").iterdir())


async def test_a_file_that_changed_counts_as_a_new_one(tmp_path: Path) -> None:
    (tmp_path / "a.ndjson").write_bytes(numbered(0, 1))
    async with reading(source(tmp_path)) as (_, output):
        await until(lambda: numbers(output) == [0])
        (tmp_path / "a.ndjson").write_bytes(numbered(1, 3))
        await until(lambda: numbers(output) == [0, 1, 2])


async def test_only_files_of_the_pattern_are_read_and_a_format_can_be_given(tmp_path: Path) -> None:
    (tmp_path / "orders-1.log").write_bytes(b"n\n1\n")
    (tmp_path / "other-1.log").write_bytes(b"n\n2\n")
    (tmp_path / "orders-2.log").mkdir()
    (tmp_path / "orders-3.log").symlink_to(tmp_path / "nowhere")
    wanted = source(tmp_path, pattern="orders-*", format="csv")
    async with reading(wanted) as (reader, output):
        await until(lambda: output.messages)
        assert (output.messages, output.content_types) == ([b"n\n1\n"], ["text/csv"])
        assert reader.state.error == ""


async def test_files_of_csv_share_a_message_only_if_their_headers_are_the_same(
    tmp_path: Path,
) -> None:
    for name, content in (("a", b"n,x\n1,a\n"), ("b", b"n,x\n2,b"), ("c", b"x,n\nc,3\n")):
        (tmp_path / f"{name}.csv").write_bytes(content)
        os.utime(tmp_path / f"{name}.csv", (1, 1))
    async with reading(source(tmp_path)) as (_, output):
        await until(lambda: len(output.messages) == 2)
        assert output.messages == [b"n,x\n1,a\n2,b\n", b"x,n\nc,3\n"]


async def test_reading_stops_while_there_is_no_room(tmp_path: Path) -> None:
    (tmp_path / "a.ndjson").write_bytes(numbered(0, 10_000, 100))
    (tmp_path / "b.ndjson").write_bytes(numbered(10_000, 10_001))
    async with reading(source(tmp_path)) as (reader, output):
        output.open.clear()
        await until(lambda: reader.state.behind == 2)
        assert output.messages == []
        output.open.set()
        await until(lambda: reader.state.received == 10_001)
        assert numbers(output) == list(range(10_001))
        assert all(len(message) <= _QUICK.max_body for message in output.messages)
        await until(lambda: reader.state.behind == 0)
        assert reader.state.behind_unit == "files"


@pytest.mark.parametrize("name", ["a.ndjson", "a.json", "a.csv", "a.parquet"])
async def test_a_message_has_no_more_events_than_the_collector_accepts(
    tmp_path: Path, name: str
) -> None:
    rows = [{"n": number, "text": "x"} for number in range(100)]
    contents = {"json": json.dumps(rows).encode(), "csv": as_csv(rows)}
    contents |= {"ndjson": ndjson(*rows), "parquet": as_parquet(rows)}
    (tmp_path / name).write_bytes(contents[name.split(".")[1]])
    few = _QUICK.model_copy(update={"max_events": 7})
    reader, output = DirectoryReader("orders", source(tmp_path), few), RecordingOutput()
    async with running(reader, output):
        await until(lambda: len(numbers(output)) == 100)
    assert numbers(output) == list(range(100))
    assert len(output.messages) >= 100 / 7


async def test_a_missing_directory_is_waited_for(tmp_path: Path) -> None:
    folder = tmp_path / "later"
    async with reading(source(folder)) as (reader, output):
        await until(lambda: reader.state.state == "retrying")
        assert "later" in reader.state.error
        folder.mkdir()
        (folder / "a.ndjson").write_bytes(numbered(0, 1))
        await until(lambda: numbers(output) == [0])


async def test_a_bookmark_of_another_directory_or_source_is_ignored(tmp_path: Path) -> None:
    (tmp_path / "a.ndjson").write_bytes(numbered(0, 1))
    async with reading(source(tmp_path)) as (_, output):
        await until(lambda: output.bookmark)
    for bookmark in (b"", b"\xff", b"millstream-x", DirectoryProgress("/elsewhere").bookmark()):
        async with reading(source(tmp_path), bookmark) as (_, output):
            await until(lambda: numbers(output) == [0])


def test_older_files_are_remembered_by_time_and_waiting_files_are_still_read() -> None:
    progress = DirectoryProgress("/x")
    files = [File(f"{number}", 1, 1, 1_000 + number) for number in range(2 * MOST_DONE)]
    slow = File("slow", 1, 1, 1_500)  # arrived early, read late
    for file in files:
        progress.finish(file)
        progress.shorten([slow], until=10_000)
    assert not progress.is_done(slow)
    progress.finish(slow)
    progress.shorten([], until=1_700)  # recent files may not be visible yet
    assert not progress.is_done(File("late", 1, 1, 1_700))
    progress.shorten([], until=10_000)
    again = DirectoryProgress.of(progress.bookmark(), "/x")
    assert all(again.is_done(file) for file in [*files, slow])
    assert len(again.bookmark()) < 20 * MOST_DONE
    # A file with an old date that arrives now is still read.
    assert not again.is_done(File("new", 1, 0, 1_000 + 2 * MOST_DONE))


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8) | st.floats(allow_nan=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=6,
)


@settings(deadline=None, max_examples=40)
@given(
    st.lists(st.dictionaries(st.text(max_size=4), _JSON, max_size=4), max_size=6),
    st.booleans(),
    st.integers(40, 200),
)
def test_json_is_split_into_values_whatever_the_chunks(
    tmp_path_factory: pytest.TempPathFactory, values: list[Any], array: bool, longest: int
) -> None:
    path = tmp_path_factory.getbasetemp() / "cut.json"
    longest = max([longest, *(8 * len(json.dumps(value, indent=1)) for value in values)])
    text = json.dumps(values, indent=1) if array else "\n".join(map(json.dumps, values))
    path.write_text(text)
    _check_pieces(path, longest, values, json.loads)


_CELL = st.text(st.characters(codec="utf-8", exclude_characters="\0\r"), max_size=6)


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(_CELL, _CELL), max_size=20), st.integers(100, 300))
def test_csv_is_split_into_rows_whatever_the_chunks(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, str]], longest: int
) -> None:
    path = tmp_path_factory.getbasetemp() / "cut.csv"
    quoted = [",".join('"' + cell.replace('"', '""') + '"' for cell in row) for row in rows]
    path.write_text("a,b\n" + "".join(f"{row}\n" for row in quoted), newline="")
    found, position = [], 0
    for piece in read_pieces(str(path), "", 0, longest):
        body = piece.header + piece.body
        assert len(body) <= longest
        values = unpack(body, piece.content_type, "", Limits()).values
        found += [json.loads(value) for value in values]
        assert piece.events == len(values)
        assert piece.end > position
        position = piece.end
    assert found == [{"a": a or None, "b": b or None} for a, b in rows]


def _check_pieces(
    path: Path, longest: int, values: list[Any], parse: Callable[[bytes], Any]
) -> None:
    found: list[Any] = []
    ends = []
    for piece in read_pieces(str(path), "", 0, longest):
        lines = piece.body.splitlines()
        assert len(lines) == piece.events
        found += map(parse, piece.body.rstrip(b"\n").split(b"\n"))
        ends.append((piece.end, len(found)))
    assert found == values
    for end, count in ends:  # from each position where a crash may have stopped
        rest = [
            parse(line)
            for piece in read_pieces(str(path), "", end, longest)
            for line in piece.body.rstrip(b"\n").split(b"\n")
        ]
        assert rest == values[count:]


def test_every_option_can_be_written_in_sql() -> None:
    written = {"kind": "directory", "path": "/in", "pattern": "*.csv", "done": "move"}
    found = source_from_text(written)
    assert isinstance(found, DirectorySource)
    assert (found.problem(), found.address, found.done) == (None, "/in/*.csv", "move")
    by_url = source_from_text("file:///var/my%20in")
    assert isinstance(by_url, DirectorySource)
    assert (by_url.folder, by_url.problem()) == ("/var/my in", None)


@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        ({"path": ""}, "not the path of a directory"),
        ({"pattern": "a/*.csv"}, "not a pattern of names"),
        ({"format": "xml"}, "none of ndjson, json, csv, parquet"),
        ({"done": "burn"}, "none of keep, move, delete"),
        ({"moved_to": "./"}, "the folder it reads"),
        ({"settle": "soon"}, "settle"),
        ({"poll": ""}, "poll"),
    ],
)
def test_an_invalid_source_is_refused_at_load(wrong: dict[str, str], problem: str) -> None:
    assert problem in (DirectorySource(**{"path": "/in", **wrong}).problem() or "")
