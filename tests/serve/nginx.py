"""nginx with the configuration in docs/guides/scaling.md, in front of servers of a test."""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from tests.docs.pages import read

_PATH = "/usr/sbin:/usr/local/sbin:/usr/bin:/opt/homebrew/bin"
_FRAME = """
daemon off;
master_process off;
pid {folder}/nginx.pid;
error_log {folder}/error.log;
events {{ worker_connections 1000; }}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    {documented}
}}
"""


class Nginx:
    """A process of nginx; it listens when the constructor returns."""

    def __init__(self, folder: Path, ports: Sequence[int]) -> None:
        self.port, self.servers = free_port(), ports
        self.url = f"http://127.0.0.1:{self.port}"
        program = shutil.which("nginx", path=_PATH)
        assert program, "nginx is missing: run scripts/setup test"
        file = folder / "nginx.conf"
        file.write_text(_FRAME.format(folder=folder, documented=_documented(self.port, ports)))
        self._process = subprocess.Popen(
            [program, "-p", str(folder), "-c", str(file), "-e", str(folder / "error.log")]
        )
        deadline = time.monotonic() + 30
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
                return
            except OSError:
                assert self._process.poll() is None, (folder / "error.log").read_text()
                assert time.monotonic() < deadline, "nginx accepts no connections"
                time.sleep(0.01)

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(30)


def _documented(port: int, servers: Sequence[int]) -> str:
    """The guide's configuration, with the addresses of this test."""
    text = read("docs/guides/scaling.md").partition("```nginx\n")[2].partition("```")[0]
    text = text.replace("listen 80;", f"listen 127.0.0.1:{port};")
    for number, each in enumerate(servers, 1):
        text = text.replace(f"10.0.0.1{number}:8500", f"127.0.0.1:{each}")
    assert "10.0.0." not in text
    return text


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
