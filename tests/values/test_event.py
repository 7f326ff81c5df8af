"""Events as the log stores them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from millstream.values import event


@given(st.binary(), st.binary())
def test_only_the_same_bytes_have_the_same_fingerprint(one: bytes, other: bytes) -> None:
    assert (event.fingerprint(one) == event.fingerprint(other)) == (one == other)


def test_a_fingerprint_is_the_same_on_every_machine() -> None:
    assert event.fingerprint(b"") == "2d06800538d394c2"  # XXH3's published value for no bytes


def test_headers_are_those_of_cloudevents_kafka_binding() -> None:
    ours = {event.COLLECTOR, event.SEQUENCE, event.FINGERPRINT}
    standard = {event.SPECVERSION, event.ID, event.SOURCE, event.TYPE, event.TIME}
    assert all(name.startswith("ce_") for name in ours | standard | {event.TRACEPARENT})
    assert event.CONTENT_TYPE == "content-type"
