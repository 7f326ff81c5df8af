"""Which late events are in a window's row: why it was corrected, as its ledger tells."""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F

from millstream.analyze.spark.catalyst import Attribute, Catalyst

_MOST = 100  # that a row names, the last ones


def late_ids(
    catalyst: Catalyst, window: Attribute, watermark: Attribute, event: Attribute
) -> Column:
    """The ids of the events that came when the window was over, but in time to be counted."""
    ends = catalyst.column(window).getField("end")
    is_late = catalyst.column(watermark) >= ends
    found = F.collect_list(F.when(is_late, catalyst.column(event)))
    return F.reverse(F.slice(F.reverse(found), 1, _MOST))
