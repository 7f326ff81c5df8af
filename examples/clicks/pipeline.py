"""Clicks per page and minute: first provisional, then final, corrected when some come late."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from millstream import App

app = App("clicks")

app.stream(
    "clicks",
    schema="page STRING NOT NULL, visitor STRING, at TIMESTAMP",
    key="page",
    event_time="at",
    lateness="10 minutes",
)


# billing.py adds up the view's ledger: an assertion when a minute is final, a retraction and a new
# assertion when a late event corrects it.
@app.view(key=["window", "page"], keep="1 day", ledger=["clicks"])
def clicks_per_minute(clicks: DataFrame) -> DataFrame:
    """How often each page was clicked in each minute."""
    return clicks.groupBy(F.window("at", "1 minute"), "page").agg(F.count("*").alias("clicks"))


@app.view(key=["window"], keep="1 day", trigger="at the watermark")
def site_per_minute(clicks: DataFrame) -> DataFrame:
    """How often all pages were clicked in each minute, shown once the minute is complete."""
    return clicks.groupBy(F.window("at", "1 minute")).agg(F.count("*").alias("clicks"))
