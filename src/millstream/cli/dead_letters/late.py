"""`late`: events that are in no window any more, or in no view, to list and look at."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from millstream.cli.dead_letters.set_aside import add_looks

if TYPE_CHECKING:
    from millstream.log.dead_letters.late import Late
    from millstream.log.dead_letters.topic import Shelf


@click.group()
def late() -> None:
    """List and show events that came too late, from the future, or broke a query.

    An event that comes behind its window's end and the stream's lateness is not in that window's
    row. One that is dated too far in the future, or has no time that can be read, is in no view,
    and one that a query fails on is not in that view. All of them are here, with the windows that
    they missed.

    \b
    millstream late list clicks --since "1 hour"
    millstream late show clicks/0/17
    """


def shelf_of() -> Shelf[Late]:
    from millstream.log.dead_letters.late import LATE

    return LATE


add_looks(
    late,
    shelf_of,
    listing="""List a stream's late events, the newest last.

    \b
    millstream late list clicks
    millstream late list clicks --reason future --limit 100 --json
    """,
    showing="""Show a late event: how late, for which windows, its headers, its bytes.

    \b
    millstream late show clicks/0/17
    millstream late show clicks/0/17 --raw > event.json
    """,
)
