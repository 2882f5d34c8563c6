"""Which engines are compared, in which version, and how each is set: all of it is here.

Every engine has two cores, a heap of four gigabytes where it has one, the same files, and durable state: it survives
a crash with what it had at most ten seconds before. Settings follow the engines' own documentation of performance;
what is not named here is as the engine comes.
"""

from __future__ import annotations

CORES = 2
HEAP = "4g"
CHECKPOINT_SECONDS = 10

EPOCH_FILES, BATCH_FILES = 4, 1
"""Files of half a million events in an epoch of a pond and in a batch of plain Spark, both of which are durable: the
more events, the more throughput, and these are what each takes in `CHECKPOINT_SECONDS` (a pond with a hundred queries
in eight of them; plain Spark with one query in five).
"""

PACKAGES = {
    "flink": ("apache-flink==2.3.0",),
    "bytewax": ("bytewax==0.21.1", "pyarrow==21.0.0"),
}
"""What pip installs into the environment of each engine; plain Spark is the PySpark that Millpond runs on."""

HADOOP = ("hadoop-client-api", "hadoop-client-runtime")
"""Jars of PySpark that Flink's Parquet format needs beside it, since it reads through Hadoop's classes."""

FLINK = {
    "parallelism.default": str(CORES),
    "taskmanager.numberOfTaskSlots": str(CORES),
    # a mini cluster has 128 MB of managed memory otherwise; RocksDB lives there ("State Backends")
    "taskmanager.memory.managed.size": "1g",
    # many statements are many exchanges; the default of a mini cluster is 64 MB
    "taskmanager.memory.network.min": "512m",
    "taskmanager.memory.network.max": "512m",
    "execution.checkpointing.interval": f"{CHECKPOINT_SECONDS}s",
    # "Performance Tuning" of Flink SQL: mini-batches, local-global aggregation (windows have both in any case)
    "table.exec.mini-batch.enabled": "true",
    "table.exec.mini-batch.allow-latency": "1s",
    "table.exec.mini-batch.size": "50000",
    "table.optimizer.agg-phase-strategy": "TWO_PHASE",
    # one scan for all statements of a set
    "table.optimizer.reuse-sub-plan-enabled": "true",
    "table.optimizer.reuse-source-enabled": "true",
    # "Execution Configuration": no copies between chained operators
    "pipeline.object-reuse": "true",
    "table.local-time-zone": "UTC",
}
FLINK_STATE = {
    "heap": {"state.backend.type": "hashmap"},
    # "Tuning Checkpoints and Large State": upload what is new only
    "rocksdb": {"state.backend.type": "rocksdb", "execution.checkpointing.incremental": "true"},
}

SPARK = {
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.enabled": "false",
    # "Structured Streaming": as many state partitions as cores, not the 200 of a cluster
    "spark.sql.shuffle.partitions": str(CORES),
    "spark.sql.streaming.metricsEnabled": "false",
}
_PROVIDERS = "org.apache.spark.sql.execution.streaming.state."
SPARK_STATE = {
    "memory": {"spark.sql.streaming.stateStore.providerClass": f"{_PROVIDERS}HDFSBackedStateStoreProvider"},
    "rocksdb": {
        "spark.sql.streaming.stateStore.providerClass": f"{_PROVIDERS}RocksDBStateStoreProvider",
        # "Performance-aspect considerations" of the RocksDB store: commit a change log, not a snapshot
        "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    },
}
