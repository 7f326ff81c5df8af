"""What is lost with a damaged entry of the journal is counted, listed, and acknowledged."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.cli.collecting import collector, stored
from tests.conftest import Eventually

from millstream.cli.dead_letters.damaged import damage_counts
from millstream.collect.settings import CollectSettings
from millstream.log.broker import Broker
from millstream.log.settings import LogSettings
from millstream.runtime.home import Home

if TYPE_CHECKING:
    from tests.cli.conftest import Run

SCHEMA = "id LONG, city STRING"
SETTINGS = CollectSettings(port=0, stop_timeout=0.2)
EVENTS = 25  # in an entry


def batch(number: int) -> bytes:
    """A body whose events all name this number."""
    return b"\n".join(b'{"id": %d, "city": "n%d"}' % (n, number) for n in range(EVENTS))


def damage(home: Path, number: int) -> None:
    """Turn one bit over in the entry that holds that body."""
    for path in (home / "journal" / "0").glob("*.segment"):
        data = bytearray(path.read_bytes())
        at = data.find(b'"n%d"' % number)
        if at >= 0:
            data[at + 1] ^= 4
            path.write_bytes(data)
            return
    raise AssertionError(f"no segment holds body {number}")


def audited(run: Run, app_name: str) -> tuple[int, dict[str, Any]]:
    outcome = run("audit", "--app", app_name, "--json")
    return outcome.code, json.loads(outcome.out)


def problems(run: Run) -> list[str]:
    """What `status` says is wrong, but that the test runs no other tier."""
    found: list[str] = json.loads(run("status", "--json").out)["problems"]
    return [each for each in found if not each.endswith(" is down")]


def test_a_damaged_entry_is_named_until_its_loss_is_acknowledged_and_counted_for_ever(
    run: Run, own_broker: Broker, app_name: str, tmp_path: Path, eventually: Eventually
) -> None:
    home, log = tmp_path / ".millstream", LogSettings(bootstrap=own_broker.bootstrap)
    with collector(app_name, log, home, SCHEMA, SETTINGS) as http:
        http.post("/v1/streams/orders", content=batch(0))
        assert audited(run, app_name)[0] == 0
        os.kill(own_broker.pid, signal.SIGSTOP)
        for number in range(1, 4):
            answer = http.post("/v1/streams/orders?ack=local", content=batch(number))
            assert answer.status_code == 202
    damage(home, 2)
    os.kill(own_broker.pid, signal.SIGCONT)

    with collector(app_name, log, home, SCHEMA, SETTINGS):
        eventually(lambda: len(stored(log, app_name)) == 3 * EVENTS)
        eventually(lambda: audited(run, app_name)[1]["streams"]["orders"]["damaged"] == EVENTS)
        code, balance = audited(run, app_name)
        row = balance["streams"]["orders"]
        assert (row["accepted"], row["logged"], row["unseen"]) == (4 * EVENTS, 3 * EVENTS, 0)
        assert (code, row["off"], balance["adds_up"]) == (1, 0, False)
        (problem,) = balance["problems"]
        assert "1 damaged entries of the journal: 25 events were accepted and are lost" in problem
        assert "it adds up" not in run("audit", "--app", app_name).out
        assert run("status").code == 1
        assert "25 events were accepted and are lost" in problems(run)[0]

        listed = json.loads(run("failed", "list", "--json").out)
        assert listed["events"] == {"orders": EVENTS}
        assert listed["entries"] == 1
        assert '"city": "n2"' in listed["event"]
        assert f"{EVENTS} events of orders" in run("failed", "show", listed["id"]).out
        again = run("failed", "retry", listed["id"])
        assert again.code == 1
        assert "its bytes are damaged" in again.err

    # All of it starts again, and still knows.
    with collector(app_name, log, home, SCHEMA, SETTINGS):
        assert "25 events" in problems(run)[0]
        eventually(lambda: audited(run, app_name)[1]["streams"]["orders"]["damaged"] == EVENTS)
        assert run("failed", "drop", listed["id"], "--yes").out == "1 dropped\n"
        assert problems(run) == []
        assert run("failed", "list").out == ""
        eventually(lambda: audited(run, app_name)[0] == 0)
        said = run("audit", "--app", app_name).out
        assert "it adds up, with 25 events that were lost to damage and acknowledged" in said

    with collector(app_name, log, home, SCHEMA, SETTINGS):
        assert problems(run) == []
        eventually(lambda: audited(run, app_name)[1]["streams"]["orders"]["damaged"] == EVENTS)
        assert audited(run, app_name)[0] == 0
        assert damage_counts(Home(home)).acknowledged == 1


def test_an_entry_that_is_in_the_log_already_is_not_lost(
    run: Run, log_settings: LogSettings, app_name: str, tmp_path: Path
) -> None:
    home = tmp_path / ".millstream"
    with collector(app_name, log_settings, home, SCHEMA, SETTINGS) as http:
        answer = http.post("/v1/streams/orders", content=batch(1))
        assert answer.status_code == 200
        # As after a kill: the journal does not know yet that Kafka has the entry.
        (segment,) = (home / "journal" / "0").glob("*.segment")
        before = segment.read_bytes()
    segment.write_bytes(before)
    (home / "journal" / "0" / "identity").unlink()
    damage(home, 1)
    with collector(app_name, log_settings, home, SCHEMA, SETTINGS):
        assert problems(run) == []
        assert run("failed", "list").out == ""
        assert len(stored(log_settings, app_name)) == EVENTS
