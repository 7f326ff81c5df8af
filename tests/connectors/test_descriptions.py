"""Source descriptions in Python and SQL, and the errors for wrong ones."""

from __future__ import annotations

from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

import pytest

from millstream.connectors import SOURCES, SourceDescription, source_from_text
from millstream.connectors.source_options import type_problem
from millstream.errors import PipelineError
from millstream.pipeline.load import load


def each_kind() -> pytest.MarkDecorator:
    return pytest.mark.parametrize("kind", SOURCES, ids=[source.kind for source in SOURCES])


def in_python(folder: Path, source: str) -> SourceDescription | None:
    path = folder / "pipeline.py"
    path.write_text(
        'from millstream import *\napp = App("shop")\n'
        f'app.stream(\n    "s",\n    schema="x INT",\n    source={source},\n)\n'
    )
    return load(path).streams["s"].source


def in_sql(folder: Path, source: str) -> SourceDescription | None:
    path = folder / "pipeline.sql"
    path.write_text(f"CREATE STREAM s (x INT) WITH (\n  key = 'x',\n  source = {source}\n);\n")
    return load(path).streams["s"].source


@each_kind()
def test_each_kind_can_be_written_in_python_and_in_sql(
    kind: type[SourceDescription], tmp_path: Path
) -> None:
    for source in (in_python(tmp_path, kind.example), in_sql(tmp_path, kind.sql_example)):
        assert type(source) is kind
        assert source.problem() is None
        assert source.address


@each_kind()
def test_every_option_can_be_written_as_text(kind: type[SourceDescription], tmp_path: Path) -> None:
    given = {
        **{"url": "", "bootstrap": "h:1", "topic": "t", "tables": "a, s.b", "path": "/in"},
        **{"headers": "a: b\nc: d", "security": "security.protocol=SSL", "start": "end"},
        **{"types": "a, b", "allow": "10.0.0.0/8, ::1", "silence": "1 minute", "idle": "1 hour"},
        **{"max_connections": "7", "receive_maximum": "5", "session_expiry": "2 days"},
        **{"username": "u", "password": "p", "client_id": "c", "ca_file": "a", "cert_file": "b"},
        **{"key_file": "k", "publication": "p", "slot": "s", "snapshot": "false"},
        **{"on_lost": "stop", "pattern": "*.x", "format": "csv", "done": "move"},
        **{"moved_to": "m", "failed_to": "f", "settle": "1 second", "poll": "2 seconds"},
    }
    urls = {
        **{"websocket": "wss://h/p", "sse": "https://h/p", "http_lines": "http://h/p"},
        **{"tcp_lines": "tls://h:1", "tcp_listener": "tcp://h:1", "udp": "udp://h:1"},
        **{"mqtt": "mqtts://h:1", "postgres": "postgresql://u:p@h/d"},
    }
    names = [field.name for field in fields(kind)]  # type: ignore[arg-type]
    options = {name: given[name] if name != "url" else urls[kind.kind] for name in names}
    written = ", ".join(f"{name} = '{text}'" for name, text in options.items())
    source = in_sql(tmp_path, f"(kind = '{kind.kind}', {written})")
    assert source == source_from_text({"kind": kind.kind, **options})
    for field in fields(kind):  # type: ignore[arg-type]
        made = field.default_factory() if field.default_factory is not MISSING else None
        # The other choice of on_lost needs a snapshot.
        assert field.name == "on_lost" or getattr(source, field.name) not in (field.default, made)


@pytest.mark.parametrize("value", [None, 5, 5.0, b"x", [], [5], {5: 5}, object()])
@each_kind()
def test_an_option_of_any_type_is_accepted_or_reported(
    kind: type[SourceDescription], value: Any
) -> None:
    for option in fields(kind):  # type: ignore[arg-type]
        needed = {
            field.name: "x"
            for field in fields(kind)  # type: ignore[arg-type]
            if field.default is MISSING and field.default_factory is MISSING
        }
        source = kind(**{**needed, option.name: value})
        assert (type_problem(source) or source.problem() or "has").startswith("has ")


MISTAKES = {
    "websocket": ("'ws:///nowhere'", "ws:///nowhere", "'ws://host/path'"),
    "sse": ("(kind = 'sse', url = 'ftp://h')", "not the address of server-sent", "(kind = 'sse'"),
    "http_lines": ("(kind = 'http_lines', url = 'x')", "'x'", "(kind = 'http_lines'"),
    "tcp_lines": ("'tcp://h'", "a TCP server with its port", "'tcp://host:9000'"),
    "tcp_listener": (
        "(kind = 'tcp_listener', url = 'tcp://h:1', max_connections = 'x')",
        *("max_connections='x', which is not a number", "(kind = 'tcp_listener'"),
    ),
    "udp": ("(kind = 'udp', url = 'udp://h:1', allow = 'all')", "not a network", "'udp://"),
    "kafka": ("(kind = 'kafka', bootstrap = 'h', topic = 't')", "not host:port", "topic = 'topic'"),
    "mqtt": ("'mqtt://h'", "without a topic", "'mqtt://host/sensors/#'"),
    "postgres": ("'postgresql://h/d'", "without tables", "tables = 'orders'"),
    "directory": ("(kind = 'directory', path = '/in', done = 'eat')", "done='eat'", "path = "),
    "no kind": ("(url = 'x')", "unknown kind ''", "'websocket'"),
    "an unknown kind": ("(kind = 'web')", "unknown kind 'web'", "'websocket'"),
    "an unknown option": (
        "(kind = 'sse', ulr = 'x')",
        "unknown option 'ulr'",
        "did you mean 'url'",
    ),
    "too little": ("(kind = 'kafka', topic = 't')", "incomplete", "it takes bootstrap, topic"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_in_sql_is_reported_with_its_line_and_a_remedy(name: str, tmp_path: Path) -> None:
    written, *words = MISTAKES[name]
    with pytest.raises(PipelineError) as raised:
        in_sql(tmp_path, written)
    for word in (*words, "pipeline.sql:3", "stream 's'"):
        assert word in str(raised.value)


@pytest.mark.parametrize(
    ("written", "words"),
    [
        ("SseSource('ws://h')", ("not the address of server-sent events", "SseSource('https://")),
        ("SseSource(5)", ("whose url is not a text",)),
        ("SseSource('https://h', headers=[1])", ("whose headers is not names with texts",)),
        ("TcpListener('tcp://h:1', max_connections=0)", ("a number from 1 on",)),
        ("MqttSource('mqtt://h', 5)", ("whose topic is not a text or several",)),
        ("PostgresSource('postgresql://u:secret@h', 't')", ("postgresql://user:password@host",)),
        ("PostgresSource('postgresql://[u:secret@h', '')", ("postgresql://user:password@host",)),
        (
            "PostgresSource('postgresql:///d?host=/run&port=x', 't')",
            ("?port= that is not a number",),
        ),
        ("DirectorySource('/in', settle=5)", ("whose settle is not a text",)),
        ("KafkaTopicSource('h:1', 'a b')", ("not the name of a topic",)),
        ("KafkaTopicSource('h:1', 't', security={'foo': 'secret'})", ("'foo' in security",)),
        ("KafkaTopicSource('h:1', 't', security='secret')", ("not a security setting",)),
        ("SseSource('https://h', headers='X-Key secret')", ("not the name of a header",)),
    ],
)
def test_a_mistake_in_python_is_reported_with_its_line(
    written: str, words: tuple[str, ...], tmp_path: Path
) -> None:
    with pytest.raises(PipelineError) as raised:
        in_python(tmp_path, written)
    for word in (*words, "pipeline.py:6", "stream 's'"):
        assert word in str(raised.value)
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize(
    "source",
    [
        *("wss://me:secret@h/p?token=secret", "mqtt://me:secret@h/t"),
        {"kind": "sse", "url": "https://me:secret@h/p?key=secret", "headers": "a: secret"},
        {"kind": "http_lines", "url": "https://h/p?secret", "headers": "a: secret"},
        {"kind": "postgres", "url": "postgresql://me:secret@h/d", "tables": "t"},
        {"kind": "mqtt", "url": "mqtt://h", "topic": "t", "username": "me", "password": "secret"},
        {
            **{"kind": "kafka", "bootstrap": "h:1", "topic": "t"},
            "security": "sasl.password=secret",
        },
    ],
)
def test_secrets_are_not_shown(source: str | dict[str, str]) -> None:
    described = source_from_text(source)
    assert described.problem() is None
    assert "secret" not in f"{described!r} {described} {described.address}"
