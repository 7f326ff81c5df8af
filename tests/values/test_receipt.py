"""Receipts are opaque, signed text."""

from __future__ import annotations

import base64
from hashlib import blake2b

from hypothesis import given
from hypothesis import strategies as st

from millstream.values.receipt import Receipt, Receipts

KEY = bytes(range(32))
BOOK = Receipts(KEY)

names = st.text("abcdefghijklmnopqrstuvwxyz0123456789_-", min_size=1, max_size=100)
places = st.tuples(st.integers(0, 2**32 - 1), st.integers(0, 2**63 - 1)) | st.just((None, None))
receipts = st.builds(
    lambda place, **rest: Receipt(partition=place[0], offset=place[1], **rest),
    place=places,
    collector=names,
    sequence=st.integers(0, 2**63 - 1),
    index=st.integers(0, 2**32 - 1),
    stream=names,
    received_at=st.integers(0, 2**48),
    rejected=st.booleans(),
)


@given(receipts)
def test_a_receipt_can_be_read_by_any_collector(receipt: Receipt) -> None:
    text = BOOK.write(receipt)
    assert Receipts(KEY).read(text) == receipt


@given(receipts)
def test_a_receipt_is_signed_with_the_key_and_fits_into_a_url(receipt: Receipt) -> None:
    text = BOOK.write(receipt)
    assert set(text) <= set(base64.urlsafe_b64encode(bytes(range(256))).decode()) - {"="}
    packed = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    assert packed[-15:] == blake2b(packed[:-15], key=KEY, digest_size=15).digest()


@given(receipts, st.data())
def test_a_receipt_with_any_bit_flipped_is_refused(receipt: Receipt, data: st.DataObject) -> None:
    text = BOOK.write(receipt).encode()
    place = data.draw(st.integers(0, len(text) - 1))
    flipped = bytearray(text)
    flipped[place] ^= 1 << data.draw(st.integers(0, 7))
    assert BOOK.read(flipped.decode("latin-1")) is None


@given(receipts, st.data())
def test_a_receipt_with_another_character_added_or_left_out_is_refused(
    receipt: Receipt, data: st.DataObject
) -> None:
    text = BOOK.write(receipt)
    place = data.draw(st.integers(0, len(text) - 1))
    more = data.draw(st.sampled_from("A_=\n é"))
    assert BOOK.read(text[:place] + text[place + 1 :]) is None
    assert BOOK.read(text[:place] + more + text[place:]) is None
    assert BOOK.read(text + more) is None


@given(receipts, st.binary(min_size=32, max_size=32).filter(lambda key: key != KEY))
def test_a_receipt_of_another_cluster_is_refused(receipt: Receipt, key: bytes) -> None:
    assert Receipts(key).read(BOOK.write(receipt)) is None


@given(st.text() | st.binary().map(lambda raw: base64.urlsafe_b64encode(raw).decode()))
def test_other_text_is_no_receipt(text: str) -> None:
    assert BOOK.read(text) is None
