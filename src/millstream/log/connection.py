"""Configuration of every Kafka client: the Python ones and Spark's."""

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
_REPEAT_SECONDS = 10.0
FIRST_SECONDS = 10.0  # at start: no answer for longer means a wrong address


class RepeatFilter(logging.Filter):
    """Logs each kind of message at most once in ten seconds: Kafka clients repeat them."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._logged: dict[str, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        kind = record.getMessage().split(" ", 1)[0]  # librdkafka's name of the event
        now = self._clock()
        if now - self._logged.get(kind, -_REPEAT_SECONDS) < _REPEAT_SECONDS:
            return False
        self._logged[kind] = now
        return True


_log.addFilter(RepeatFilter())


def client_config(log: LogSettings, **extra: Any) -> dict[str, Any]:
    """Configuration of a confluent_kafka client; `extra` in its names, with `_` for `.`."""
    if not log.bootstrap:
        raise LogError(
            "no Kafka to connect to: log.bootstrap is empty",
            remedy="start `millstream run` or `millstream kafka`, or set log.bootstrap",
        )
    return {
        "bootstrap.servers": log.bootstrap,
        "client.id": "millstream",
        # A broker restarts in seconds: reconnect often, not up to 10 s later.
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
    """Options of Spark's Kafka source and sink for the same cluster with the same credentials."""
    options = {"bootstrap.servers": log.bootstrap, **java_security(log.security)}
    return {f"kafka.{name}": value for name, value in options.items()}


def admin(log: LogSettings, failed: Callable[[KafkaError], None] | None = None) -> AdminClient:
    """An admin client; `failed` is called with its errors.

    SettingsError if log.security is not valid.
    """
    config = client_config(log)
    if failed is not None:  # the callback replaces logging
        config |= {"error_cb": failed, "log_level": 0}
    try:
        return AdminClient(config)
    except KafkaException as error:
        raise SettingsError(
            f"cannot create a Kafka client: {error.args[0].str()}",
            remedy="correct log.security; its names are librdkafka's",
        ) from None


def await_broker(log: LogSettings, timeout: float | None = None) -> None:
    """Wait until Kafka answers; LogError if it does not within `timeout` seconds."""
    timeout = FIRST_SECONDS if timeout is None else timeout
    why, causes = "no answer", list[str]()

    def failed(error: KafkaError) -> None:
        if error.code() != KafkaError._ALL_BROKERS_DOWN:  # names no cause
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
        remedy="check that it runs and that log.bootstrap and log.security are right",
    )
