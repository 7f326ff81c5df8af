"""What the world is meeting about, as it answers: RSVPs in, live views out."""

import os

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from millstream import App, WebSocketSource

app = App("meetup")

app.stream(
    "rsvps",
    schema="""
        rsvp_id LONG, mtime TIMESTAMP, response STRING, guests INT,
        member STRUCT<member_name: STRING>, event STRUCT<event_name: STRING>,
        `group` STRUCT<group_topics: ARRAY<STRUCT<topic_name: STRING>>, group_city: STRING,
                       group_country: STRING, group_lat: DOUBLE, group_lon: DOUBLE>
    """,
    key="rsvp_id",
    event_time="mtime",
    lateness="10 minutes",
    delivery="exactly_once",
    source=WebSocketSource(os.environ.get("MEETUP_URL", "ws://127.0.0.1:8600/rsvps")),
)


@app.view(key=["window", "topic"], keep="3 hours")
def trending_topics(rsvps: DataFrame) -> DataFrame:
    """How often each topic is answered, in an hour that slides by ten minutes."""
    topics = rsvps.withColumn("topic", F.explode("group.group_topics.topic_name"))
    hours = topics.groupBy(F.window("mtime", "1 hour", "10 minutes"), "topic")
    return hours.agg(F.count("*").alias("rsvps"), F.expr("count_if(response = 'yes') AS yes"))


@app.view(key=["window"], keep="3 hours")
def rsvps_per_minute(rsvps: DataFrame) -> DataFrame:
    """How many say yes and no in each minute, and how many guests come along."""
    return rsvps.groupBy(F.window("mtime", "1 minute")).agg(
        F.expr("count_if(response = 'yes') AS yes"),
        F.expr("count_if(response = 'no') AS no"),
        F.expr("sum(if(response = 'yes', guests, 0)) AS guests"),
    )


# The others in SQL: a pipeline may mix both.
BY_COUNTRY = "SELECT `group`.group_country AS country, count(*) AS rsvps FROM rsvps GROUP BY 1"
BY_CITY = """
    SELECT `group`.group_country AS country, `group`.group_city AS city, count(*) AS rsvps,
           max(`group`.group_lat) AS lat, max(`group`.group_lon) AS lon
    FROM rsvps GROUP BY 1, 2"""
NEWEST_RSVPS = """
    SELECT rsvp_id, mtime, response, guests, member.member_name AS member,
           event.event_name AS event, `group`.group_topics.topic_name AS topics,
           `group`.group_city AS city, `group`.group_country AS country,
           `group`.group_lat AS lat, `group`.group_lon AS lon
    FROM rsvps"""
app.view("by_country", sql=BY_COUNTRY, key=["country"])
app.view("by_city", sql=BY_CITY, key=["country", "city"])
app.view("newest_rsvps", sql=NEWEST_RSVPS)
