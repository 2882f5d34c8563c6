"""Installs a checkpoint manager that writes plain files without starting a process per file.

Spark stores three small files per batch. Without Hadoop's native library, which PySpark does not contain, each file
and its checksum get their permissions from a `chmod` process: six processes per batch, as long as a small epoch's
fold. `PlainCheckpoints.java` is Spark's own manager for local files without these permission changes.
"""

from __future__ import annotations

from pyspark.sql import SparkSession

from millpond.spark.driver_classes.loading import load_class

NAME = "millpond.PlainCheckpoints"

BY_SPARK = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
"""Spark's own manager, the base class of ours."""


def checkpoint_manager(spark: SparkSession) -> str:
    """The name of the manager's class; it is Spark's own if the driver's class loader accepts no further jars."""
    return NAME if load_class(spark, NAME) else BY_SPARK
