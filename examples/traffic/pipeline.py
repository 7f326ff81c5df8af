"""Traffic as cars report it: where each car is, how fast each road is, what to expect on it."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from millstream import App

app = App("traffic")

# A month of it can be replayed: by the city, without the cars' identity; by a car, only its own.
app.stream(
    "positions",
    schema="""
        car STRING NOT NULL, owner STRING, make STRING, model STRING,
        city STRING NOT NULL, segment STRING NOT NULL, lat DOUBLE, lon DOUBLE,
        speed DOUBLE, condition STRING, at TIMESTAMP
    """,
    key="car",
    event_time="at",
    lateness="5 minutes",
    retention="31 days",
    rows="caller.role = 'city' OR caller.role = 'car' AND car = caller.car",
    hide={"car": "caller.role = 'car'", "owner": "caller.role = 'car'"},
)

MY_CAR = """
    SELECT car, max_by(owner, at) AS owner, max_by(make, at) AS make, max_by(model, at) AS model,
           max_by(city, at) AS city, max_by(segment, at) AS segment,
           max_by(lat, at) AS lat, max_by(lon, at) AS lon, max_by(speed, at) AS speed,
           max(at) AS at
    FROM positions GROUP BY car"""
app.view("my_car", sql=MY_CAR, key=["car"], keep="1 day", rows="car = caller.car")

# What others see of a car: nothing in it says which car it is, and two of its rows have no common
# column. So it has no key: it is a stream of rows, not a table of cars.
SIGHTINGS = "SELECT city, segment, lat, lon, speed, condition, at FROM positions"
app.view("sightings", sql=SIGHTINGS)

# Of two cars that report at the same moment, the one with the greater name counts: so the row does
# not depend on the order in which they arrive.
ROADS = """
    SELECT city, segment, count(*) AS reports,
           max_by(condition, struct(at, car)) AS condition, max_by(speed, struct(at, car)) AS speed,
           max_by(lat, struct(at, car)) AS lat, max_by(lon, struct(at, car)) AS lon, max(at) AS at
    FROM positions GROUP BY city, segment"""
app.view("roads", sql=ROADS, key=["city", "segment"])


@app.view(key=["window", "city"], keep="1 day")
def speeds(positions: DataFrame) -> DataFrame:
    """How fast cars drive in each city, by five minutes."""
    cities = positions.groupBy(F.window("at", "5 minutes"), "city")
    return cities.agg(F.avg("speed").alias("speed"), F.count("*").alias("reports"))
