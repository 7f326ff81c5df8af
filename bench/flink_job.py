"""The reference: the same one-minute count as PyFlink runs it. Started by bench.flink, in its venv.

    python flink_job.py --bootstrap HOST:PORT --source TOPIC --sink TOPIC --jar JAR

Set up as Millstream's analysis is: one task, state in RocksDB, a checkpoint each five minutes, and
buffers that wait no longer than two milliseconds.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from pyflink.common import Configuration
from pyflink.table import EnvironmentSettings, TableEnvironment

SOURCE = """
    CREATE TABLE events (id BIGINT, `key` INT, `at` BIGINT) WITH (
      'connector' = 'kafka', 'topic' = '{topic}', 'properties.bootstrap.servers' = '{bootstrap}',
      'properties.fetch.max.wait.ms' = '500',
      'scan.startup.mode' = 'earliest-offset', 'format' = 'json')
"""
SINK = """
    CREATE TABLE counts (
      start_at TIMESTAMP_LTZ(3), `key` INT, n BIGINT, id BIGINT,
      PRIMARY KEY (start_at, `key`) NOT ENFORCED
    ) WITH (
      'connector' = 'upsert-kafka', 'topic' = '{topic}',
      'properties.bootstrap.servers' = '{bootstrap}',
      'key.format' = 'json', 'value.format' = 'json', 'properties.linger.ms' = '0')
"""
# A row at every change, as in a view; Flink's window functions output only at the end.
COUNT = """
    INSERT INTO counts
    SELECT FLOOR(TO_TIMESTAMP_LTZ(`at`, 3) TO MINUTE), `key`, COUNT(*), MAX(id)
    FROM events GROUP BY FLOOR(TO_TIMESTAMP_LTZ(`at`, 3) TO MINUTE), `key`
"""


def main() -> None:
    parser = argparse.ArgumentParser(description="Count by minute and key, from Kafka to Kafka.")
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--source", required=True)
    parser.add_argument("--sink", required=True)
    parser.add_argument("--jar", required=True, type=Path)
    parser.add_argument("--checkpoints", required=True, type=Path)
    options = parser.parse_args()
    configuration = Configuration()
    for name, value in {
        "pipeline.jars": options.jar.as_uri(),
        "parallelism.default": "1",
        "execution.buffer-timeout.interval": "2 ms",
        "execution.checkpointing.interval": "5 min",
        "execution.checkpointing.dir": options.checkpoints.as_uri(),
        "state.backend.type": "rocksdb",
        "table.exec.mini-batch.enabled": "false",
        "table.exec.state.ttl": "1 h",
        "rest.bind-port": "0",
    }.items():
        configuration.set_string(name, value)
    settings = EnvironmentSettings.new_instance().with_configuration(configuration)
    tables = TableEnvironment.create(settings.in_streaming_mode().build())
    tables.execute_sql(SOURCE.format(topic=options.source, bootstrap=options.bootstrap))
    tables.execute_sql(SINK.format(topic=options.sink, bootstrap=options.bootstrap))
    tables.execute_sql(COUNT).wait()


if __name__ == "__main__":
    main()
