"""How fast people ride, by age and by city, and each hundred riders of a city."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from millstream import App, windows

app = App("riders")

app.stream(
    "rides",
    schema="rider LONG NOT NULL, age INT, city STRING NOT NULL, speed DOUBLE, at TIMESTAMP",
    key="city",
    event_time="at",
    lateness="1 minute",
)

AGE_GROUP = """
    CASE WHEN age < 18 THEN 'under 18' WHEN age < 35 THEN '18 to 34'
         WHEN age < 55 THEN '35 to 54' ELSE '55 and over' END AS age_group"""


# Each ride is in 360 of these windows. Micro-batches write their rows once per batch and not once
# per ride; a reader who looks every 5 seconds sees no difference.
@app.view(key=["window", "age_group"], keep="2 hours", mode="micro_batch")
def speed_by_age(rides: DataFrame) -> DataFrame:
    """The average speed of each age group over 30 minutes, updated every 5 seconds."""
    half_hours = rides.groupBy(F.window("at", "30 minutes", "5 seconds"), F.expr(AGE_GROUP))
    return half_hours.agg(F.avg("speed").alias("speed"), F.count("*").alias("rides"))


@app.view(key=["window", "city"], keep="2 hours")
def speed_each_30s(rides: DataFrame) -> DataFrame:
    """The average speed in each city in each half minute."""
    half_minutes = rides.groupBy(F.window("at", "30 seconds"), "city")
    return half_minutes.agg(F.avg("speed").alias("speed"), F.count("*").alias("rides"))


@app.view
def each_hundred(rides: DataFrame) -> DataFrame:
    """An event each time when another hundred have ridden in a city, with their average speed."""
    hundreds = rides.groupBy("city", windows.by_count(100))
    return hundreds.agg(F.avg("speed").alias("speed"))
