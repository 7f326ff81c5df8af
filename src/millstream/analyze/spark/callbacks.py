"""The port on which Spark's JVM calls Python: open only if needed, and protected by a token.

pyspark opens it for `foreachBatch`, without a token: any process of this machine could connect. And
py4j loses the JVM's token when the port is set.
"""

from __future__ import annotations

import threading
from typing import Any

from py4j.java_gateway import JavaObject
from pyspark.java_gateway import ensure_callback_server_started
from pyspark.sql import SparkSession

_OPENING = threading.Lock()


def require_token(spark: SparkSession) -> None:
    """Make every callback port that is opened from now on require the token."""
    gateway: Any = spark.sparkContext._gateway
    gateway.callback_server_parameters.auth_token = gateway.gateway_parameters.auth_token


def start_callback_server(spark: SparkSession) -> None:
    """Open the port and give the JVM the token. Does nothing if it is open."""
    gateway: Any = spark.sparkContext._gateway
    with _OPENING:
        if gateway.__dict__.get("_callback_server") is not None:
            return
        require_token(spark)
        ensure_callback_server_started(gateway)  # type: ignore[no-untyped-call]
        client = JavaObject("GATEWAY_SERVER", gateway._gateway_client).getCallbackClient()
        token = gateway.jvm.java.lang.Class.forName("py4j.CallbackClient").getDeclaredField(
            "authToken"
        )
        token.setAccessible(True)
        token.set(client, gateway.gateway_parameters.auth_token)
