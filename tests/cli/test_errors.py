"""Every mistake is one line on stderr that says what to do, and an exit code; no stack trace."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from millstream.log import connection
from millstream.runtime.home import Home

if TYPE_CHECKING:
    from tests.cli.conftest import Outcome, Run

SYNTAX = "from millstream import App\napp = App('a'\n"
CYCLE = """
from millstream import App
app = App("a")
app.stream("s", schema="id LONG", key="id")
app.view("one", key=["id"], sql="SELECT id FROM two")
app.view("two", key=["id"], sql="SELECT id FROM one")
"""
UNKNOWN_INPUT = """
from millstream import App
app = App("a")
app.stream("orders", schema="id LONG", key="id")
app.view("v", sql="SELECT id FROM ordres")
"""


def assert_explains(outcome: Outcome, *words: str, code: int = 1) -> None:
    assert outcome.code == code, outcome
    assert outcome.err.startswith("error: "), outcome.err
    assert "Traceback" not in outcome.err
    for word in words:
        assert word in outcome.err


def test_a_file_that_does_not_exist(run: Run) -> None:
    for command in ("run", "plan", "collect", "analyze", "serve"):
        assert_explains(run(command, "nowhere.py"), "nowhere.py", "no such file")


@pytest.mark.parametrize("command", ["run", "plan", "collect"])
@pytest.mark.parametrize(
    ("text", "words"),
    [
        (SYNTAX, ["pipeline.py:2", "SyntaxError"]),
        (UNKNOWN_INPUT, ["pipeline.py:5", "ordres", "orders"]),
        (CYCLE, ["one", "two"]),
        ("x = 1\n", ["no app"]),
    ],
    ids=["syntax error", "unknown input", "cycle", "no app"],
)
def test_a_wrong_pipeline(
    run: Run, tmp_path: Path, command: str, text: str, words: list[str]
) -> None:
    (tmp_path / "pipeline.py").write_text(text)
    assert_explains(run(command, "pipeline.py"), *words)
    assert not (tmp_path / ".millstream").exists()


@pytest.mark.parametrize(
    ("assignment", "words"),
    [
        ("serve.prot=1", ["prot", "port"]),
        ("sevre.port=1", ["sevre", "serve"]),
        ("serve.port=many", ["serve.port", "many"]),
        ("serve.port", ["section.field=value"]),
        ("=3", ["section.field=value"]),
        ("log.security={", ["{"]),
    ],
)
def test_a_wrong_setting(run: Run, pipeline: Path, assignment: str, words: list[str]) -> None:
    assert_explains(run("run", str(pipeline), "--set", assignment), *words)


@pytest.mark.parametrize(
    "arguments",
    [
        ["nope"],
        ["run"],
        ["run", "p.py", "--no-such-flag"],
        ["run", "p.py", "--serve-port", "70000"],
        ["tail"],
        ["send", "stream"],
        ["tail", "view", "-n", "0"],
    ],
    ids=" ".join,
)
def test_wrong_usage_is_exit_code_2_and_points_to_the_help(run: Run, arguments: list[str]) -> None:
    outcome = run(*arguments)
    assert_explains(outcome, "--help", code=2)


def test_no_broker_for_a_tier(run: Run, pipeline: Path) -> None:
    for tier in ("collect", "analyze", "serve"):
        assert_explains(run(tier, str(pipeline)), "millstream kafka", "log.bootstrap")


def test_nothing_runs(run: Run, tmp_path: Path) -> None:
    (tmp_path / "events.ndjson").write_text("{}\n")
    for command in (
        ["status"],
        ["tail", "v"],
        ["query", "SELECT 1"],
        ["send", "s", "events.ndjson"],
    ):
        assert_explains(run(*command), ".millstream", "millstream run PIPELINE")


def test_a_server_that_does_not_answer(run: Run, tmp_path: Path) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
        for command in (["tail", "v"], ["query", "SELECT 1"]):
            assert_explains(run(*command, "--url", url), url)


@pytest.mark.parametrize(
    "url", ["localhost:8500", "http://[::1", "http://127.0.0.1:abc", "http://127.0.0.1:99999"]
)
def test_an_address_that_is_none(run: Run, tmp_path: Path, url: str) -> None:
    (tmp_path / "events.ndjson").write_text("{}\n")
    for command in (["query", "SELECT 1"], ["tail", "v"], ["send", "s", "events.ndjson"]):
        assert_explains(run(*command, "--url", url), "http://host:port")


def test_an_event_file_that_does_not_exist(run: Run) -> None:
    assert_explains(run("send", "s", "nowhere", "--url", "http://127.0.0.1:1"), "nowhere")


def test_a_taken_port_names_its_holder_and_the_flag(run: Run, pipeline: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
        for tier in ("kafka", "collect", "serve"):
            others = {"--kafka-port": "0", "--collect-port": "0", "--serve-port": "0"}
            others[f"--{tier}-port"] = port
            flags = [word for pair in others.items() for word in pair]
            outcome = run("run", str(pipeline), *flags)
            assert_explains(outcome, port, f"process {os.getpid()}", f"--{tier}-port")


def test_a_second_run_on_the_same_home_is_refused_with_the_pid_of_the_first(
    run: Run, pipeline: Path, tmp_path: Path
) -> None:
    with Home(tmp_path / ".millstream").hold("run"):
        assert_explains(run("run", str(pipeline)), f"process {os.getpid()}", "--home")


def test_a_home_that_cannot_be_made(run: Run, pipeline: Path) -> None:
    for command in (["run", str(pipeline)], ["kafka"]):
        assert_explains(run(*command, "--home", "/proc/nowhere"), "/proc/nowhere", "--home")


def test_a_home_that_is_a_file(run: Run, pipeline: Path) -> None:
    assert_explains(run("run", str(pipeline), "--home", str(pipeline)), "pipeline.py", code=2)


def test_an_extra_command_that_cannot_be_read(run: Run, pipeline: Path) -> None:
    ports = ["--kafka-port", "0", "--collect-port", "0", "--serve-port", "0"]
    assert_explains(run("run", str(pipeline), *ports, "--with", "python 'x"), "--with")


def test_a_bug_of_ours_shows_its_trace_and_says_whose_it_is(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(home: Home) -> None:
        raise RuntimeError("the unexpected")

    monkeypatch.setattr(Home, "running", fail)
    outcome = run("status")
    assert outcome.code == 70
    assert "RuntimeError: the unexpected" in outcome.err
    assert "bug in Millstream" in outcome.err


def test_ctrl_c_is_quiet_and_130(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(home: Home) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Home, "running", interrupt)
    outcome = run("status")
    assert outcome.code == 130
    assert outcome.out.strip() == ""
    assert outcome.err.strip() == ""


def test_a_reader_that_has_enough_is_no_error(tmp_path: Path) -> None:
    shell = f"{sys.executable} -m millstream --help | head -1; echo ${{PIPESTATUS[0]}}"
    answer = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, cwd=tmp_path)
    assert answer.stdout.splitlines()[-1] == "0"
    assert answer.stderr == ""


SHOW = "from millstream.supervise.status_tables import console; console().print('x ● ✓' * 30_000)"
INVOKE = f"""
import sys, click
from millstream.cli.group import millstream
from millstream.cli.invoke import invoke
from millstream.cli.shared.outcome import ignored_broken_pipe
@millstream.command()
@click.argument("code", type=int)
def show(code):
    with ignored_broken_pipe():
        {SHOW}
    return code
sys.exit(invoke(["show", sys.argv[1]]))
"""


@pytest.mark.parametrize("code", [0, 1])
def test_a_reader_that_has_enough_does_not_change_the_exit_code(tmp_path: Path, code: int) -> None:
    (tmp_path / "show.py").write_text(INVOKE)
    shell = f"{sys.executable} show.py {code} | head -c 1; echo ${{PIPESTATUS[0]}}"
    answer = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, cwd=tmp_path)
    assert answer.stdout.splitlines()[-1].endswith(str(code))
    assert answer.stderr == ""


@pytest.mark.parametrize(
    ("redirection", "code", "words"),
    [
        (">&-", 0, ""),
        (">/dev/null", 0, ""),
        (">/dev/full", 1, "error: cannot write the output: No space left on device; free space"),
    ],
)
def test_an_output_that_takes_less_than_we_write_is_no_bug_of_ours(
    tmp_path: Path, redirection: str, code: int, words: str
) -> None:
    (tmp_path / "show.py").write_text(INVOKE)
    shell = f"PYTHONIOENCODING=ascii {sys.executable} show.py 0 {redirection}"
    answer = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, cwd=tmp_path)
    assert (answer.returncode, answer.stderr.strip()) == (code, words)


@pytest.mark.parametrize(
    "command",
    [
        *(["run", "pipeline.py"], ["collect", "pipeline.py"], ["analyze", "pipeline.py"]),
        *(
            ["serve", "pipeline.py"],
            ["audit"],
            ["rebuild", "by_city", "--yes"],
            ["drop", "by_city"],
        ),
        *(["late", "list", "orders"], ["rejected", "list", "orders"], ["ledger", "by_city"]),
        *(["verify", "by_city", "pipeline.py"], ["rejected", "replay", "orders", "--all"]),
    ],
    ids=lambda words: " ".join(words),
)
def test_a_wrong_address_of_kafka_is_named_with_its_setting(
    run: Run, pipeline: Path, monkeypatch: pytest.MonkeyPatch, command: list[str]
) -> None:
    monkeypatch.setattr(connection, "FIRST_SECONDS", 1.0)
    ports = {"run": ("collect", "serve"), "collect": ("collect",), "serve": ("serve",)}
    flags = [word for tier in ports.get(command[0], ()) for word in (f"--{tier}-port", "0")]
    outcome = run(*command, *flags, "--set", "log.bootstrap=127.0.0.1:1")
    assert_explains(
        outcome,
        "Kafka at 127.0.0.1:1 did not answer in 1 s",
        "Connection refused",
        "check that it runs and that log.bootstrap",
    )


def test_a_host_name_of_kafka_that_does_not_exist_is_named(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "FIRST_SECONDS", 8.0)  # a resolver may take five seconds
    assert_explains(
        run("audit", "--set", "log.bootstrap=nowhere.invalid:9092"),
        "Kafka at nowhere.invalid:9092 did not answer in 8 s",
        "Failed to resolve 'nowhere.invalid:9092'",
        "check that it runs and that log.bootstrap",
    )


def test_a_wrong_address_of_kafka_is_told_within_some_ten_seconds(run: Run) -> None:
    started = time.monotonic()
    assert_explains(run("audit", "--set", "log.bootstrap=127.0.0.1:1"), "Connection refused")
    assert time.monotonic() - started < 25  # it gives up after 10; the machine may be busy
