-- The same as pipeline.py, in SQL alone.
CREATE APP traffic;

CREATE STREAM positions (
  car STRING NOT NULL, owner STRING, make STRING, model STRING,
  city STRING NOT NULL, segment STRING NOT NULL, lat DOUBLE, lon DOUBLE,
  speed DOUBLE, condition STRING, at TIMESTAMP
) WITH (
  key = 'car', event_time = 'at', lateness = '5 minutes', retention = '31 days',
  rows = "caller.role = 'city' OR caller.role = 'car' AND car = caller.car",
  hide = (car = "caller.role = 'car'", owner = "caller.role = 'car'")
);

CREATE VIEW my_car WITH (key = 'car', keep = '1 day', rows = 'car = caller.car') AS
SELECT car, max_by(owner, at) AS owner, max_by(make, at) AS make, max_by(model, at) AS model,
       max_by(city, at) AS city, max_by(segment, at) AS segment,
       max_by(lat, at) AS lat, max_by(lon, at) AS lon, max_by(speed, at) AS speed,
       max(at) AS at
FROM positions
GROUP BY car;

CREATE VIEW sightings AS
SELECT city, segment, lat, lon, speed, condition, at FROM positions;

CREATE VIEW roads WITH (key = ('city', 'segment')) AS
SELECT city, segment, count(*) AS reports,
       max_by(condition, struct(at, car)) AS condition, max_by(speed, struct(at, car)) AS speed,
       max_by(lat, struct(at, car)) AS lat, max_by(lon, struct(at, car)) AS lon, max(at) AS at
FROM positions
GROUP BY city, segment;

CREATE VIEW speeds WITH (key = ('window', 'city'), keep = '1 day') AS
SELECT window(at, '5 minutes') AS window, city, avg(speed) AS speed, count(*) AS reports
FROM positions
GROUP BY window(at, '5 minutes'), city;
