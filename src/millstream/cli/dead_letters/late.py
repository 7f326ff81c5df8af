"""`late`: events that missed their windows, or are in no view."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from millstream.cli.dead_letters.topic_commands import add_list_and_show

if TYPE_CHECKING:
    from millstream.log.dead_letters.late import Late
    from millstream.log.dead_letters.topic import Kind


@click.group()
def late() -> None:
    """List and show events that came too late, are dated in the future, or break a query.

    An event is late for a window if it arrives after the window's end plus the stream's lateness;
    that window's row does not contain it. An event that is dated too far in the future, or has no
    readable time, is in no view. An event that makes a view's query fail is missing from that view.
    The late topic holds all of them, with the windows that they missed.

    \b
    millstream late list clicks --since "1 hour"
    millstream late show clicks/0/17
    """


def late_kind() -> Kind[Late]:
    from millstream.log.dead_letters.late import LATE

    return LATE


add_list_and_show(
    late,
    late_kind,
    list_help="""List a stream's late events, the newest last.

    \b
    millstream late list clicks
    millstream late list clicks --reason future --limit 100 --json
    """,
    show_help="""Show a late event: how late it was, which windows it missed, its headers and bytes.

    \b
    millstream late show clicks/0/17
    millstream late show clicks/0/17 --raw > event.json
    """,
)
