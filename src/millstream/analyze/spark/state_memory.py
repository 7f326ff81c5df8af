"""The RocksDB cache that the state of all views shares, with shards that are large enough.

RocksDB reads a state file only if the file's Bloom filter says that a key may be there. The filters
(ten bits per key) are in the same cache as the data. Spark divides that cache into 64 shards, and a
filter must fit into one shard: 4 MB of 256 MB. The filter of a file with 3.4 million keys does not
fit. It is then read from disk, checked and discarded at every look-up, which takes fifty times as
long. Spark has no setting for the number of shards, so the cache is made here, before Spark does.
"""

from __future__ import annotations

from typing import Any

from pyspark.sql import SparkSession

from millstream.analyze.spark.catalyst import Catalyst

_STATE = "org.apache.spark.sql.execution.streaming.state"
_SHARD = 64  # MB: the maximum size of a state file, and so of its filter
_MAX_BITS = 6  # Spark's 64 shards


def share_state_memory(spark: SparkSession) -> None:
    """Make the cache of this session's JVM, unless it has one or its state is not bounded.

    Executors in other JVMs make their own caches, with 64 shards.
    """
    catalyst = Catalyst(spark)
    wanted = catalyst.java(f"{_STATE}.RocksDBConf").apply(
        catalyst.java(f"{_STATE}.StateStoreConf").apply(catalyst.session.sessionState().conf())
    )
    manager = catalyst.java("java.lang.Class").forName(f"{_STATE}.RocksDBMemoryManager$")
    cache, buffers = (_field(manager, name) for name in ("cache", "writeBufferManager"))
    if not wanted.boundedMemoryUsage() or cache.get(None) is not None:
        return
    catalyst.java("org.rocksdb.RocksDB").loadLibrary()
    size = wanted.totalMemoryUsageMB() << 20
    made = catalyst.java("org.rocksdb.LRUCache")(
        size, _bits(wanted.totalMemoryUsageMB()), False, wanted.highPriorityPoolRatio()
    )
    cache.set(None, made)
    buffers.set(
        None,
        catalyst.java("org.rocksdb.WriteBufferManager")(
            int(size * wanted.writeBufferCacheRatio()), made
        ),
    )


def _bits(megabytes: int) -> int:
    """The base-2 logarithm of the number of shards. With fewer shards, more tasks wait."""
    return min(max(megabytes // _SHARD, 1).bit_length() - 1, _MAX_BITS)


def _field(manager: Any, name: str) -> Any:
    field = manager.getDeclaredField(name)
    field.setAccessible(True)
    return field
