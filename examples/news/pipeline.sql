-- The same as pipeline.py, in SQL alone.
CREATE APP news;

CREATE STREAM page_views (
  article STRING NOT NULL, section STRING, reader STRING, at TIMESTAMP
) WITH (key = 'article', event_time = 'at', lateness = '2 minutes');

CREATE STREAM link_checks (
  url STRING NOT NULL, article STRING NOT NULL, status INT NOT NULL, at TIMESTAMP
) WITH (key = 'url', event_time = 'at', lateness = '2 minutes');

CREATE VIEW article_minutes WITH (key = ('window', 'article'), keep = '1 hour') AS
SELECT window(at, '1 minute') AS window, article, max(section) AS section, count(*) AS views
FROM page_views
GROUP BY window(at, '1 minute'), article;

CREATE VIEW links WITH (key = 'url') AS
SELECT url, max(article) AS article, count_if(status >= 400) AS failures, count(*) AS checks,
       max_by(status, at) AS status, max(at) AS checked
FROM link_checks
GROUP BY url;

CREATE VIEW alerts WITH (key = 'url', trigger = 'when status >= 400') AS
SELECT url, max(article) AS article, max_by(status, at) AS status, max(at) AS at
FROM link_checks
GROUP BY url;

CREATE QUERY trending (n = 10, section STRING = NULL) WITH (key = 'article') AS
SELECT article, max(section) AS section,
       coalesce(sum(views) FILTER (minute > latest - INTERVAL 5 MINUTES), 0)::BIGINT AS views,
       coalesce(sum(views) FILTER (minute <= latest - INTERVAL 5 MINUTES), 0)::BIGINT AS earlier
FROM (
  SELECT *, "window".start AS minute, max("window".start) OVER () AS latest FROM article_minutes
)
WHERE minute > latest - INTERVAL 10 MINUTES AND section = coalesce(:section, section)
GROUP BY article ORDER BY views DESC, article LIMIT :n;

CREATE QUERY broken_links WITH (key = 'url') AS
SELECT url, status, checked, article, coalesce(views, 0)::BIGINT AS views
FROM links LEFT JOIN (
  SELECT article, sum(views) AS views FROM (
    SELECT *, "window".start AS minute, max("window".start) OVER () AS latest FROM article_minutes
  )
  WHERE minute > latest - INTERVAL 5 MINUTES GROUP BY article
) USING (article)
WHERE status >= 400
ORDER BY views DESC, url;
