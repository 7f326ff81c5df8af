"""The port on which Spark's JVM calls Python back: open only where needed, and only with a token.

pyspark opens it for `foreachBatch`. By itself it takes any connection of this machine, and py4j
forgets the JVM's token when it is told the port.
"""

from __future__ import annotations

import threading
from typing import Any

from py4j.java_gateway import JavaObject
from pyspark.java_gateway import ensure_callback_server_started
from pyspark.sql import SparkSession

_OPENING = threading.Lock()


def demand_token(spark: SparkSession) -> None:
    """Let the port, wherever it is opened from now on, refuse who does not know the token."""
    gateway: Any = spark.sparkContext._gateway
    gateway.callback_server_parameters.auth_token = gateway.gateway_parameters.auth_token


def open_callbacks(spark: SparkSession) -> None:
    """Open the port, and let the JVM give the token; again, it does nothing."""
    gateway: Any = spark.sparkContext._gateway
    with _OPENING:
        if gateway.__dict__.get("_callback_server") is not None:
            return
        demand_token(spark)
        ensure_callback_server_started(gateway)  # type: ignore[no-untyped-call]
        client = JavaObject("GATEWAY_SERVER", gateway._gateway_client).getCallbackClient()
        token = gateway.jvm.java.lang.Class.forName("py4j.CallbackClient").getDeclaredField(
            "authToken"
        )
        token.setAccessible(True)
        token.set(client, gateway.gateway_parameters.auth_token)
