"""Compressed bodies are read, damaged ones refused, and bombs cost little."""

from __future__ import annotations

import contextlib
import gzip
import time
import tracemalloc
import zlib

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from tests.collect.formats.unpack import unpack

from millstream.collect.formats.compression import decompress, encoding_of
from millstream.collect.formats.unpacked import BodyRefused, Limits

MIB = 1024 * 1024
COMPRESS = {"gzip": gzip.compress, "zstd": zstandard.ZstdCompressor(level=19).compress}
encodings = pytest.mark.parametrize("encoding", COMPRESS)
any_encoding = st.sampled_from(list(COMPRESS))


@given(st.lists(st.binary(max_size=300), min_size=1, max_size=4), any_encoding)
def test_compressed_data_is_restored_from_one_or_many_members(
    parts: list[bytes], encoding: str
) -> None:
    body = b"".join(COMPRESS[encoding](part) for part in parts)
    assert decompress(body, encoding, 1200) == b"".join(parts)


@encodings
def test_large_bodies_are_restored(encoding: str) -> None:
    plain = b"".join(b'{"a": %d}\n' % number for number in range(50_000))
    assert decompress(COMPRESS[encoding](plain), encoding, len(plain)) == plain


@encodings
def test_the_limit_is_exact(encoding: str) -> None:
    body = COMPRESS[encoding](b"x" * 1000)
    assert len(decompress(body, encoding, 1000)) == 1000
    with pytest.raises(BodyRefused, match="larger than 999 bytes when decompressed") as refused:
        decompress(body, encoding, 999)
    assert refused.value.status == 413


@encodings
def test_a_bomb_is_refused_at_the_cost_of_the_limit(encoding: str) -> None:
    compressor = (
        zlib.compressobj(9, wbits=31)
        if encoding == "gzip"
        else zstandard.ZstdCompressor(level=19).compressobj()
    )
    zeros = bytes(MIB)
    bomb = b"".join(compressor.compress(zeros) for _ in range(300)) + compressor.flush()
    assert len(bomb) < MIB
    tracemalloc.start()
    try:
        with pytest.raises(BodyRefused):
            decompress(bomb, encoding, 4 * MIB)
        assert tracemalloc.get_traced_memory()[1] < 30 * MIB
    finally:
        tracemalloc.stop()


@encodings
def test_many_tiny_members_are_refused_before_they_cost_time(encoding: str) -> None:
    body = COMPRESS[encoding](b"") * 200_000
    started = time.process_time()
    with pytest.raises(BodyRefused, match="more than 1000 pieces"):
        decompress(body, encoding, MIB)
    assert time.process_time() - started < 5


@given(st.binary(max_size=400), any_encoding, st.data())
def test_a_body_that_is_cut_off_is_refused(
    plain: bytes, encoding: str, data: st.DataObject
) -> None:
    body = COMPRESS[encoding](plain)
    cut = data.draw(st.integers(0, len(body) - 1))
    with pytest.raises(BodyRefused, match=f"not valid {encoding}") as refused:
        decompress(body[:cut], encoding, 1000)
    assert refused.value.status == 400


@encodings
def test_data_after_the_end_is_refused(encoding: str) -> None:
    with pytest.raises(BodyRefused, match=f"not valid {encoding}"):
        decompress(COMPRESS[encoding](b"{}") + b"more than that", encoding, 1000)


def test_zeros_after_gzip_are_padding() -> None:
    assert decompress(gzip.compress(b"{}") + bytes(100_000), "gzip", 1000) == b"{}"


def test_frames_that_zstd_skips_are_skipped() -> None:
    skipped = b"\x50\x2a\x4d\x18\x04\0\0\0abcd"
    frame = zstandard.compress(b"{}")
    assert decompress(frame + skipped + frame, "zstd", 1000) == b"{}{}"


def test_a_window_that_needs_much_memory_is_refused() -> None:
    parameters = zstandard.ZstdCompressionParameters(window_log=27)
    compressor = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    with pytest.raises(BodyRefused, match="not valid zstd"):
        decompress(compressor.compress(b"x" * 1000) + compressor.flush(), "zstd", 10_000)


@given(st.binary(max_size=2000), any_encoding, st.booleans())
def test_garbage_is_refused(body: bytes, encoding: str, headed: bool) -> None:
    magic = {"gzip": b"\x1f\x8b\x08\0\0\0\0\0\0\xff", "zstd": b"\x28\xb5\x2f\xfd"}[encoding]
    with contextlib.suppress(BodyRefused):
        assert len(decompress(magic + body if headed else body, encoding, 10_000)) <= 10_000


@pytest.mark.parametrize(
    ("header", "encoding"),
    [
        ("", ""),
        ("identity", ""),
        ("GZIP", "gzip"),
        ("x-gzip", "gzip"),
        (" zstd , identity", "zstd"),
    ],
)
def test_known_encodings_are_read(header: str, encoding: str) -> None:
    assert encoding_of(header) == encoding


@pytest.mark.parametrize(
    ("header", "named"),
    [
        ("gzip, zstd", "2 encodings"),
        ("gzip,gzip", "2 encodings"),
        ("br", "'br'"),
        ("deflate", "de"),
    ],
)
def test_other_encodings_are_refused_by_name(header: str, named: str) -> None:
    with pytest.raises(BodyRefused, match=named) as refused:
        encoding_of(header)
    assert refused.value.status == 415


@encodings
def test_a_compressed_body_is_unpacked(encoding: str) -> None:
    body = COMPRESS[encoding](b'{"a":1}\n{"a":2}')
    assert unpack(body, "", encoding, Limits()).values == [b'{"a":1}', b'{"a":2}']
