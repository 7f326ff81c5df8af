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
    """How often each link was checked and failed, and its newest HTTP status."""
    return link_checks.groupBy("url").agg(
        F.max("article").alias("article"),
        F.expr("count_if(status >= 400) AS failures"),
        F.count("*").alias("checks"),
        F.max_by("status", "at").alias("status"),
        F.max("at").alias("checked"),
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


# Spark cannot sort an endless stream. The server can sort what the views hold now: it answers these
# queries when asked, and again for each subscriber when a view under them has changed.
TRENDING = """
    SELECT article, max(section) AS section,
           coalesce(sum(views) FILTER (minute > latest - INTERVAL 5 MINUTES), 0)::BIGINT AS views,
           coalesce(sum(views) FILTER (minute <= latest - INTERVAL 5 MINUTES), 0)::BIGINT AS earlier
    FROM (
        SELECT *, "window".start AS minute, max("window".start) OVER () AS latest
        FROM article_minutes
    )
    WHERE minute > latest - INTERVAL 10 MINUTES AND section = coalesce(:section, section)
    GROUP BY article ORDER BY views DESC, article LIMIT :n"""
app.query("trending", sql=TRENDING, key=["article"], n=10, section=None)

BROKEN_LINKS = """
    SELECT url, status, checked, article, coalesce(views, 0)::BIGINT AS views
    FROM links LEFT JOIN (
        SELECT article, sum(views) AS views FROM (
            SELECT *, "window".start AS minute, max("window".start) OVER () AS latest
            FROM article_minutes
        )
        WHERE minute > latest - INTERVAL 5 MINUTES GROUP BY article
    ) USING (article)
    WHERE status >= 400
    ORDER BY views DESC, url"""
app.query("broken_links", sql=BROKEN_LINKS, key=["url"])
