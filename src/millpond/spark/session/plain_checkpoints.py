"""Installs a checkpoint manager that writes plain files without starting a process per file.

Spark stores three small files per batch. Without Hadoop's native library, which PySpark does not contain, each file
and its checksum get their permissions from a `chmod` process: six processes per batch, as long as a small epoch's
fold. `PlainCheckpoints.java` is Spark's own manager for local files without these permission changes;
`plain_checkpoints.jar` is its compiled form.
"""

from __future__ import annotations

from pathlib import Path

from py4j.protocol import Py4JError, Py4JNetworkError
from pyspark.sql import SparkSession

NAME = "millpond.PlainCheckpoints"

JAR = Path(__file__).with_name("plain_checkpoints.jar")

BY_SPARK = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
"""Spark's own manager, the base class of ours."""


def checkpoint_manager(spark: SparkSession) -> str:
    """The name of the manager's class; it is Spark's own if the driver's class loader accepts no further jars."""
    jvm = spark._jvm
    assert jvm is not None
    loader = jvm.Thread.currentThread().getContextClassLoader()
    try:
        loader.addURL(jvm.java.io.File(str(JAR)).toURI().toURL())  # as `--jars` does; adding a jar twice has no effect
        loader.loadClass(NAME)
    except Py4JNetworkError:
        raise  # the JVM has ended
    except Py4JError:
        return BY_SPARK
    return NAME
