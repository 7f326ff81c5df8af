"""No process of a system listens where it should not: every listener is on a list."""

from __future__ import annotations

import contextlib
import ipaddress
import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest
from tests.end_to_end.conftest import PIPELINE

if TYPE_CHECKING:
    from tests.end_to_end.conftest import StartSystem, System

LISTENS = "0A"  # as /proc/net/tcp writes the state


class Listener(NamedTuple):
    address: str
    port: int
    inode: str


def listeners() -> list[Listener]:
    """Every TCP socket of this machine that listens."""
    found = []
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(table).read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == LISTENS:
                address, _, port = fields[1].partition(":")
                found.append(Listener(_address(address), int(port, 16), fields[9]))
    return found


def _address(written: str) -> str:
    """Words of four bytes, each in the machine's order: 0100007F is 127.0.0.1."""
    words = [bytes.fromhex(written[at : at + 8])[::-1] for at in range(0, len(written), 8)]
    address = ipaddress.ip_address(b"".join(words))
    mapped = getattr(address, "ipv4_mapped", None)
    return str(mapped or address)


def inodes(pid: int) -> set[str]:
    """Of the sockets that a process has open."""
    found = set()
    with contextlib.suppress(OSError):  # it has ended
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                name = os.readlink(entry)
                if name.startswith("socket:["):
                    found.add(name[8:-1])
    return found


def open_ports(system: System) -> dict[int, list[tuple[str, int]]]:
    """By process of the system, where it listens."""
    everywhere = listeners()
    return {
        pid: [(each.address, each.port) for each in everywhere if each.inode in held]
        for pid in system.processes()
        if (held := inodes(pid))
    }


@pytest.mark.timeout(600)
def test_a_system_listens_on_its_own_address_alone(start_system: StartSystem) -> None:
    batches = """
app.view("batches", key=["city"], mode="micro_batch", sql="SELECT city, max(amount) AS most "
         "FROM orders GROUP BY city")
"""
    with start_system(PIPELINE + batches) as system:
        system.post("orders", {"id": 1, "city": "Bern", "amount": 2000})
        for view in ("by_city", "large", "batches"):
            system.until(partial(system.rows, view), what=f"a row of {view}")
        ports = open_ports(system)
        assert ports[system.pid("spark")], "Spark's listeners are not seen"
        allowed = {
            system.pid("kafka"): "Kafka: its listener and its controller's",
            system.pid("collect"): "the collector",
            system.pid("serve"): "the server",
            system.pid("spark"): "Spark: the driver, its blocks, py4j, and real-time shuffles",
            system.pid("analyze"): "py4j's way back",
        }
        strangers = {pid: found for pid, found in ports.items() if found and pid not in allowed}
        assert not strangers, system.processes()
        elsewhere = {
            allowed[pid]: wrong
            for pid, found in ports.items()
            if (wrong := [each for each in found if each[0] not in ("127.0.0.1", "::1")])
        }
        assert not elsewhere
        assert len(ports[system.pid("collect")]) == len(ports[system.pid("serve")]) == 1
        assert len(ports[system.pid("kafka")]) == 2
