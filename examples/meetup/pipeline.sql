-- The same as pipeline.py, in SQL alone.
CREATE APP meetup;

CREATE STREAM rsvps (
  rsvp_id LONG, mtime TIMESTAMP, response STRING, guests INT,
  member STRUCT<member_name: STRING>, event STRUCT<event_name: STRING>,
  `group` STRUCT<group_topics: ARRAY<STRUCT<topic_name: STRING>>, group_city: STRING,
                 group_country: STRING, group_lat: DOUBLE, group_lon: DOUBLE>
) WITH (
  key = 'rsvp_id', event_time = 'mtime', lateness = '10 minutes', delivery = 'exactly_once',
  source = 'ws://127.0.0.1:8600/rsvps'
);

CREATE VIEW trending_topics WITH (key = ('window', 'topic'), keep = '3 hours') AS
SELECT window(mtime, '1 hour', '10 minutes') AS window, topic,
       count(*) AS rsvps, count_if(response = 'yes') AS yes
FROM rsvps LATERAL VIEW explode(`group`.group_topics.topic_name) AS topic
GROUP BY window(mtime, '1 hour', '10 minutes'), topic;

CREATE VIEW rsvps_per_minute WITH (key = 'window', keep = '3 hours') AS
SELECT window(mtime, '1 minute') AS window, count_if(response = 'yes') AS yes,
       count_if(response = 'no') AS no, sum(if(response = 'yes', guests, 0)) AS guests
FROM rsvps
GROUP BY window(mtime, '1 minute');

CREATE VIEW by_country WITH (key = 'country') AS
SELECT `group`.group_country AS country, count(*) AS rsvps FROM rsvps GROUP BY 1;

CREATE VIEW by_city WITH (key = ('country', 'city')) AS
SELECT `group`.group_country AS country, `group`.group_city AS city, count(*) AS rsvps,
       max(`group`.group_lat) AS lat, max(`group`.group_lon) AS lon
FROM rsvps
GROUP BY 1, 2;

CREATE VIEW newest_rsvps AS
SELECT rsvp_id, mtime, response, guests, member.member_name AS member, event.event_name AS event,
       `group`.group_topics.topic_name AS topics, `group`.group_city AS city,
       `group`.group_country AS country, `group`.group_lat AS lat, `group`.group_lon AS lon
FROM rsvps;
