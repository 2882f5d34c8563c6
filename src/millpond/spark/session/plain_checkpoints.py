"""Installs a checkpoint manager that writes plain files without starting a process per file.

Spark stores three small files per batch. Without Hadoop's native library, which PySpark does not contain, each file
and its checksum get their permissions from a `chmod` process: six processes per batch, as long as a small epoch's
fold. `PlainCheckpoints.java` is Spark's own manager for local files without that, and `plain_checkpoints.jar` is its
compiled form.
"""

from __future__ import annotations

from pathlib import Path

from py4j.protocol import Py4JError, Py4JNetworkError
from pyspark.sql import SparkSession

NAME = "millpond.PlainCheckpoints"

JAR = Path(__file__).with_name("plain_checkpoints.jar")

BY_SPARK = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
"""Spark's own manager, of which ours is one."""


def checkpoint_manager(spark: SparkSession) -> str:
    """The name of the class; Spark's own where the class loader of its driver takes no more jars."""
    jvm = spark._jvm
    assert jvm is not None
    loader = jvm.Thread.currentThread().getContextClassLoader()
    try:
        loader.addURL(jvm.java.io.File(str(JAR)).toURI().toURL())  # as `--jars` does; one that it has is no news
        loader.loadClass(NAME)
    except Py4JNetworkError:
        raise  # there is no JVM
    except Py4JError:
        return BY_SPARK
    return NAME
