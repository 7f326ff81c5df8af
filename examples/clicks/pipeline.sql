-- The same as pipeline.py, in SQL alone.
CREATE APP clicks;

CREATE STREAM clicks (page STRING NOT NULL, visitor STRING, at TIMESTAMP)
WITH (key = 'page', event_time = 'at', lateness = '10 minutes');

CREATE VIEW clicks_per_minute
WITH (key = ('window', 'page'), keep = '1 day', ledger = ('clicks')) AS
SELECT window(at, '1 minute') AS window, page, count(*) AS clicks
FROM clicks
GROUP BY window(at, '1 minute'), page;

CREATE VIEW site_per_minute
WITH (key = 'window', keep = '1 day', trigger = 'at the watermark') AS
SELECT window(at, '1 minute') AS window, count(*) AS clicks
FROM clicks
GROUP BY window(at, '1 minute');
