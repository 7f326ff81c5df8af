-- The same as pipeline.py, in SQL alone.
CREATE APP riders;

CREATE STREAM rides (
  rider LONG NOT NULL, age INT, city STRING NOT NULL, speed DOUBLE, at TIMESTAMP
) WITH (key = 'city', event_time = 'at', lateness = '1 minute');

CREATE VIEW speed_by_age
WITH (key = ('window', 'age_group'), keep = '2 hours', mode = 'micro_batch') AS
SELECT window(at, '30 minutes', '5 seconds') AS window, age_group,
       avg(speed) AS speed, count(*) AS rides
FROM (
  SELECT *, CASE WHEN age < 18 THEN 'under 18' WHEN age < 35 THEN '18 to 34'
                 WHEN age < 55 THEN '35 to 54' ELSE '55 and over' END AS age_group
  FROM rides
)
GROUP BY window(at, '30 minutes', '5 seconds'), age_group;

CREATE VIEW speed_each_30s WITH (key = ('window', 'city'), keep = '2 hours') AS
SELECT window(at, '30 seconds') AS window, city, avg(speed) AS speed, count(*) AS rides
FROM rides
GROUP BY window(at, '30 seconds'), city;

CREATE VIEW each_hundred AS
SELECT city, count_window(100) AS window, avg(speed) AS speed
FROM rides
GROUP BY city, count_window(100);
