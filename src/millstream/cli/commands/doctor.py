"""`doctor`: checks that this machine can run Millstream."""

from __future__ import annotations

from pathlib import Path

import click

from millstream.cli.shared.options import Flags, home_option, json_option, set_option, settings_of
from millstream.cli.shared.outcome import FAILED

SIGNS = {"good": ("✓", "green"), "missing": ("✗", "red"), "optional": ("○", "yellow")}


@click.command()
@click.argument("pipeline", type=click.Path(path_type=Path), required=False, metavar="[PIPELINE]")
@home_option
@set_option
@json_option
def doctor(pipeline: Path | None, home: Path, assignments: tuple[str, ...], as_json: bool) -> int:
    """Check this machine: Java, jars, memory, disk, ports.

    Each line is ✓ good, ✗ missing, with its remedy, or ○ missing but not required. The exit code is
    1 if something is missing. The ports of a system that runs here count as taken.

    \b
    millstream doctor
    millstream doctor pipeline.py --set serve.port=9000
    """
    import json
    from dataclasses import asdict

    from millstream.supervise.machine_checks import checks

    findings = []
    for check in checks(settings_of(pipeline, Flags(assignments)), home):
        findings.append(check)
        if not as_json:
            sign, colour = SIGNS[check.state]
            remedy = f"\n  → {check.remedy}" if check.remedy else ""
            click.echo(f"{click.style(sign, fg=colour)} {check.name:<16} {check.found}{remedy}")
    if as_json:
        click.echo(json.dumps([asdict(check) for check in findings], indent=2))
    return FAILED if any(check.state == "missing" for check in findings) else 0
