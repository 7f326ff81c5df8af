"""Which events a view has left out to keep up: by their positions, written down before it does.

A range says what share of a partition's events counts, from one offset to another. Whether an
event is among them is decided by a hash of its position. So a restart, a batch over history and
`verify` take the same events, and how many were left out can be counted without reading them.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from itertools import groupby

import msgspec
import xxhash
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from millstream.analyze.records.reader import SHARE
from millstream.analyze.spark.catalyst import (
    Catalyst,
    Expression,
    LogicalPlan,
    items,
    leaves,
    name_of,
    replace_leaves,
)

WHOLE = 1000  # shares are counted in thousandths
_SPARK_SEED = 42  # that its xxhash64 begins with
_AT_ONCE = "maxOffsetsPerTrigger"


class Range(msgspec.Struct, frozen=True):
    """A share of one partition's events: start <= offset < stop."""

    topic: str
    partition: int
    start: int
    stop: int | None  # None: until further notice
    share: int  # thousandths
    at: int  # when it was decided; milliseconds since the epoch
    counted: int = 0  # up to this offset, it was counted how many are left out:
    left_out: int = 0


Offsets = Mapping[str, Mapping[int, int]]  # topic → partition → offset


def is_kept(topic: str, partition: int, offset: int, share: int) -> bool:
    """Whether the event at that position is among the share."""
    return _place(_seed(topic, partition), offset) < share


def left_out(span: Range, start: int, stop: int) -> int:
    """How many of the range's events between two offsets are not among its share."""
    seed = _seed(span.topic, span.partition)
    return sum(_place(seed, offset) >= span.share for offset in range(start, stop))


def _seed(topic: str, partition: int) -> int:
    of_topic = xxhash.xxh64_intdigest(topic.encode(), seed=_SPARK_SEED)
    return int(xxhash.xxh64_intdigest(struct.pack("<i", partition), seed=of_topic))


def _place(seed: int, offset: int) -> int:
    """Where among the thousand an event falls, as Spark's own functions have it."""
    digest = xxhash.xxh64_intdigest(struct.pack("<q", offset), seed=seed)
    return int((digest - (1 << 64) if digest >> 63 else digest) % WHOLE)


def turn(ranges: Iterable[Range], at: Offsets, share: int, now: int) -> tuple[Range, ...]:
    """The ranges with another share from those offsets on: no event before them is affected."""
    ended = [_end(each, at) for each in ranges]
    kept = [each for each in ended if each.stop is None or each.start < each.stop]
    begun = [
        Range(topic, partition, offset, None, share, now)
        for topic, partitions in at.items()
        for partition, offset in partitions.items()
        if share < WHOLE
    ]
    return (*kept, *begun)


def _end(span: Range, at: Offsets) -> Range:
    stop = at.get(span.topic, {}).get(span.partition)
    if span.stop is not None or stop is None:
        return span
    return msgspec.structs.replace(span, stop=max(stop, span.start))


def count_on(
    ranges: Iterable[Range], read: Mapping[str, Mapping[str, int]], most: int
) -> tuple[Range, ...]:
    """The ranges with their events counted up to where the view has read; `most` at a time."""
    counted = []
    for span in ranges:
        start = max(span.start, span.counted)
        end = read.get(span.topic, {}).get(str(span.partition), 0)
        stop = min(end, start + most) if span.stop is None else min(end, span.stop, start + most)
        if start < stop:
            most -= stop - start
            more = span.left_out + left_out(span, start, stop)
            span = msgspec.structs.replace(span, counted=stop, left_out=more)
        counted.append(span)
    return tuple(counted)


def still_ahead(
    ranges: Iterable[Range], read: Mapping[str, Mapping[str, int]]
) -> tuple[Range, ...]:
    """The ranges of which a query that has read so far may still meet an event."""
    return tuple(
        each
        for each in ranges
        if each.stop is None or each.stop > read.get(each.topic, {}).get(str(each.partition), 0)
    )


def share_of(ranges: Iterable[Range]) -> int:
    """The share of what comes now, in thousandths."""
    return min((each.share for each in ranges if each.stop is None), default=WHOLE)


def since(ranges: Iterable[Range]) -> int:
    """From which offsets on, added up, that share is taken, be it a sample or the whole again."""
    turned: dict[tuple[str, int], int] = {}
    for each in ranges:
        at = each.start if each.stop is None else each.stop
        turned[each.topic, each.partition] = max(at, turned.get((each.topic, each.partition), 0))
    return sum(turned.values())


def sample(frame: DataFrame, ranges: Iterable[Range]) -> DataFrame:
    """The same query over the events that count, each of which knows the share that it is of.

    The query's checkpoint fits it as before.
    """
    by_topic = {
        topic: list(found)
        for topic, found in groupby(sorted(ranges, key=_order), key=lambda each: each.topic)
    }
    if not by_topic:
        return frame
    catalyst = Catalyst.of(frame)

    def thin(plan: LogicalPlan) -> LogicalPlan:
        if (place := _share_in(plan)) is None:
            return plan.withNewChildren(catalyst.seq(thin(each) for each in items(plan.children())))
        topic = _topic(plan)
        if topic not in by_topic:
            return plan
        thousandths = _thousandths(by_topic[topic])
        records = _as_many_at_once(catalyst, plan.child(), share_of(by_topic[topic]))
        source = catalyst.frame(records).filter(_hashed(topic) < thousandths)
        listed = items(plan.projectList())
        listed[place] = _renewed(catalyst, listed[place], plan.child(), thousandths / WHOLE)
        return plan.copy(catalyst.seq(listed), catalyst.analysed(source))

    return catalyst.frame(thin(catalyst.analysed(frame)))


def _order(span: Range) -> tuple[str, int, int]:
    return span.topic, span.partition, span.start


def _share_in(plan: LogicalPlan) -> int | None:
    """Where among its columns a plan has the share that the reader has put there."""
    if name_of(plan) != "Project":
        return None
    for place, each in enumerate(items(plan.projectList())):
        if name_of(each) == "Alias" and each.metadata().contains(SHARE):
            return place
    return None


def _topic(plan: LogicalPlan) -> str:
    found = [leaf for leaf in leaves(plan) if name_of(leaf) == "StreamingRelationV2"]
    return str(found[0].extraOptions().get("subscribe")) if found else ""


def _as_many_at_once(catalyst: Catalyst, records: LogicalPlan, share: int) -> LogicalPlan:
    """The records, with as many in a micro-batch that count as if all did: a batch costs, too."""

    def more(leaf: LogicalPlan) -> LogicalPlan:
        most = leaf.extraOptions().get(_AT_ONCE)
        if most is None:
            return leaf
        options = catalyst.java("java.util.HashMap")(leaf.extraOptions().asCaseSensitiveMap())
        options.put(_AT_ONCE, str(int(most) * WHOLE // share))
        changed = catalyst.java("org.apache.spark.sql.util.CaseInsensitiveStringMap")(options)
        return leaf.copy(
            *(
                changed if leaf.productElementName(place) == "extraOptions" else part
                for place, part in enumerate(items(leaf.productIterator().toSeq()))
            )
        )

    return replace_leaves(catalyst, records, more)


def _hashed(topic: str) -> Column:
    return F.pmod(F.xxhash64(F.lit(topic), F.col("partition"), F.col("offset")), F.lit(WHOLE))


def _thousandths(ranges: Iterable[Range]) -> Column:
    found = F.lit(WHOLE)
    for span in ranges:
        here = (F.col("partition") == span.partition) & (F.col("offset") >= span.start)
        if span.stop is not None:
            here &= F.col("offset") < span.stop
        found = F.when(here, span.share).otherwise(found)
    return found


def _renewed(
    catalyst: Catalyst, alias: Expression, child: LogicalPlan, value: Column
) -> Expression:
    """The column as the plan above knows it, with another value."""
    made = catalyst.analysed(catalyst.frame(child).select(value.alias(SHARE)))
    return alias.withNewChildren(catalyst.seq([made.projectList().apply(0).child()]))
