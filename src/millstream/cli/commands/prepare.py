"""`prepare`: what a first start would do, done ahead."""

from __future__ import annotations

import click


@click.command()
@click.option("--jars-only", is_flag=True, help="Make no archives, which takes a minute.")
def prepare(jars_only: bool) -> None:
    """Fetch the jars, and make class archives so that Java starts faster.

    Once for each machine and Python environment, such as while an image is built; what is there
    already is left alone. `run` fetches jars by itself, but makes no archives.

    \b
    millstream prepare
    """
    from millstream.supervise.preparation import fetch_jars, make_archives

    def report(line: str) -> None:
        click.echo(line, err=True)

    fetch_jars(report)
    if not jars_only:
        make_archives(report)
