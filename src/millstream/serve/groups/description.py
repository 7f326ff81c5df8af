"""What `GET /v1/groups` says about a group: its members, position and counts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from confluent_kafka import Consumer, KafkaException, TopicPartition

from millstream.errors import LogError
from millstream.log.connection import consumer_config
from millstream.log.consumer import bounds
from millstream.log.settings import LogSettings
from millstream.serve.groups.consumer import CommittedOffset
from millstream.serve.groups.definition import GroupDefinition
from millstream.serve.groups.group import group_id, read_mark
from millstream.values.clock import to_iso
from millstream.values.position import Position
from millstream.values.report import ProcessReport

_TIMEOUT = 10.0
Bounds = Mapping[int, tuple[int, int]]


def read_offsets(
    log: LogSettings, app: str, name: str, topic: str
) -> tuple[dict[int, CommittedOffset], Bounds]:
    """The committed offsets of a group, and the bounds of its topic. Blocks."""
    held = bounds(log, topic)
    consumer = Consumer(consumer_config(log, group_id=group_id(app, name)))
    try:
        asked = [TopicPartition(topic, partition) for partition in held]
        found = consumer.committed(asked, _TIMEOUT)
    except KafkaException as error:
        raise LogError(f"cannot read the position of group {name}: {error.args[0].str()}") from None
    finally:
        consumer.close()
    known = {
        each.partition: CommittedOffset(each.offset, each.metadata or "")
        for each in found
        if each.offset >= 0
    }
    return known, held


def describe_group(
    definition: GroupDefinition,
    epoch: str,
    committed: Mapping[int, CommittedOffset],
    held: Bounds,
    servers: Iterable[ProcessReport],
) -> dict[str, Any]:
    """The group as JSON objects.

    `passed` is the number of records between the group's start and its position. Each of them was
    acknowledged, set aside, filtered (it is no message for this group), or is absent (Kafka
    compacted or deleted it, or it marks the end of a transaction).
    """
    reports = [each for each in servers if definition.name in each.groups]
    partitions = [
        _describe_partition(definition, epoch, partition, committed.get(partition), bound)
        for partition, bound in sorted(held.items())
    ]
    owners = {
        partition: report.url
        for report in reports
        for partition in report.groups[definition.name].partitions
    }
    for each in partitions:
        each["server"] = owners.get(each["partition"])
    counts = [report.groups[definition.name] for report in reports]
    summed = ("passed", "acknowledged", "set_aside", "filtered", "absent", "lag")
    return {
        "name": definition.name,
        definition.kind: definition.source,
        "where": definition.where,
        "select": definition.select,
        "ack": definition.ack,
        "ack_timeout": definition.ack_timeout,
        "max_attempts": definition.max_attempts,
        "creator": definition.creator,
        "created_at": to_iso(definition.created_at),
        "position": str(
            Position(epoch, {each["partition"]: each["position"] for each in partitions})
        ),
        "members": sum(each.member_count for each in counts),
        "in_flight": sum(each.in_flight for each in counts),
        "pending": sum(each.unhandled for each in counts),
        "redelivered": sum(each.redelivered for each in counts),
        **{name: sum(each[name] for each in partitions) for name in summed},
        "partitions": partitions,
        "servers": [_describe_server(report, definition.name) for report in reports],
    }


def _describe_partition(
    definition: GroupDefinition,
    epoch: str,
    partition: int,
    known: CommittedOffset | None,
    bound: tuple[int, int],
) -> dict[str, Any]:
    start = Position.parse(definition.start)
    first = start.offsets.get(partition, 0) if start.epoch == epoch else 0
    mark = read_mark(known.metadata if known is not None else "")
    if known is None or (mark.generation, mark.epoch) != (definition.generation, epoch):
        position, mark = first, read_mark("")
        passed = 0
    else:
        position, passed = known.offset, known.offset - mark.start
    handled = mark.acknowledged + mark.set_aside + mark.filtered
    return {
        "partition": partition,
        "position": position,
        "end": bound[1],
        "lag": max(0, bound[1] - max(position, bound[0])),
        "passed": passed,
        "acknowledged": mark.acknowledged,
        "set_aside": mark.set_aside,
        "filtered": mark.filtered,
        "absent": passed - handled,
    }


def _describe_server(report: ProcessReport, name: str) -> dict[str, Any]:
    counts = report.groups[name]
    return {
        "url": report.url,
        "partitions": counts.partitions,
        "member_count": counts.member_count,
        "members": counts.members,
        "in_flight": counts.in_flight,
        "pending": counts.unhandled,
        "redelivered": counts.redelivered,
    }
