"""Receipts go out as text and come back the same."""

from __future__ import annotations

import pytest

from millstream.receipt import Receipt


@pytest.mark.parametrize("rejected", [True, False])
def test_a_receipt_comes_back_as_it_was_given_out(rejected: bool) -> None:
    receipt = Receipt("rsvps_2", rejected, partition=3, offset=2**62, sequence=17)
    assert Receipt.parse(str(receipt)) == receipt


@pytest.mark.parametrize(
    "text",
    ["", "x", "l.rsvps.0.1", "q.rsvps.0.1.2", "l.rsvps.0.-1.2", "l.rsvps.0.1.2\n", "l..0.1.2"],
)
def test_other_text_is_no_receipt(text: str) -> None:
    assert Receipt.parse(text) is None
