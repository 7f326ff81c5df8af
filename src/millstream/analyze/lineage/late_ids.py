"""The ids of the late events in a window's row, which its ledger gives as reasons."""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F

from millstream.analyze.spark.catalyst import Attribute, Catalyst

_MAX_IDS = 100  # in one row: the last ones


def late_ids(
    catalyst: Catalyst, window: Attribute, watermark: Attribute, event: Attribute
) -> Column:
    """The ids of events that came after their window's end, but early enough to be counted."""
    ends = catalyst.column(window).getField("end")
    is_late = catalyst.column(watermark) >= ends
    found = F.collect_list(F.when(is_late, catalyst.column(event)))
    return F.reverse(F.slice(F.reverse(found), 1, _MAX_IDS))
