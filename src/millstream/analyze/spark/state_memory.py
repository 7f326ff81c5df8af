"""The memory that the state of all views shares, in pieces that a state file's filter fits into.

RocksDB looks into a file only if the file's filter says that a key may be there, and keeps filters
(ten bits for each key) in the same cache as all else. Spark has that cache cut into 64 pieces, and
each filter must fit into one: of 256 MB, into 4 MB. The filter of a file with 3.4 million keys does
not; it is then read from disk, checked and thrown away at every look-up, which takes fifty times as
long. No setting of Spark's says how many pieces, so the cache is made here, before Spark would.
"""

from __future__ import annotations

from typing import Any

from pyspark.sql import SparkSession

from millstream.analyze.spark.catalyst import Catalyst

_STATE = "org.apache.spark.sql.execution.streaming.state"
_PIECE = 64  # MB that a state file has at most, and so its filter
_MOST = 6  # bits, which is Spark's 64 pieces


def share_state_memory(spark: SparkSession) -> None:
    """Make the cache of this session's JVM, unless it has one or its state is not bounded.

    Executors in other JVMs make their own, in 64 pieces.
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
    """How many bits number the pieces: the fewer they are, the more tasks wait for each other."""
    return min(max(megabytes // _PIECE, 1).bit_length() - 1, _MOST)


def _field(manager: Any, name: str) -> Any:
    field = manager.getDeclaredField(name)
    field.setAccessible(True)
    return field
