"""What arrived together is offered together, within bounds."""

from __future__ import annotations

from millstream.collect.settings import CollectSettings
from millstream.connectors.reading.batcher import LINES, Bundle


def test_many_lines_are_put_together_to_no_more_than_a_small_journal_holds() -> None:
    bundle = Bundle(CollectSettings(max_body=16 << 20))
    lines = [b'{"n":%d,"pad":"%b"}' % (n, b"x" * 400_000) for n in range(5)]
    for number, line in enumerate(lines):
        bundle.add(line, bookmark=b"%d" % number)
    parcels = bundle.take()
    assert [parcel.messages for parcel in parcels] == [2, 2, 1]
    assert all(len(parcel.body) <= 1 << 20 for parcel in parcels)
    assert [parcel.bookmark for parcel in parcels] == [b"1", b"3", b"4"]
    assert b"\n".join(parcel.body for parcel in parcels) == b"\n".join(lines)
    assert parcels[0].content_type == LINES


def test_a_line_that_is_larger_than_others_may_be_together_is_offered_by_itself() -> None:
    bundle = Bundle(CollectSettings(max_body=16 << 20))
    large = b'{"pad":"%b"}' % (b"x" * (2 << 20))
    for line in (b'{"n":1}', large, b'{"n":2}'):
        bundle.add(line)
    assert [parcel.body for parcel in bundle.take()] == [b'{"n":1}', large, b'{"n":2}']
    assert bundle.oversized == 0
