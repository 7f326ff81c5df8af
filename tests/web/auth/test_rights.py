"""Rights: which words allow what."""

from __future__ import annotations

import pytest

from millstream.web.auth.caller import ANYBODY, Caller
from millstream.web.auth.rights import ACTIONS, KINDS, Rights
from millstream.web.problem import Problem


def test_a_pattern_allows_every_kind_of_that_name_unless_it_names_one() -> None:
    rights = Rights(["read:orders", "read:ledger/bills", "write:clicks_*"])
    assert all(rights.allows("read", kind, "orders") for kind in KINDS)
    assert rights.allows("read", "ledger", "bills")
    assert not rights.allows("read", "view", "bills")
    assert rights.allows("write", "stream", "clicks_eu")
    assert not rights.allows("write", "stream", "orders")
    assert not rights.allows("query", "view", "orders")
    assert not rights.allows("admin")


@pytest.mark.parametrize("word", ["", "read", "read:", "admin:x", "delete:x", "read:a b", "Read:x"])
def test_a_word_that_is_no_right_is_named(word: str) -> None:
    with pytest.raises(ValueError, match="is no right"):
        Rights([word])


def test_only_the_star_is_special_in_a_pattern() -> None:
    rights = Rights.of({"read": ["a.c", "x*z"]}, admin=True)
    assert not rights.allows("read", "view", "abc")
    assert rights.allows("read", "view", "x..z")
    assert rights.allows("admin")


def test_a_caller_without_the_right_is_refused_with_what_is_missing() -> None:
    caller = Caller("key", "shop", Rights(["write:clicks"]))
    caller.check("write", "stream", "clicks")
    with pytest.raises(Problem, match="key 'shop' may not read view 'orders'") as refused:
        caller.check("read", "view", "orders")
    assert (refused.value.status, refused.value.content["missing"]) == (403, {"read": "orders"})
    for action in ACTIONS:
        ANYBODY.check(action, "view", "orders")
