"""A newspaper's site as it is read: what people read now, and which links are broken."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from millstream import App

app = App("news")

app.stream(
    "page_views",
    schema="article STRING NOT NULL, section STRING, reader STRING, at TIMESTAMP",
    key="article",
    event_time="at",
    lateness="2 minutes",
)
app.stream(
    "link_checks",
    schema="url STRING NOT NULL, article STRING NOT NULL, status INT NOT NULL, at TIMESTAMP",
    key="url",
    event_time="at",
    lateness="2 minutes",
)


@app.view(key=["window", "article"], keep="1 hour")
def article_minutes(page_views: DataFrame) -> DataFrame:
    """How often each article is read in each minute."""
    minutes = page_views.groupBy(F.window("at", "1 minute"), "article")
    return minutes.agg(F.max("section").alias("section"), F.count("*").alias("views"))


@app.view(key=["url"])
def links(link_checks: DataFrame) -> DataFrame:
    """The newest HTTP status of each link."""
    return link_checks.groupBy("url").agg(
        F.max("article").alias("article"),
        F.max_by("status", "at").alias("status"),
        F.max("at").alias("checked"),
        F.count("*").alias("checks"),
        F.expr("count_if(status >= 400) AS failures"),
    )


# A row comes each time that a link breaks: not while it stays broken, and not when it works again.
@app.view(key=["url"], trigger="when status >= 400")
def alerts(link_checks: DataFrame) -> DataFrame:
    """Links that have just broken, for the desks."""
    return link_checks.groupBy("url").agg(
        F.max("article").alias("article"),
        F.max_by("status", "at").alias("status"),
        F.max("at").alias("at"),
    )
