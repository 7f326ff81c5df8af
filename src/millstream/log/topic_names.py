"""What the topics of a pipeline are called."""

from __future__ import annotations

from collections.abc import Iterable


def stream_topic(app: str, name: str) -> str:
    return f"{app}.stream.{name}"


def view_topic(app: str, name: str) -> str:
    return f"{app}.view.{name}"


def changes_topic(app: str, name: str, edition: int = 0) -> str:
    """Compacted: what the query of a view gives whose rows are shown otherwise."""
    return _numbered(f"{app}.changes.{name}", edition)


def output_state_topic(app: str, name: str, edition: int = 0) -> str:
    """Compacted: which rows of the view were shown, and the offset up to which that is done.

    The state of the view's ledger is always in the first edition's topic. The topic is named
    `panes` because homes already have it under that name.
    """
    return _numbered(f"{app}.panes.{name}", edition)


def ledger_topic(app: str, name: str) -> str:
    """The view's ledger: kept for ever, because it is right only as a whole."""
    return f"{app}.ledger.{name}"


def app_of_stream(topic: str, name: str) -> str:
    """The pipeline whose stream of that name has this topic."""
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
    """Compacted: what is wished of a view that is computed anew, by view name, until it is done."""
    return f"{app}.rebuilds"


def edition_topic(app: str, name: str, edition: int) -> str:
    """The topic of a view's rows; each time that it is computed anew beside the one, another."""
    return _numbered(view_topic(app, name), edition)


def _numbered(first: str, edition: int) -> str:
    return f"{first}.{edition}" if edition else first


def edition_of(topic: str) -> int:
    """Which edition of a view its topic holds."""
    last = topic.rpartition(".")[2]
    return int(last) if last.isdigit() else 0


def editions(app: str, name: str, known: Iterable[str], but: Iterable[int] = ()) -> set[str]:
    """The `known` topics that belong to editions of a view, except what its ledger rests on."""
    found, kept = set[str](), set(but)
    for first in (view_topic(app, name), changes_topic(app, name), output_state_topic(app, name)):
        found |= {each for each in known if each == first or each.startswith(f"{first}.")}
    return {
        each for each in found - {output_state_topic(app, name)} if edition_of(each) not in kept
    }


def seen_topic(app: str, name: str) -> str:
    """The senders' ids of the stream's events, for as long as a retry is recognised."""
    return f"{app}.seen.{name}"


def schemas_topic(app: str) -> str:
    """Compacted: the schema that each stream had at the last start, by stream name."""
    return f"{app}.schemas"


def keys_topic(app: str) -> str:
    """Compacted: the keys that the collectors of one cluster share; the first one counts."""
    return f"{app}.keys"
