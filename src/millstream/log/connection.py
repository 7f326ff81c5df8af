"""How every client of ours reaches Kafka, the Python ones and Spark alike."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from millstream.errors import LogError, SettingsError
from millstream.log.java_security import java_security
from millstream.log.settings import LogSettings

_log = logging.getLogger("millstream.kafka")
_QUIET_SECONDS = 10.0
FIRST_SECONDS = 10.0  # at a start: a Kafka that is silent for longer is a wrong address


class Calm(logging.Filter):
    """Lets each kind of message through once in ten seconds; clients repeat them endlessly."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._said: dict[str, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        kind = record.getMessage().split(" ", 1)[0]  # librdkafka's name of what happened
        now = self._clock()
        if now - self._said.get(kind, -_QUIET_SECONDS) < _QUIET_SECONDS:
            return False
        self._said[kind] = now
        return True


_log.addFilter(Calm())


def client_config(log: LogSettings, **extra: Any) -> dict[str, Any]:
    """What a confluent_kafka client is made with; `extra` in its names, with `_` for `.`."""
    if not log.bootstrap:
        raise LogError(
            "no Kafka to connect to: log.bootstrap is empty",
            remedy="start `millstream run` or `millstream kafka`, or set log.bootstrap",
        )
    return {
        "bootstrap.servers": log.bootstrap,
        "client.id": "millstream",
        # A broker that restarts is away for seconds: look often, not up to 10 s late.
        "reconnect.backoff.ms": 50,
        "reconnect.backoff.max.ms": 500,
        "logger": _log,
        "log_level": 4,
        **log.security,
        **{name.replace("_", "."): value for name, value in extra.items()},
    }


def consumer_config(log: LogSettings, **extra: Any) -> dict[str, Any]:
    """Configuration of a consumer that is in no group: its partitions are assigned by hand.

    Offsets are never committed: the caller keeps its positions. `extra` as for `client_config`.
    """
    ours = {
        "group_id": "millstream",  # librdkafka requires a name
        "enable_auto_commit": False,
        "fetch_error_backoff_ms": 50,
        "fetch_queue_backoff_ms": 50,  # by default a full queue pauses fetching for a second
        "queued_max_messages_kbytes": 16 << 10,
    }
    return client_config(log, **{**ours, **extra})


def spark_options(log: LogSettings) -> dict[str, str]:
    """The options of Spark's Kafka source and sink for the same cluster with the same rights."""
    options = {"bootstrap.servers": log.bootstrap, **java_security(log.security)}
    return {f"kafka.{name}": value for name, value in options.items()}


def admin(log: LogSettings, failed: Callable[[KafkaError], None] | None = None) -> AdminClient:
    """A client for questions about the cluster and its topics; `failed` gets its errors.

    SettingsError if no client can be made with what log.security says.
    """
    config = client_config(log)
    if failed is not None:  # then nothing has to be logged as well
        config |= {"error_cb": failed, "log_level": 0}
    try:
        return AdminClient(config)
    except KafkaException as error:
        raise SettingsError(
            f"cannot make a client of Kafka: {error.args[0].str()}",
            remedy="correct log.security; its names are librdkafka's",
        ) from None


def await_broker(log: LogSettings, timeout: float | None = None) -> None:
    """Return once Kafka tells about itself; LogError if it does not within `timeout` seconds."""
    timeout = FIRST_SECONDS if timeout is None else timeout
    why, causes = "no answer", list[str]()

    def failed(error: KafkaError) -> None:
        if error.code() != KafkaError._ALL_BROKERS_DOWN:  # that names no cause
            causes[:] = [error.str().rpartition("/bootstrap: ")[2].partition(" (after")[0]]

    client, deadline = admin(log, failed), time.monotonic() + timeout
    while (left := deadline - time.monotonic()) > 0:
        try:
            if client.list_topics(timeout=min(left, 1.0)).brokers:
                return
        except KafkaException as error:
            why = error.args[0].str()
        client.poll(0)
    why = causes[0] if causes else why
    raise LogError(
        f"Kafka at {log.bootstrap} did not answer in {timeout:g} s: {why}",
        remedy="see that it runs and that log.bootstrap and log.security are right",
    )
