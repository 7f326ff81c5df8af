"""`prepare`: fetches jars and creates class archives ahead of the first start."""

from __future__ import annotations

import click


@click.command()
@click.option("--jars-only", is_flag=True, help="Create no archives, which takes a minute.")
def prepare(jars_only: bool) -> None:
    """Fetch the jars, and create class archives so that Java starts faster.

    Run it once for each machine and Python environment, for example when an image is built. What
    exists is not changed. `run` fetches jars by itself, but creates no archives.

    \b
    millstream prepare
    """
    from millstream.supervise.preparation import fetch_jars, make_archives

    def report(line: str) -> None:
        click.echo(line, err=True)

    fetch_jars(report)
    if not jars_only:
        make_archives(report)
