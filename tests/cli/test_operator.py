"""Commands on the machine of a server with logins need no key, and give theirs to no other."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer
from tests.cli.conftest import PIPELINE
from tests.web.certificate_authority import Authority

from millstream.log.settings import LogSettings
from millstream.log.topic_names import stream_topic
from millstream.runtime.home import Home
from millstream.runtime.operator_key import find_operator_key

if TYPE_CHECKING:
    from tests.cli.conftest import Run
    from tests.conftest import Eventually


@pytest.fixture(scope="module")
def home(
    tmp_path_factory: pytest.TempPathFactory, log_settings: LogSettings, eventually: Eventually
) -> Iterator[Home]:
    """The home of a running server with TLS, which accepts keys and certificates."""
    folder = tmp_path_factory.mktemp("operator")
    authority = Authority(folder, "authority")
    certificate, key = authority.issue("server", "views.example")
    (folder / "pipeline.py").write_text(PIPELINE.replace('"shop"', '"operatorshop"'))
    (folder / "millstream.toml").write_text(
        f"""
        [log]
        bootstrap = "{log_settings.bootstrap}"
        [serve]
        auth = ["key", "certificate"]
        tls_certificate = "{certificate}"
        tls_key = "{key}"
        tls_client_ca = "{authority.file}"
        """
    )
    home = Home(folder / "home")
    command = ("-m", "millstream", "serve", "pipeline.py", "--serve-port", "0")
    with subprocess.Popen([sys.executable, *command, "--home", home.path], cwd=folder) as process:
        try:
            eventually(lambda: "serve" in home.running() or process.poll() is not None)
            yield home
        finally:
            process.send_signal(signal.SIGTERM)


def test_every_command_that_asks_the_server_works_without_a_key(
    run: Run, home: Home, log_settings: LogSettings
) -> None:
    where = ("--home", str(home.path))
    producer = Producer({"bootstrap.servers": log_settings.bootstrap})
    producer.produce(stream_topic("operatorshop", "orders"), json.dumps({"id": 7}), "7")
    assert producer.flush(30) == 0
    asked = run("query", "SELECT 40 + 2 AS answer", *where)
    assert (asked.code, asked.out) == (0, '{"answer": 42}\n'), asked.err
    followed = run("tail", "orders", "-n", "1", *where)
    assert followed.code == 0, followed.err
    assert json.loads(followed.out)["row"]["id"] == 7
    shown = run("status", "--json", *where)
    system = json.loads(shown.out)["system"]
    assert system["app"] == "operatorshop"
    assert find_operator_key(home) not in shown.out


def test_another_server_needs_a_key_and_gets_none_by_itself(
    run: Run, home: Home, monkeypatch: pytest.MonkeyPatch, eventually: Eventually
) -> None:
    entry = home.running()["serve"]
    url, ca = entry["url"], str(Path(entry["certificate"]).parent / "authority.pem")
    refused = run("query", "SELECT 1", "--url", url, "--ca", ca, "--home", str(home.path))
    assert refused.code == 1
    assert "no key or token came with the request" in refused.err
    made = run("keys", "create", "asker", "--query", "*", "--home", str(home.path))
    Path("asker.key").write_text(made.out)
    words = ("query", "SELECT 1 AS one", "--url", url, "--ca", ca, "--key-file", "asker.key")
    eventually(lambda: run(*words).out == '{"one": 1}\n')  # the server reads the file again
    monkeypatch.setenv("MILLSTREAM_KEY", "msk_wrong")
    assert "unknown, revoked or expired" in run("query", "SELECT 1", "--home", str(home.path)).err


def test_an_address_that_is_given_never_gets_the_operators_key(run: Run, home: Home) -> None:
    seen: list[str] = []

    class Thief(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            seen.append(str(self.headers))
            self.send_error(500)

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Thief) as server:
        Thread(target=server.handle_request).start()
        url = f"http://127.0.0.1:{server.server_port}"
        assert run("query", "SELECT 1", "--url", url, "--home", str(home.path)).code == 1
    assert seen
    assert find_operator_key(home) not in seen[0]
    assert "uthorization" not in seen[0]
