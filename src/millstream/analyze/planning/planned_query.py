"""A view's continuous query, planned and ready to be started."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import DataFrame

from millstream.analyze.plan import ViewPlan
from millstream.pipeline.model import View


@dataclass(frozen=True, slots=True)
class PlannedQuery:
    """A view, its plan and the DataFrames that give its rows."""

    view: View
    plan: ViewPlan
    rows: DataFrame  # the user's columns and the hidden ones
    batch_rows: DataFrame  # the same for a batch over everything in the topics
    replays: bool = False  # it ends where the log ended when it started
