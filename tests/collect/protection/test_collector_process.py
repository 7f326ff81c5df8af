"""Tests web/ and web/auth/ through a running collector process with a real Kafka.

The process is fuzzed and asked for data of others. No answer, output, log or report may contain a
secret, and the process must neither fail nor grow.
"""

from __future__ import annotations

import errno
import json
import re
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.collect.conftest import read_topic
from tests.collect.protection.collector_process import CollectorProcess, collector_process

from millstream.cli.invoke import invoke
from millstream.log.settings import LogSettings
from millstream.log.topic_names import audit_topic

CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
    "unsupported_method",
    "allow_header_conformance",
    "ignored_auth",
)
GROWTH = 40 << 20  # bytes: caches fill, buffers get their size; what leaks goes on growing


@pytest.fixture(scope="module")
def name() -> str:
    return f"app{uuid.uuid4().hex[:10]}"


@pytest.fixture(scope="module")
def collector(
    name: str, log_settings: LogSettings, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[CollectorProcess]:
    folder = tmp_path_factory.mktemp("guarded")
    with collector_process(folder, name, log_settings.bootstrap) as started:
        yield started


@pytest.fixture(scope="module")
def key(collector: CollectorProcess) -> str:
    key = collector.keys.create("all", ["*"])
    with collector.http(key) as http:
        deadline = time.monotonic() + 30
        while http.get("/v1/streams").status_code == 401:
            assert time.monotonic() < deadline, collector.printed()
            time.sleep(0.05)
    return key


def is_well(collector: CollectorProcess) -> None:
    """It is up and has not grown, and nothing failed on the way."""
    assert collector.process.poll() is None
    assert collector.resident() - collector.at_start < GROWTH
    with collector.http() as http:
        assert http.get("/health/ready").status_code == 200
    printed = collector.printed()
    assert "Traceback" not in printed, printed
    assert "ERROR" not in printed, printed


def test_every_request_is_answered_as_openapi_describes(
    collector: CollectorProcess, key: str, tmp_path: Path
) -> None:
    answer = subprocess.run(
        [
            *(sys.executable, "-m", "schemathesis.cli", "run", f"{collector.url}/v1/openapi.json"),
            *("--header", f"Authorization: Bearer {key}", "--checks", ",".join(CHECKS)),
            *("--phases", "coverage,fuzzing", "--max-examples", "10", "--seed", "7"),
            *("--generation-database", "none", "--no-shrink", "--max-time", "12"),
            *("--exclude-path-regex", "/v1/streams/(notes|pulled)"),  # as clicks is
            *("--request-timeout", "10", "--continue-on-failure", "--no-color"),
        ],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=200,
    )
    assert answer.returncode == 0, answer.stdout + answer.stderr
    is_well(collector)


LINES = st.sampled_from(
    [
        b"POST /v1/streams/clicks HTTP/1.1\r\n",
        b"GET /v1/streams HTTP/1.1\r\n",
        b"OPTIONS * HTTP/1.1\r\n",
        b"CONNECT a:1 HTTP/1.1\r\n",
        b"GET http://localhost/health/live?a=%zz HTTP/1.0\r\n",
        b"POST /v1/streams/%00 HTTP/1.1\r\n",
        b"host: localhost\r\n",
        b"content-length: 5\r\n",
        b"content-length: 99999999999\r\n",
        b"transfer-encoding: chunked\r\n",
        b"transfer-encoding: gzip, chunked\r\n",
        b"content-encoding: gzip\r\n",
        b"content-encoding: zstd\r\n",
        b"content-type: application/cloudevents+json\r\n",
        b"content-type: text/csv\r\n",
        b"ce-id: \xff\r\n",
        b"idempotency-key: \x80\r\n",
        b"expect: 100-continue\r\n",
        b"connection: upgrade\r\nupgrade: h2c\r\n",
        b"connection: close\r\n",
        b"authorization: Bearer {key}\r\n",
        b"authorization: Bearer a.b.c\r\n",
        b" folded: yes\r\n",
        b"x: " + b"y" * 5000 + b"\r\n",
        b"\r\n",
        b"\r\n",
        b"5\r\n{}\r\n\n\r\n",
        b"0\r\n\r\n",
        b"ffffffff\r\n",
        b'{"id": 1, "at": 5}\n',
        b"[" * 600,
        b"\x1f\x8b\x08\0",
        b"\x28\xb5\x2f\xfd",
        b"\0",
        b"\n",
    ]
)
BYTES = st.lists(st.one_of(LINES, LINES, LINES, st.binary(max_size=40)), max_size=14)


@settings(max_examples=500, derandomize=True)
@given(pieces=st.lists(BYTES, min_size=1, max_size=4))
def test_arbitrary_bytes_on_the_port_do_not_make_it_fail(
    collector: CollectorProcess, key: str, pieces: list[list[bytes]]
) -> None:
    with socket.create_connection(("127.0.0.1", collector.port), timeout=20) as connection:
        try:
            for piece in pieces:
                connection.sendall(b"".join(piece).replace(b"{key}", key.encode()))
            connection.shutdown(socket.SHUT_WR)
            answer = b""
            while chunk := connection.recv(65536):
                answer += chunk
        except OSError as error:
            # It may hang up on us; to say that we are done is an error of its own then.
            if isinstance(error, ConnectionError) or error.errno == errno.ENOTCONN:
                return
            raise
    assert answer == b"" or answer.startswith(b"HTTP/1.1 ")
    assert b"HTTP/1.1 500" not in answer


def test_it_still_works_after_all_these_bytes(collector: CollectorProcess) -> None:
    is_well(collector)


def test_limits_hold_in_the_real_application(collector: CollectorProcess, key: str) -> None:
    good = '{"text": "x"}'
    lines = {"content-type": "application/x-ndjson"}
    with collector.http(key) as http:
        many = http.post("/v1/streams/notes", content=f"{good}\n" * 1001, headers=lines)
        assert (many.status_code, many.json()["title"]) == (413, "Request Entity Too Large")
        assert "max_events" in many.json()["detail"]
        deep = '{"text": "x", "y": ' + "[" * 60 + "]" * 60 + "}"
        long = json.dumps({"text": "x" * 3000})
        some = http.post("/v1/streams/notes", content=f"{good}\n{long}\n{deep}", headers=lines)
        assert some.json()["accepted"] == 1
        errors = [each["error"] for each in some.json()["rejected"]]
        assert "3012 bytes, of at most 2000" in errors[0]
        assert "more than 50 deep" in errors[1]


def test_refused_requests_are_counted_by_reason(collector: CollectorProcess, key: str) -> None:
    reader = collector.keys.create("reader", ["clicks"])

    def counted(reason: str) -> int:
        with collector.http(key) as http:
            text = http.get("/metrics").text
        found = re.search(rf'turned_away_total\{{reason="{reason}"\}} (\d+)', text)
        return int(found[1]) if found else 0

    before = {reason: counted(reason) for reason in ("login", "rights", "not_http")}
    with collector.http("msk_wrong") as http:
        assert http.get("/v1/streams").status_code == 401
    with collector.http(reader) as http:
        deadline = time.monotonic() + 30
        while http.get("/v1/streams").status_code == 401:
            before["login"] += 1
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert http.post("/v1/streams/notes", content='{"text": "x"}').status_code == 403
    with socket.create_connection(("127.0.0.1", collector.port)) as peer:
        peer.sendall(b"this is no HTTP\r\n\r\n")
        assert peer.recv(100).startswith(b"HTTP/1.1 400")
    assert {reason: counted(reason) for reason in before} == {
        reason: count + 1 for reason, count in before.items()
    }


def test_a_web_page_of_an_unknown_origin_cannot_send(collector: CollectorProcess, key: str) -> None:
    with collector.http(key) as http:

        def status(origin: str) -> int:
            answer = http.post(
                "/v1/streams/notes", content='{"text": "x"}', headers={"origin": origin}
            )
            return answer.status_code

        assert [status(each) for each in ("https://evil.example", "null")] == [403, 403]
        assert status(collector.url) == 200


def test_a_batch_costs_as_many_as_it_has_events(collector: CollectorProcess, key: str) -> None:
    slow = collector.keys.create("slow", ["notes", "ticks"], rate=20.0)
    with collector.http(slow) as http:
        deadline = time.monotonic() + 30
        while (first := http.get("/v1/streams")).status_code == 401:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert first.headers["ratelimit-policy"] == '"events";q=20;w=1'
        batch = http.post("/v1/streams/notes", content='{"text": "x"}\n' * 300)
        assert batch.json()["accepted"] == 300
        assert batch.headers["ratelimit"].startswith('"events";r=0;')
        refused = http.post("/v1/streams/ticks", content='{"id": 1}')
        assert refused.status_code == 429
        assert 1 <= int(refused.headers["retry-after"]) <= 15


def test_a_receipt_shows_nothing_to_a_caller_who_may_not_write_to_its_stream(
    collector: CollectorProcess, key: str
) -> None:
    other = collector.keys.create("other", ["clicks"])
    with collector.http(key) as http, collector.http(other) as stranger:
        [receipt] = http.post("/v1/streams/notes", content='{"text": "x"}').json()["receipts"]
        assert http.get(f"/v1/receipts/{receipt}").json()["state"] == "logged"
        deadline = time.monotonic() + 30
        while (answer := stranger.get(f"/v1/receipts/{receipt}")).status_code == 401:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert answer.status_code == 403
        assert not any(word in answer.text for word in ("logged", "offset", "received_at"))
        assert stranger.get("/v1/receipts/made-up").status_code == 404


def test_no_output_contains_a_secret(
    collector: CollectorProcess,
    key: str,
    name: str,
    log_settings: LogSettings,
    capsys: pytest.CaptureFixture[str],
) -> None:
    secrets = [key, "msk_mistyped0123", "eyJhbGciOi.ZXlKcA.c2lnbmF0dXJl", "aHVzaDpodXNo", "hunter2"]
    secrets.append("sesame")
    said = []
    with collector.http() as http:
        for shown in (
            f"Bearer {key}",
            *(f"Bearer {s}" for s in secrets[1:3]),
            "Basic aHVzaDpodXNo",
        ):
            for path in (
                "/v1/streams",
                "/v1/openapi.json",
                "/metrics",
                "/health/ready",
                "/nowhere",
            ):
                answer = http.get(path, headers={"authorization": shown})
                said.append(f"{answer.headers}{answer.text}")
            answer = http.post("/v1/streams/notes?x=1", headers={"authorization": shown})
            said.append(f"{answer.headers}{answer.text}")
    home = ["--home", str(collector.home)]
    for words in (["keys", "list"], ["keys", "list", "--json"], ["status"], ["status", "--json"]):
        invoke([*words, *home])
        printed = capsys.readouterr()
        assert printed.out or printed.err
        said.append(printed.out + printed.err)
    said += [str(record) for record in read_topic(log_settings, audit_topic(name))]
    said.append(collector.printed())
    assert "pulled" in collector.printed()  # its source fails, and says so
    for file in (collector.home / "run.json", collector.home / "keys.json"):
        said.append(file.read_text())
    everything = "\n".join(said)
    assert [secret for secret in secrets if secret in everything] == []
    is_well(collector)


def test_the_command_sends_with_a_key_from_the_environment_or_a_file(
    collector: CollectorProcess,
    key: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    events, file = tmp_path / "events.ndjson", tmp_path / "shop.key"
    events.write_text('{"text": "x"}\n')
    file.write_text(f"{key}\n")
    words = ["send", "notes", str(events), "--url", collector.url]
    assert invoke(words) == 1
    refused = capsys.readouterr().err
    assert "no key or token came with the request" in refused
    assert "MILLSTREAM_KEY" in refused
    assert invoke([*words, "--key-file", str(file)]) == 0
    monkeypatch.setenv("MILLSTREAM_KEY", key)
    assert invoke(words) == 0
    monkeypatch.setenv("MILLSTREAM_KEY", "two words")
    assert invoke(words) == 1
    printed = capsys.readouterr()
    assert "not one line of printable characters" in printed.err
    assert "two words" not in printed.err
    assert key not in printed.out + printed.err
