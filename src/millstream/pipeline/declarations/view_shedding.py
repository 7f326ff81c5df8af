"""The option `shed` of a view: it may process a sample of its input when it falls behind."""

from __future__ import annotations

from datetime import timedelta
from typing import Literal

from millstream.pipeline.declarations.declaration import Declaration
from millstream.pipeline.declarations.view_output import OutputOptions
from millstream.pipeline.model import WEIGHED_ONLY

LEAST = timedelta(seconds=5)  # a query falls this far behind whenever it is restarted


def declare_shed(
    declared: Declaration, key: tuple[str, ...] | None, output: OutputOptions
) -> timedelta | Literal["stream"] | None:
    """The parsed option; PipelineError if the view's other options do not allow it."""
    value = declared.get("shed")
    if value is None:
        return None
    if key is None:
        raise declared.mistake(
            "has shed but no key, and only counts and sums of groups can be estimated",
            "group, and add key=[…], or leave shed out",
            "shed",
        )
    for has, why in (
        (output.ledger, "a ledger, which needs exact amounts"),
        (output.accumulation == "discard", "accumulation='discard', whose rows have no error"),
    ):
        if has:
            problem = f"has shed together with {why}"
            raise declared.mistake(problem, "leave one of them out", "shed")
    if value == WEIGHED_ONLY:
        return WEIGHED_ONLY
    if isinstance(value, str) and not any(each.isdigit() for each in value):
        raise declared.mistake(
            f"has shed={value!r}",
            "write how far behind it may be, as in shed='30 seconds', or 'stream' to only weigh "
            "what its streams have shed",
            "shed",
        )
    allowed = declared.duration("shed", "")
    if allowed < LEAST:
        raise declared.mistake(
            f"has shed={value!r}, which is less than a restart of its query takes",
            "write 5 seconds or more, as in shed='30 seconds'",
            "shed",
        )
    return allowed
