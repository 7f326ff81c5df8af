"""The ranges of offsets in which a view takes only a share of the events.

A range is written to the checkpoint's notes before it takes effect. A hash of an event's position
decides whether the event is in the share. So a restart, a batch over history and `verify` take the
same events, and the events that were left out can be counted without reading them.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from itertools import groupby

import msgspec
import xxhash
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from millstream.analyze.records.reader import SHARE_KEY
from millstream.analyze.spark.catalyst import (
    Catalyst,
    Expression,
    LogicalPlan,
    items,
    name_of,
    replace_leaves,
    streamed_topics,
)

FULL_SHARE = 1000  # shares are in thousandths
_SPARK_SEED = 42  # of Spark's xxhash64
_BATCH_LIMIT = "maxOffsetsPerTrigger"


class ShedRange(msgspec.Struct, frozen=True):
    """A share of one partition's events: start <= offset < stop."""

    topic: str
    partition: int
    start: int
    stop: int | None  # None: it still grows
    share: int  # thousandths
    at: int  # when it began; milliseconds since the epoch
    counted: int = 0  # `left_out` is the count up to this offset
    left_out: int = 0


Offsets = Mapping[str, Mapping[int, int]]  # topic → partition → offset


def is_kept(topic: str, partition: int, offset: int, share: int) -> bool:
    """Whether the event at that position is in the share."""
    return _place(_seed(topic, partition), offset) < share


def left_out(span: ShedRange, start: int, stop: int) -> int:
    """The number of the range's events between two offsets that are not in its share."""
    seed = _seed(span.topic, span.partition)
    return sum(_place(seed, offset) >= span.share for offset in range(start, stop))


def _seed(topic: str, partition: int) -> int:
    of_topic = xxhash.xxh64_intdigest(topic.encode(), seed=_SPARK_SEED)
    return int(xxhash.xxh64_intdigest(struct.pack("<i", partition), seed=of_topic))


def _place(seed: int, offset: int) -> int:
    """The event's hash modulo 1000, as Spark computes it."""
    digest = xxhash.xxh64_intdigest(struct.pack("<q", offset), seed=seed)
    return int((digest - (1 << 64) if digest >> 63 else digest) % FULL_SHARE)


def change_share(
    ranges: Iterable[ShedRange], at: Offsets, share: int, now: int
) -> tuple[ShedRange, ...]:
    """The ranges with another share from those offsets on."""
    ended = [_end(each, at) for each in ranges]
    kept = [each for each in ended if each.stop is None or each.start < each.stop]
    begun = [
        ShedRange(topic, partition, offset, None, share, now)
        for topic, partitions in at.items()
        for partition, offset in partitions.items()
        if share < FULL_SHARE
    ]
    return (*kept, *begun)


def _end(span: ShedRange, at: Offsets) -> ShedRange:
    stop = at.get(span.topic, {}).get(span.partition)
    if span.stop is not None or stop is None:
        return span
    return msgspec.structs.replace(span, stop=max(stop, span.start))


def count_left_out(
    ranges: Iterable[ShedRange], read: Mapping[str, Mapping[str, int]], most: int
) -> tuple[ShedRange, ...]:
    """The ranges, with left-out events counted up to the read offsets; `most` offsets at once."""
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
    ranges: Iterable[ShedRange], read: Mapping[str, Mapping[str, int]]
) -> tuple[ShedRange, ...]:
    """The ranges that do not end before the read offsets."""
    return tuple(
        each
        for each in ranges
        if each.stop is None or each.stop > read.get(each.topic, {}).get(str(each.partition), 0)
    )


def share_of(ranges: Iterable[ShedRange]) -> int:
    """The share of new events, in thousandths."""
    return min((each.share for each in ranges if each.stop is None), default=FULL_SHARE)


def share_since(ranges: Iterable[ShedRange]) -> int:
    """The sum over partitions of the offsets at which the share last changed."""
    changed: dict[tuple[str, int], int] = {}
    for each in ranges:
        at = each.start if each.stop is None else each.stop
        changed[each.topic, each.partition] = max(at, changed.get((each.topic, each.partition), 0))
    return sum(changed.values())


def sample(frame: DataFrame, ranges: Iterable[ShedRange]) -> DataFrame:
    """The query over the events in the shares, with weights that follow from the shares.

    Its checkpoint still fits.
    """
    by_topic = {
        topic: list(found)
        for topic, found in groupby(sorted(ranges, key=_order), key=lambda each: each.topic)
    }
    if not by_topic:
        return frame
    catalyst = Catalyst.of(frame)

    def sampled(plan: LogicalPlan) -> LogicalPlan:
        if (place := _share_column(plan)) is None:
            return plan.withNewChildren(catalyst.seq(map(sampled, items(plan.children()))))
        topic = next(iter(streamed_topics(plan)), "")
        if topic not in by_topic:
            return plan
        thousandths = _thousandths(by_topic[topic])
        records = _with_larger_batches(catalyst, plan.child(), share_of(by_topic[topic]))
        source = catalyst.frame(records).filter(_hashed(topic) < thousandths)
        listed = items(plan.projectList())
        listed[place] = _renewed(catalyst, listed[place], plan.child(), thousandths / FULL_SHARE)
        return plan.copy(catalyst.seq(listed), catalyst.analysed(source))

    return catalyst.frame(sampled(catalyst.analysed(frame)))


def _order(span: ShedRange) -> tuple[str, int, int]:
    return span.topic, span.partition, span.start


def _share_column(plan: LogicalPlan) -> int | None:
    """The index of the column that the reader added for the share; None if there is none."""
    if name_of(plan) != "Project":
        return None
    for place, each in enumerate(items(plan.projectList())):
        if name_of(each) == "Alias" and each.metadata().contains(SHARE_KEY):
            return place
    return None


def _with_larger_batches(catalyst: Catalyst, records: LogicalPlan, share: int) -> LogicalPlan:
    """The records in larger micro-batches, so that each has as many events in the share as before.

    Each batch has a fixed cost.
    """

    def enlarged(leaf: LogicalPlan) -> LogicalPlan:
        limit = leaf.extraOptions().get(_BATCH_LIMIT)
        if limit is None:
            return leaf
        options = catalyst.java("java.util.HashMap")(leaf.extraOptions().asCaseSensitiveMap())
        options.put(_BATCH_LIMIT, str(int(limit) * FULL_SHARE // share))
        changed = catalyst.java("org.apache.spark.sql.util.CaseInsensitiveStringMap")(options)
        return leaf.copy(
            *(
                changed if leaf.productElementName(place) == "extraOptions" else part
                for place, part in enumerate(items(leaf.productIterator().toSeq()))
            )
        )

    return replace_leaves(catalyst, records, enlarged)


def _hashed(topic: str) -> Column:
    return F.pmod(F.xxhash64(F.lit(topic), F.col("partition"), F.col("offset")), F.lit(FULL_SHARE))


def _thousandths(ranges: Iterable[ShedRange]) -> Column:
    found = F.lit(FULL_SHARE)
    for span in ranges:
        here = (F.col("partition") == span.partition) & (F.col("offset") >= span.start)
        if span.stop is not None:
            here &= F.col("offset") < span.stop
        found = F.when(here, span.share).otherwise(found)
    return found


def _renewed(
    catalyst: Catalyst, alias: Expression, child: LogicalPlan, value: Column
) -> Expression:
    """The column under the same id, with another value."""
    made = catalyst.analysed(catalyst.frame(child).select(value.alias(SHARE_KEY)))
    return alias.withNewChildren(catalyst.seq([made.projectList().apply(0).child()]))
