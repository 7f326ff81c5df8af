"""The cache that the state of all views shares."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from millstream.analyze.spark.catalyst import Catalyst

STATE = "org.apache.spark.sql.execution.streaming.state"
PIECE_OF_SPARKS = (256 << 20) // 64  # bytes, of the default of analyze.state_memory


def cache_of(catalyst: Catalyst) -> Any:
    """The cache that Spark gives to every state store."""
    settings = catalyst.java(f"{STATE}.StateStoreConf").apply(
        catalyst.session.sessionState().conf()
    )
    manager = catalyst.module(f"{STATE}.RocksDBMemoryManager")
    wanted = catalyst.java(f"{STATE}.RocksDBConf").apply(settings)
    return manager.getOrCreateRocksDBMemoryManagerAndCache(wanted)._2()


@contextmanager
def store(catalyst: Catalyst, folder: Path, statistics: Any) -> Iterator[Any]:
    """A RocksDB whose index is in the cache, as that of a state store is."""
    table = catalyst.java("org.rocksdb.BlockBasedTableConfig")()
    table.setBlockCache(cache_of(catalyst)).setCacheIndexAndFilterBlocks(True)
    options = catalyst.java("org.rocksdb.Options")().setCreateIfMissing(True)
    options.setTableFormatConfig(table).setStatistics(statistics)
    database = catalyst.java("org.rocksdb.RocksDB").open(options, str(folder))
    try:
        yield database
    finally:
        database.close()


def test_the_filter_of_a_large_state_file_stays_in_memory(
    spark: SparkSession, tmp_path: Path
) -> None:
    catalyst = Catalyst(spark)
    statistics = catalyst.java("org.rocksdb.Statistics")()
    ticker = catalyst.java("org.rocksdb.TickerType")
    # Keys that differ only at their ends are in the index in full, so few keys make it large.
    keys = [b"k" * 8000 + f"{number:06}".encode() for number in range(1000)]
    with store(catalyst, tmp_path / "store", statistics) as database:
        for key in keys:
            database.put(key, b"value")
        database.flush(catalyst.java("org.rocksdb.FlushOptions")().setWaitForFlush(True))
        assert database.get(keys[0]) == b"value"
        held = statistics.getTickerCount(ticker.BLOCK_CACHE_INDEX_BYTES_INSERT)
        assert held > PIECE_OF_SPARKS, "the index would fit into a piece of Spark's"

        missed = statistics.getTickerCount(ticker.BLOCK_CACHE_INDEX_MISS)
        for key in keys[::100]:
            assert database.get(key) == b"value"
        assert statistics.getTickerCount(ticker.BLOCK_CACHE_INDEX_MISS) == missed
