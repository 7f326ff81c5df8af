"""The port on which Spark calls Python accepts only Spark."""

from __future__ import annotations

import socket
from typing import Any

import pytest
from pyspark.sql import SparkSession


@pytest.mark.timeout(300)
def test_the_callback_port_requires_its_token(
    live: Any, pipeline: Any, spark: SparkSession
) -> None:
    live.start(
        pipeline("""
app.stream("clicks", schema="page STRING")
app.stream("orders", schema="page STRING, amount INT")
app.view("paired", sql="SELECT amount FROM clicks JOIN orders ON clicks.page = orders.page")
""")
    )
    assert live.planned[0].plan.lineage == "batch"
    live.send("clicks", {"page": "p1"})
    live.send("orders", {"page": "p1", "amount": 7})
    live.gives(lambda: live.stream("paired"), [{"amount": 7}])

    gateway: Any = spark.sparkContext._gateway
    address = gateway._callback_server.server_socket.getsockname()
    assert address[0] == "127.0.0.1"
    for request in (b"c\np0\ntoString\ne\n", b"A\nsno token\ne\n", b"g\np0\ne\n"):
        with socket.create_connection(address, timeout=10) as stranger:
            stranger.sendall(request)
            assert not answered(stranger), request
    live.send("orders", {"page": "p1", "amount": 8})
    live.gives(lambda: live.stream("paired"), [{"amount": 7}, {"amount": 8}])


def answered(stranger: socket.socket) -> bytes:
    """What comes back before the connection ends, but py4j's word for an error."""
    try:
        return stranger.recv(1000).removeprefix(b"!xn\n")
    except ConnectionResetError:
        return b""
