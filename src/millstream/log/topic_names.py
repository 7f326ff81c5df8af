"""Names of the topics of an app."""

from __future__ import annotations

from collections.abc import Iterable


def stream_topic(app: str, name: str) -> str:
    return f"{app}.stream.{name}"


def view_topic(app: str, name: str) -> str:
    return f"{app}.view.{name}"


def changes_topic(app: str, name: str, edition: int = 0) -> str:
    """Compacted: all rows of the query, if the view shows only some of them, or later."""
    return _numbered(f"{app}.changes.{name}", edition)


def output_state_topic(app: str, name: str, edition: int = 0) -> str:
    """Compacted: which rows of the view were shown, and the offset up to which that is done.

    The state of the view's ledger is always in the first edition's topic. The topic is named
    `panes` because homes already have it under that name.
    """
    return _numbered(f"{app}.panes.{name}", edition)


def ledger_topic(app: str, name: str) -> str:
    """The view's ledger: kept for ever, because only all of it adds up."""
    return f"{app}.ledger.{name}"


def app_of_stream(topic: str, name: str) -> str:
    """The app that a stream's topic belongs to."""
    return topic.removesuffix(stream_topic("", name))


def rejected_topic(app: str, name: str) -> str:
    return f"{app}.rejected.{name}"


def late_topic(app: str, name: str) -> str:
    return f"{app}.late.{name}"


def audit_topic(app: str) -> str:
    return f"{app}.audit"


def views_topic(app: str) -> str:
    """Compacted: a `ViewDescription` by view name."""
    return f"{app}.views"


def rebuilds_topic(app: str) -> str:
    """Compacted: requests to rebuild a view, by view name, until they are done."""
    return f"{app}.rebuilds"


def edition_topic(app: str, name: str, edition: int) -> str:
    """The topic of a view's rows; every rebuild writes to a new one."""
    return _numbered(view_topic(app, name), edition)


def _numbered(first: str, edition: int) -> str:
    return f"{first}.{edition}" if edition else first


def edition_of(topic: str) -> int:
    """The edition of a view that a topic holds."""
    last = topic.rpartition(".")[2]
    return int(last) if last.isdigit() else 0


def editions(app: str, name: str, known: Iterable[str], but: Iterable[int] = ()) -> set[str]:
    """The `known` topics of a view's editions, except those that its ledger needs."""
    found, kept = set[str](), set(but)
    for first in (view_topic(app, name), changes_topic(app, name), output_state_topic(app, name)):
        found |= {each for each in known if each == first or each.startswith(f"{first}.")}
    return {
        each for each in found - {output_state_topic(app, name)} if edition_of(each) not in kept
    }


def seen_topic(app: str, name: str) -> str:
    """The senders' ids of a stream's events, for as long as duplicates are recognised."""
    return f"{app}.seen.{name}"


def schemas_topic(app: str) -> str:
    """Compacted: the schema of each stream at the last start, by stream name."""
    return f"{app}.schemas"


def keys_topic(app: str) -> str:
    """Compacted: the signing keys that all collectors of a cluster share; the first one counts."""
    return f"{app}.keys"


def groups_topic(app: str) -> str:
    """Compacted: the definition of each group, by its name."""
    return f"{app}.groups"


def undelivered_topic(app: str, group: str) -> str:
    """Compacted: messages of a group that were set aside, or are to be delivered again."""
    return f"{app}.undelivered.{group}"
