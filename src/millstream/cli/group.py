"""The group of all commands, in the order in which a user needs them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import click

from millstream.cli.audit import audit
from millstream.cli.commands import (
    connections,
    doctor,
    groups,
    keys,
    plan,
    prepare,
    run,
    send,
    status,
    tiers,
)
from millstream.cli.dead_letters import failed, late, rejected, undelivered
from millstream.cli.trace import trace
from millstream.cli.views import can, drop, ledger, query, rebuild, state, tail, verify

if TYPE_CHECKING:
    from click import Context, HelpFormatter

COMMANDS: tuple[tuple[str, Iterable[click.Command]], ...] = (
    ("Run on this machine", (run.run, plan.plan, doctor.doctor, prepare.prepare)),
    (
        "Use a running system",
        (
            status.status,
            tail.tail,
            send.send,
            query.query,
            state.state,
            rebuild.rebuild,
            drop.drop,
            keys.keys,
            can.can,
            connections.connections,
            groups.groups,
        ),
    ),
    (
        "Find and check events",
        (
            trace.trace,
            audit.audit,
            verify.verify,
            ledger.ledger,
            rejected.rejected,
            late.late,
            failed.failed,
            undelivered.undelivered,
        ),
    ),
    ("Run one tier", (tiers.kafka, tiers.collect, tiers.analyze, tiers.serve)),
)


class Commands(click.Group):
    """A group whose help lists the commands by purpose."""

    def format_commands(self, ctx: Context, formatter: HelpFormatter) -> None:
        for title, commands in COMMANDS:
            with formatter.section(title):
                formatter.write_dl([(c.name or "", c.get_short_help_str(200)) for c in commands])


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(
    None, "--version", package_name="millstream", message="millstream %(version)s"
)
def millstream() -> None:
    """Collect events, analyze them continuously, and serve live results.

    \b
    millstream run pipeline.py             start everything and keep it running
    millstream send rsvps events.ndjson    send the events of a file
    millstream tail by_city                follow a view as it changes
    """


for _, commands in COMMANDS:
    for command in commands:
        millstream.add_command(command)
