"""Bills clicks from the ledger: adds up what comes, and is right at any moment.

    python billing.py                 go on as entries come
    python billing.py --once          what is owed by what is in the ledger now, as JSON
    python billing.py --state FILE    keep the sum in FILE, and go on from it after a restart

It needs no knowledge of windows, watermarks or corrections: it adds assertions and subtracts
retractions. The sum and the position in the ledger are in one file, which is replaced atomically:
after any crash, here or of a server, each entry is in the sum exactly once.
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
    """The clicks to bill, by page, and the position in the ledger up to which they are counted."""

    def __init__(self, state: Path | None = None) -> None:
        self.clicks: Counter[str] = Counter()
        self.position: str | None = None
        self._state = state
        if state is not None and state.exists():
            stored = json.loads(state.read_text())
            self.clicks, self.position = Counter(stored["clicks"]), stored["position"]

    def add(self, entry: Entry) -> None:
        _, page = entry.key
        sign = {"assertion": 1, "retraction": -1}[entry.kind]
        self.clicks[page] += sign * int(entry.amounts["clicks"])

    def save(self, position: str) -> None:
        """Store the bill atomically; it is on disk when this returns."""
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
    """Add all entries that are in the ledger now."""
    entered = await client.ledger(VIEW, after=bill.position)
    if entered.gap is not None:  # the ledger was created again, and these are all of its entries
        bill.clicks.clear()
    for entry in entered.entries:
        bill.add(entry)
    bill.save(entered.position)


async def follow(client: Client, bill: Bill) -> None:
    """Add new entries for ever; the client reconnects when a server fails."""
    async with client.changes(ledger=VIEW, after=bill.position) as changes:
        async for message in changes:
            match message:
                case Snapshot():  # after a gap: all entries follow
                    bill.clicks.clear()
                    bill.save(message.position)
                case Change(row=dict(row)):
                    entry = msgspec.convert(row, Entry)
                    bill.add(entry)
                    bill.save(message.position)
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
