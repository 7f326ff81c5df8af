"""An editors' desk: takes alerts from the group of all desks, and handles each of them.

    python desk.py --name culture                  handle alerts until Ctrl-C
    python desk.py --name culture --log FILE       also write each alert to FILE, one per line
    python desk.py --name culture --seconds 20     its editor needs 20 seconds for an alert

Start as many desks as there are editors, on any machines. Each alert goes to one of them. When a
desk dies before it has handled an alert, another desk gets it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from millstream.client import Client
from millstream.errors import MillstreamError

GROUP, VIEW = "desks", "alerts"


async def work(client: Client, desk: str, seconds: float, log: Path | None) -> None:
    """Handle alerts for ever; each is acknowledged when it is handled, and refused on an error."""
    async with client.group(GROUP, VIEW) as messages:
        async for message in messages:
            if message.row is not None:  # a deleted row is no alert
                await asyncio.sleep(seconds)
                record(desk, message.row, message.attempt, log)


def record(desk: str, alert: Mapping[str, Any], attempt: int, log: Path | None) -> None:
    """Write down that this desk has handled the alert."""
    again = f" (attempt {attempt})" if attempt > 1 else ""
    print(f"{desk}: {alert['status']} {alert['url']}{again}", flush=True)
    if log is not None:
        with log.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"desk": desk, "attempt": attempt, **alert}) + "\n")


async def main(options: argparse.Namespace) -> None:
    key = options.key_file.read_text().strip() if options.key_file else ""
    async with Client(*options.url, key=key) as client:
        await work(client, options.name, options.seconds, options.log)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--name", default="desk", help="the desk's name, in what it writes")
    parser.add_argument(
        "--url", nargs="+", default=["http://127.0.0.1:8500"], help="the pipeline's servers"
    )
    parser.add_argument("--key-file", type=Path, help="has the API key, if the servers want one")
    parser.add_argument(
        "--seconds", type=float, default=0.0, help="that its editor needs for an alert (0)"
    )
    parser.add_argument("--log", type=Path, metavar="FILE", help="append each alert to FILE")
    try:
        asyncio.run(main(parser.parse_args()))
    except MillstreamError as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        sys.exit(130)
