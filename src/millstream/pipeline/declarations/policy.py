"""The options that say which callers see which rows and columns: rows, hide, ledger_rows."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from millstream.errors import QueryError
from millstream.expression.policy import PolicyCondition
from millstream.expression.policy_types import CALLER, Columns
from millstream.pipeline.declarations.declaration import Declaration
from millstream.pipeline.model import NO_POLICY, Policy
from millstream.syntax.names import suggest

POLICY_OPTIONS = ("rows", "hide")
LEDGER_ROWS = "ledger_rows"
_KEY = "key"  # the column of a ledger's entry that has the view's key columns as fields
_ROWS = f'write a condition, as in rows="tenant = {CALLER}.tenant"'
_HIDE = f"write hide={{'column': \"{CALLER}.role = 'billing'\"}}: who sees the column"


def declare_policy(
    declared: Declaration,
    known: Collection[str] | None,
    key: Collection[str],
    columns: Columns | None = None,
) -> Policy:
    """The policy of a view or stream.

    known: the names of its columns; None if only its query shows them.
    columns: the same with types, if they are declared.
    """
    rows = _rows(declared, "rows", known)
    if rows is not None and columns is not None:
        _check(declared, "rows", rows.text, lambda: rows.check(columns))
    return Policy(rows, _hide(declared, known, key))


def declare_ledger_policy(
    declared: Declaration, policy: Policy, key: tuple[str, ...], ledger: tuple[str, ...]
) -> Policy:
    """The policy of a view's ledger. An entry has the key and the amounts, no other column."""
    written = declared.get(LEDGER_ROWS)
    if not ledger:
        if written is not None:
            problem = f"has {LEDGER_ROWS} but no ledger"
            remedy = f"add ledger=['amount'], or leave {LEDGER_ROWS} out"
            raise declared.mistake(problem, remedy, LEDGER_ROWS)
        return NO_POLICY
    hidden = {name: shown for name, shown in policy.hide.items() if name in ledger}
    if written is not None:
        return Policy(_ledger_rows(declared, key), hidden)
    if policy.rows is None:
        return Policy(None, hidden) if hidden else NO_POLICY
    others = sorted(each for each in policy.rows.columns if each.lower() not in _lower(key))
    if others:
        raise declared.mistake(
            f"has a ledger, and rows uses {others[0]!r}, which a ledger's entries do not have",
            f"say who sees which entries with {LEDGER_ROWS}=, over the key columns as in "
            f'{LEDGER_ROWS}="{_KEY}.{key[0]} = {CALLER}.{key[0]}"',
            "rows",
        )
    return Policy(policy.rows.within(_KEY), hidden)


def _ledger_rows(declared: Declaration, key: tuple[str, ...]) -> PolicyCondition:
    rows = _rows(declared, LEDGER_ROWS, (_KEY,))
    assert rows is not None
    for path in rows.paths:
        if len(path) < 2 or path[1].lower() not in _lower(key):
            example = f'{LEDGER_ROWS}="{_KEY}.{key[0]} = {CALLER}.{key[0]}"'
            problem = f"has {LEDGER_ROWS} with {'.'.join(path)!r}, which is no key column"
            raise declared.mistake(problem, f"write it as in {example}", LEDGER_ROWS)
    return rows


def _rows(
    declared: Declaration, option: str, known: Collection[str] | None
) -> PolicyCondition | None:
    text = declared.get(option)
    if text is None:
        return None
    if not isinstance(text, str) or not text.strip():
        raise declared.mistake(f"has {option}={text!r}", _ROWS, option)
    condition: PolicyCondition = _check(declared, option, text, lambda: _parse(text, known))
    return condition


def _parse(text: str, known: Collection[str] | None) -> PolicyCondition:
    condition = PolicyCondition(text, "the condition")
    if known is not None:
        condition.check_names(known)
    return condition


def _hide(
    declared: Declaration, known: Collection[str] | None, key: Collection[str]
) -> dict[str, PolicyCondition]:
    written = declared.get("hide")
    if written is None:
        return {}
    if not isinstance(written, Mapping):
        raise declared.mistake(f"has hide={written!r}", _HIDE, "hide")
    return {name: _hidden(declared, name, text, known, key) for name, text in written.items()}


def _hidden(
    declared: Declaration,
    name: object,
    text: object,
    known: Collection[str] | None,
    key: Collection[str],
) -> PolicyCondition:
    if not isinstance(name, str) or not isinstance(text, str) or not text.strip():
        raise declared.mistake(f"has hide={{{name!r}: {text!r}}}", _HIDE, "hide")
    if name.lower() in _lower(key):
        raise declared.mistake(
            f"hides the key column {name!r}, and every change has its key",
            "hide rows with rows=, or take another key",
            "hide",
        )
    if known is not None and name not in known:
        problem = f"hides {name!r}, which is not one of its columns"
        raise declared.mistake(problem, suggest(name, known), "hide")
    condition: PolicyCondition = _check(declared, "hide", text, lambda: _parse(text, None))
    if condition.columns:
        raise declared.mistake(
            f"hides {name!r} by the column {min(condition.columns)!r} of a row",
            f"a column is shown to a caller or not: use {CALLER}.<claim> only",
            "hide",
        )
    return condition


def _check(declared: Declaration, option: str, text: str, check: Any) -> Any:
    try:
        return check()
    except QueryError as error:
        problem = f"has {option} {text[:100]!r}: {error.message}"
        raise declared.mistake(problem, error.remedy or _ROWS, option) from None


def _lower(names: Collection[str]) -> set[str]:
    return {name.lower() for name in names}
