"""A real PostgreSQL server that tests can kill."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from tests.wait_until import until

from millstream.connectors.postgres.protocol.address import Address
from millstream.connectors.postgres.protocol.server_session import Session

PASSWORD = "s3cret:/@ü"
QUOTED_PASSWORD = "s3cret%3A%2F%40%C3%BC"  # as a URL writes it
_PATHS = sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
_ACCESS = """
local all all trust
hostssl all over_tls 127.0.0.1/32 scram-sha-256
host all over_tls 127.0.0.1/32 reject
host all by_md5 127.0.0.1/32 md5
host all by_password 127.0.0.1/32 password
host all all 127.0.0.1/32 scram-sha-256
host replication all 127.0.0.1/32 scram-sha-256
"""
_SETTINGS = """
listen_addresses = '127.0.0.1'
wal_level = logical
fsync = off
max_wal_senders = 20
max_replication_slots = 20
wal_sender_timeout = 5s
max_slot_wal_keep_size = -1
shared_buffers = 32MB
logical_decoding_work_mem = 1MB
ssl = on
ssl_cert_file = 'server.crt'
ssl_key_file = 'server.key'
"""


class PostgresServer:
    """One server with the superuser `postgres`, whose password is PASSWORD."""

    def __init__(self) -> None:
        # Not below pytest's folder, which only its owner may enter.
        self.folder = Path(tempfile.mkdtemp(prefix="millstream-postgres-"))
        self._data = self.folder / "data"
        self._log = self.folder / "log"
        self._process: subprocess.Popen[bytes] | None = None
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.url = self.url_of("postgres")

    def url_of(self, user: str, password: str = QUOTED_PASSWORD, options: str = "") -> str:
        """The address for a user."""
        return f"postgresql://{user}:{password}@127.0.0.1:{self.port}/postgres{options}"

    def create(self) -> None:
        """Create its files, and start it."""
        password = self.folder / "password"
        password.write_text(PASSWORD)
        if os.geteuid() == 0:  # the server refuses to run as root
            shutil.chown(self.folder, "postgres", "postgres")
            shutil.chown(password, "postgres", "postgres")
        self._run(
            *("initdb", "-D", str(self._data), "-U", "postgres", "--no-sync", "-E", "UTF8"),
            *("--locale", "C.UTF-8", "--pwfile", str(password), "-A", "scram-sha-256"),
        )
        self._certify()
        with (self._data / "postgresql.conf").open("a") as file:
            file.write(f"{_SETTINGS}port = {self.port}\n")
            file.write(f"unix_socket_directories = '{self.folder}'\n")
        (self._data / "pg_hba.conf").write_text(_ACCESS)
        self.start()

    def start(self, *options: str) -> None:
        """Start it, and wait until it accepts connections."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [_program("postgres"), "-D", str(self._data), *options],
                stdout=log,
                stderr=log,
                **_user(),
            )
        deadline = time.monotonic() + 60
        while "ready to accept" not in self._state():
            assert self._process.poll() is None, self._log.read_text()
            assert time.monotonic() < deadline, self._log.read_text()
            time.sleep(0.01)

    def kill(self) -> None:
        """Kill the server and all its processes at once, like a power cut."""
        assert self._process is not None
        main = self._process.pid
        os.kill(main, signal.SIGSTOP)  # so that it starts and ends no processes meanwhile
        children = Path(f"/proc/{main}/task/{main}/children").read_text().split()
        for pid in [main, *map(int, children)]:
            os.kill(pid, signal.SIGKILL)
        self._process.wait(30)
        deadline = time.monotonic() + 30
        while any(Path(f"/proc/{pid}").exists() for pid in children):
            assert time.monotonic() < deadline, "the server's processes do not end"
            time.sleep(0.005)

    def stop(self) -> None:
        """Stop it quickly and cleanly."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)
            self._process.wait(30)

    def remove(self) -> None:
        """Stop it and delete its files."""
        self.stop()
        shutil.rmtree(self.folder)

    @asynccontextmanager
    async def session(self) -> AsyncIterator[Session]:
        """A session of the superuser."""
        async with Session.open(Address.of(self.url), seconds=30) as connection:
            yield connection

    async def sql(self, *statements: str) -> list[list[str | None]]:
        """Run statements, each in its own transaction; returns the rows of the last one."""
        rows: list[list[bytes | None]] = []
        async with self.session() as connection:
            for statement in statements:
                rows = await connection.query(statement)
        return [[None if value is None else value.decode() for value in row] for row in rows]

    async def forget(self, name: str) -> None:
        """Drop a slot as soon as nobody reads from it, and a publication."""
        await self.sql(
            f"SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots"
            f" WHERE slot_name = '{name}' AND active",
            f"DROP PUBLICATION IF EXISTS {name}",
        )
        drop = (
            "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots"
            f" WHERE slot_name = '{name}' AND NOT active"
        )
        left = f"SELECT FROM pg_replication_slots WHERE slot_name = '{name}'"

        async def gone() -> bool:
            return not await self.sql(drop, left)

        await until(gone)

    def _state(self) -> str:
        # postmaster.pid, whose last line is "ready"; the log also has lines of earlier starts.
        try:
            lines = (self._data / "postmaster.pid").read_text().splitlines()
        except OSError:
            return ""
        ours = self._process is not None and lines[:1] == [str(self._process.pid)]
        return "ready to accept" if ours and lines[-1].strip() == "ready" else ""

    def _run(self, program: str, *arguments: str) -> None:
        done = subprocess.run(
            [_program(program), *arguments], capture_output=True, check=False, **_user()
        )
        assert done.returncode == 0, done.stderr.decode()

    def _certify(self) -> None:
        """Create a self-signed certificate for localhost."""
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
        now = datetime.now(UTC)
        certificate = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(days=1))
            .not_valid_after(now + timedelta(days=1))
            .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .sign(key, hashes.SHA256())
        )
        pem = serialization.Encoding.PEM
        private = key.private_bytes(
            pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        (self._data / "server.crt").write_bytes(certificate.public_bytes(pem))
        self.certificate = self.folder / "root.crt"
        self.certificate.write_bytes(certificate.public_bytes(pem))
        path = self._data / "server.key"
        path.touch(0o600)
        path.write_bytes(private)
        if os.geteuid() == 0:
            shutil.chown(path, "postgres", "postgres")


def _program(name: str) -> str:
    path = os.pathsep.join([*map(str, _PATHS), os.environ.get("PATH", "")])
    found = shutil.which(name, path=path)
    assert found, "PostgreSQL is missing: run scripts/setup test"
    return found


def _user() -> dict[str, Any]:
    as_root = os.geteuid() == 0
    return {"user": "postgres", "group": "postgres", "extra_groups": []} if as_root else {}
