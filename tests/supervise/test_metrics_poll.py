from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest
from tests.conftest import Eventually

from millstream.errors import MillstreamError
from millstream.supervise.metrics_poll import MetricsPoll, fetch_system

WHOLE = b'HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 13\r\n\r\n{"tiers": {}}'
HALF = b'HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 500\r\n\r\n{"tiers": {'


class Server:
    """Gives each caller the same bytes, and hangs up."""

    def __init__(self) -> None:
        self.answer = WHOLE
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        threading.Thread(target=self._answer, daemon=True).start()

    def _answer(self) -> None:
        while True:
            try:
                caller, _ = self._socket.accept()
            except OSError:
                return
            with caller:
                caller.recv(10_000)
                caller.sendall(self.answer)

    def close(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


@pytest.fixture
def server() -> Iterator[Server]:
    running = Server()
    yield running
    running.close()


def test_an_answer_that_is_cut_off_is_no_answer(server: Server) -> None:
    server.answer = HALF
    with pytest.raises(MillstreamError, match="cannot read"):
        fetch_system(server.url)


def test_metrics_come_again_after_a_server_that_died_while_it_answered(
    server: Server, eventually: Eventually
) -> None:
    metrics = MetricsPoll(server.url, every=0.02)
    try:
        eventually(metrics.newest)
        server.answer = HALF
        eventually(lambda: metrics.newest() is None)
        server.answer = WHOLE
        eventually(metrics.newest)
    finally:
        metrics.close()
