"""Reads the rows of a Parquet file as lines of JSON, in batches."""

from __future__ import annotations

import errno
from collections.abc import Iterator

import msgspec
import pyarrow as arrow
import pyarrow.parquet as parquet

from millstream.connectors.directory.event_splitter import UnreadableFile

_encode = msgspec.json.Encoder(decimal_format="string").encode


def read_rows(path: str, start: int, about: int, most: int) -> Iterator[tuple[bytes, int, int]]:
    """Batches of lines: the lines, how many they are, and the number of the next row.

    A batch has about `about` bytes, and at most `most` lines. A time without a zone means UTC, and
    is truncated to microseconds; bytes become base64, maps become objects.
    """
    try:
        with parquet.ParquetFile(path, pre_buffer=False) as file:
            wanted = _in_utc(file.schema_arrow)
            done = 0
            for group in range(file.num_row_groups):
                in_group = file.metadata.row_group(group).num_rows
                if done + in_group <= start:
                    done += in_group
                    continue
                batches = file.iter_batches(most, row_groups=[group], use_threads=False)
                for batch in batches:
                    first, done = done, done + len(batch)
                    if done > start:
                        rest = batch.slice(max(0, start - first)).cast(wanted, safe=False)
                        yield from _lines(rest, done - len(rest), about)
    except (arrow.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise UnreadableFile(f"it is not Parquet that can be read: {error}") from None
    except OSError as error:
        if (
            error.errno is None or error.errno == errno.EINVAL
        ):  # from the content, not from the system
            raise UnreadableFile(f"it is damaged: {error}") from None
        raise


def _lines(batch: arrow.RecordBatch, number: int, about: int) -> Iterator[tuple[bytes, int, int]]:
    lines: list[bytes] = []
    size = 0
    for row in batch.to_pylist(maps_as_pydicts="lossy"):
        line = _encode(row) + b"\n"
        if lines and size + len(line) > about:
            yield b"".join(lines), len(lines), number
            lines, size = [], 0
        lines.append(line)
        size += len(line)
        number += 1
    if lines:
        yield b"".join(lines), len(lines), number


def _in_utc(schema: arrow.Schema) -> arrow.Schema:
    return arrow.schema([field.with_type(_timed(field.type)) for field in schema])


def _timed(kind: arrow.DataType) -> arrow.DataType:
    types = arrow.types
    if types.is_timestamp(kind):
        return arrow.timestamp("us", tz="UTC")
    if types.is_struct(kind):
        return arrow.struct([field.with_type(_timed(field.type)) for field in kind])
    if types.is_list(kind):
        return arrow.list_(kind.value_field.with_type(_timed(kind.value_type)))
    if types.is_map(kind):
        return arrow.map_(kind.key_type, _timed(kind.item_type))
    return kind
