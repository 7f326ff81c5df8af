"""Bills clicks from the ledger: adds up what comes, and is right at any moment.

    python billing.py                 go on as entries come
    python billing.py --once          what is owed by what is in the ledger now, as JSON
    python billing.py --state FILE    keep the sum in FILE, and go on from it after a restart

It knows nothing of windows, watermarks or corrections: an assertion is added, a retraction is
taken off. The sum and the position in the ledger are one file, replaced as one: whenever this or a
server dies, each entry is in the sum once.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from collections import Counter
from pathlib import Path

import msgspec

from millstream.client import Change, Client, Entry, Snapshot
from millstream.errors import MillstreamError

VIEW = "clicks_per_minute"
CENTS = 2  # a click


class Bill:
    """The clicks to pay for, by page, and the position up to which the ledger is in them."""

    def __init__(self, state: Path | None = None) -> None:
        self.clicks: Counter[str] = Counter()
        self.position: str | None = None
        self._state = state
        if state is not None and state.exists():
            kept = json.loads(state.read_text())
            self.clicks, self.position = Counter(kept["clicks"]), kept["position"]

    def add(self, entry: Entry) -> None:
        _, page = entry.key
        sign = {"assertion": 1, "retraction": -1}[entry.kind]
        self.clicks[page] += sign * int(entry.amounts["clicks"])

    def keep(self, position: str) -> None:
        """On disk when this returns: all of it, or the one before."""
        self.position = position
        if self._state is None:
            return
        new = self._state.with_suffix(".new")
        with new.open("w") as file:
            json.dump({"position": position, "clicks": self.clicks}, file, ensure_ascii=False)
            file.flush()
            os.fsync(file.fileno())
        new.replace(self._state)


async def add_up(client: Client, bill: Bill) -> None:
    """Take in what is in the ledger now."""
    entered = await client.ledger(VIEW, after=bill.position)
    if entered.gap is not None:  # the ledger was made anew, and these are all of its entries
        bill.clicks.clear()
    for entry in entered.entries:
        bill.add(entry)
    bill.keep(entered.position)


async def follow(client: Client, bill: Bill) -> None:
    """Take in what comes, without end; servers may go and come."""
    async with client.changes(ledger=VIEW, after=bill.position) as changes:
        async for message in changes:
            match message:
                case Snapshot():  # after a gap: all of it follows
                    bill.clicks.clear()
                    bill.keep(message.position)
                case Change(row=dict(row)):
                    entry = msgspec.convert(row, Entry)
                    bill.add(entry)
                    bill.keep(message.position)
                    show(bill, entry)


def show(bill: Bill, entry: Entry) -> None:
    page, sign = entry.key[1], "+" if entry.kind == "assertion" else "-"
    cents = bill.clicks[page] * CENTS
    print(f"{sign}{entry.amounts['clicks']:4} {page:14} {cents / 100:9.2f}", flush=True)


async def main(options: argparse.Namespace) -> None:
    bill = Bill(options.state)
    async with Client(*options.url) as client:
        await add_up(client, bill)
        if options.once:
            print(json.dumps(dict(sorted(bill.clicks.items())), ensure_ascii=False))
        else:
            await follow(client, bill)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument(
        "--url", nargs="+", default=["http://127.0.0.1:8500"], help="the pipeline's servers"
    )
    parser.add_argument("--once", action="store_true", help="end with what is in the ledger now")
    parser.add_argument("--state", type=Path, help="the file that holds the sum, if it is kept")
    try:
        asyncio.run(main(parser.parse_args()))
    except MillstreamError as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        sys.exit(130)
