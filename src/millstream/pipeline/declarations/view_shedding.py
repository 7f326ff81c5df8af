"""The option that lets a view take a sample of its input while it cannot keep up."""

from __future__ import annotations

from datetime import timedelta
from typing import Literal

from millstream.pipeline.declarations.option_checks import duration
from millstream.pipeline.declarations.view_output import OutputOptions
from millstream.pipeline.model import WEIGHED_ONLY
from millstream.syntax.source_location import Statement, mistake

LEAST = timedelta(seconds=5)  # a query that is started anew is as far behind as that


def declare_shed(
    statement: Statement,
    what: str,
    value: object,
    key: tuple[str, ...] | None,
    output: OutputOptions,
) -> timedelta | Literal["stream"] | None:
    """What the option says, for a view that is a table and tells its rows as they are."""
    if value is None:
        return None
    if key is None:
        raise mistake(
            statement,
            f"{what} has shed but no key, and only counts and sums of groups can be estimated",
            remedy="group, and add key=[…], or leave shed out",
            option="shed",
        )
    for has, why in (
        (output.ledger, "a ledger, and an estimate is nothing to bill by"),
        (output.accumulation == "discard", "accumulation='discard', and what is new has no error"),
    ):
        if has:
            raise mistake(
                statement,
                f"{what} has shed together with {why}",
                remedy="leave one of them out",
                option="shed",
            )
    if value == WEIGHED_ONLY:
        return WEIGHED_ONLY
    if isinstance(value, str) and not any(each.isdigit() for each in value):
        raise mistake(
            statement,
            f"{what} has shed={value!r}",
            remedy="write how far behind it may be, as in shed='30 seconds', or 'stream' to only "
            "weigh what its streams have shed",
            option="shed",
        )
    allowed = duration(statement, what, "shed", value)
    if allowed < LEAST:
        raise mistake(
            statement,
            f"{what} has shed={value!r}, which any restart of its query takes",
            remedy="write 5 seconds or more, as in shed='30 seconds'",
            option="shed",
        )
    return allowed
