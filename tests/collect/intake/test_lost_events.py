"""The events of a damaged entry are counted, as far as its bytes can be read."""

from __future__ import annotations

from pathlib import Path

from millstream.collect.formats.unpacked import Limits
from millstream.collect.intake.lost_events import with_counts
from millstream.collect.intake.stream_intake import StreamIntake
from millstream.collect.journal import DamagedPiece, DamageStore
from millstream.collect.journal.record import RecordKind, bookmark_piece
from millstream.collect.journal.record import encode as record
from millstream.collect.raw_message import RawMessage, encode
from millstream.pipeline.app import App
from millstream.schema.scalars import LATEST

MARK = b"mark"
APP = App("shop")
APP.stream("clicks", schema="id LONG")
STREAMS = {"clicks": StreamIntake(APP, APP.streams["clicks"], Limits())}
ARRIVAL = encode(RawMessage("clicks", 1_800_000_000_000, b'{"id":1}\n{"id":2}', "text/json"))
ENTRY = b"".join(record(MARK, RecordKind.ENTRY, 1, ARRIVAL))
FROM_SOURCE = b"".join(
    record(MARK, RecordKind.ENTRY_WITH_BOOKMARK, 1, bookmark_piece("mqtt", b"7"), ARRIVAL)
)


def counted(data: bytes) -> DamagedPiece:
    """The counts for an entry of which these bytes are left."""
    return with_counts(
        DamagedPiece(1, 0, len(data), mark=MARK.hex(), first=1, entries=1), data, STREAMS
    )


def test_a_damaged_byte_anywhere_loses_at_most_the_event_count() -> None:
    assert counted(ENTRY).events == counted(FROM_SOURCE).events == {"clicks": 2}
    for entry in (ENTRY, FROM_SOURCE):
        for at in range(len(entry)):
            for byte in (0x00, 0x80, 0xC0, 0xFF, entry[at] ^ 0x80):
                one = counted(entry[:at] + bytes([byte]) + entry[at + 1 :])
                assert one.unread or one.events == {"clicks": one.known_events}
                assert 0 <= one.received_at <= LATEST, "the log is searched from then on"


def test_an_entry_without_its_end_is_reported() -> None:
    for entry in (ENTRY, FROM_SOURCE):
        for size in range(len(entry)):
            assert counted(entry[:size]).unread == 1


def test_a_damaged_description_still_counts_as_a_loss(tmp_path: Path) -> None:
    store = DamageStore(tmp_path)
    store.put(DamagedPiece(1, 7, entries=3, reason="a reason"))
    (note,) = tmp_path.iterdir()
    note.write_bytes(note.read_bytes().replace(b"a reason", b"\xff reason"))
    (one,) = DamageStore(tmp_path).lost()
    assert (one.segment, one.offset, one.entries) == (1, 7, 1)
