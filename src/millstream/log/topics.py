"""Creates, configures, identifies and deletes topics."""

from __future__ import annotations

import time
from collections.abc import Iterable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)

from millstream.errors import LogError
from millstream.log.connection import admin
from millstream.log.settings import LogSettings

_TIMEOUT = 30.0
_CORRECTED_CONFIGS = (
    "cleanup.policy",
    "max.message.bytes",
    "min.compaction.lag.ms",
    "retention.ms",
)


@dataclass(frozen=True, slots=True)
class Topic:
    """The name, partitions and configuration that a topic must have."""

    name: str
    partitions: int
    config: dict[str, str]


def create_topics(log: LogSettings, wanted: list[Topic]) -> None:
    """Create missing topics and correct the retention of existing ones.

    Several processes may do this at once.
    """
    client = admin(log)
    made = _create(client, wanted, log)
    _await_known(client, made)
    if older := [topic for topic in wanted if topic.name not in made]:
        _correct_configs(client, older)


def topic_ids(log: LogSettings, names: Iterable[str]) -> dict[str, str]:
    """The id of each of these topics that exists."""
    return _ids(admin(log), list(names))


def known_topics(log: LogSettings) -> set[str]:
    """The names of all topics whose partitions have leaders; LogError if Kafka does not answer."""
    return _known(admin(log))


def recreate(topic: Topic, log: LogSettings) -> str:
    """Delete a topic if it exists, and create it again; returns its new id."""
    client = admin(log)
    old = _ids(client, [topic.name]).get(topic.name)
    if old is not None:
        _results(client.delete_topics([topic.name]), "delete", {KafkaError.UNKNOWN_TOPIC_OR_PART})
    deadline = time.monotonic() + _TIMEOUT
    while time.monotonic() < deadline:
        # "Already exists" may mean the old topic, which is being deleted: compare the ids.
        _create(client, [topic], log)
        if (now := _ids(client, [topic.name]).get(topic.name, old)) not in (old, None):
            return str(now)
        time.sleep(0.05)
    raise LogError(
        f"topic {topic.name} was deleted, but Kafka did not create it again in {_TIMEOUT:g} s"
    )


def delete_topics(log: LogSettings, names: Iterable[str]) -> None:
    """Delete topics; those that do not exist are ignored."""
    client = admin(log)  # must live until the answers are there
    if names := list(names):
        _results(client.delete_topics(names), "delete", {KafkaError.UNKNOWN_TOPIC_OR_PART})


def _create(client: AdminClient, wanted: list[Topic], log: LogSettings) -> set[str]:
    existing = _known(client)
    missing = [
        NewTopic(
            topic.name,
            num_partitions=topic.partitions,
            replication_factor=log.replication,
            config={**topic.config, "min.insync.replicas": str(max(1, log.replication - 1))},
        )
        for topic in wanted
        if topic.name not in existing
    ]
    if missing:
        _results(client.create_topics(missing), "create", {KafkaError.TOPIC_ALREADY_EXISTS})
    return {topic.topic for topic in missing}


def _await_known(client: AdminClient, names: set[str]) -> None:
    # The controller creates a topic; brokers know it a moment later.
    deadline = time.monotonic() + _TIMEOUT
    while unknown := names - _known(client):
        if time.monotonic() > deadline:
            raise LogError(f"Kafka created topic {min(unknown)}, but does not serve it")
        time.sleep(0.01)


def _known(client: AdminClient) -> set[str]:
    try:
        found = client.list_topics(timeout=_TIMEOUT).topics
    except KafkaException as failure:
        raise LogError(
            f"cannot list the topics of Kafka: {failure.args[0].str()}",
            remedy="check that it runs and that log.bootstrap and log.security are right",
        ) from failure
    return {
        name
        for name, topic in found.items()
        if topic.partitions and all(p.leader >= 0 for p in topic.partitions.values())
    }


def _correct_configs(client: AdminClient, wanted: list[Topic]) -> None:
    # Only what changes the meaning of a topic; other settings are the operator's.
    resources = {ConfigResource(ResourceType.TOPIC, t.name): t.config for t in wanted}
    found = _results(client.describe_configs(list(resources)), "describe", set())
    changes = []
    for resource, config in resources.items():
        is_now = found.get(resource, {})
        entries = [
            ConfigEntry(name, config[name], incremental_operation=AlterConfigOpType.SET)
            for name in _CORRECTED_CONFIGS
            if name in config and name in is_now and is_now[name].value != config[name]
        ]
        if entries:
            changes.append(
                ConfigResource(ResourceType.TOPIC, resource.name, incremental_configs=entries)
            )
    if changes:
        _results(client.incremental_alter_configs(changes), "change", set())


def _ids(client: AdminClient, names: list[str]) -> dict[str, str]:
    if not names:
        return {}
    answers = client.describe_topics(TopicCollection(names), request_timeout=_TIMEOUT)
    known = _results(answers, "describe", {KafkaError.UNKNOWN_TOPIC_OR_PART})
    return {name: _url_safe(str(known[name].topic_id)) for name in known}


def _url_safe(topic_id: str) -> str:
    # As Kafka's own tools write it; librdkafka's alphabet has "/", which positions cannot contain.
    return topic_id.replace("+", "-").replace("/", "_")


def _results(answers: dict[Any, Future[Any]], what: str, ignored: set[int]) -> dict[Any, Any]:
    """The results of an admin request, without those that failed with an `ignored` error."""
    results = {}
    for subject, answer in answers.items():
        try:
            results[subject] = answer.result(_TIMEOUT)
        except KafkaException as failure:
            error = failure.args[0]
            if error.code() not in ignored:
                name = getattr(subject, "name", subject)
                raise LogError(
                    f"cannot {what} topic {name}: {error.str()}",
                    remedy="see the broker's log, and the permissions of this user",
                ) from failure
        except TimeoutError as failure:
            raise LogError(
                f"cannot {what} a topic: Kafka did not answer in {_TIMEOUT:g} s",
                remedy="check that it runs",
            ) from failure
    return results
