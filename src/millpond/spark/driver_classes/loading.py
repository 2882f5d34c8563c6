"""Loads Millpond's few classes in Java into the JVM of the driver; executors need none of them.

`driver_classes.jar` is the compiled form of the sources in this folder.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JError, Py4JNetworkError
from pyspark.sql import SparkSession

JAR = Path(__file__).with_name("driver_classes.jar")

SOURCES = (
    "ArrowRows", "CatalystTrees", "EpochSink", "PlainCheckpoints", "PostponedFiles", "PreferredHosts",
    "TableBroadcasts",
)  # fmt: skip
"""The classes in the jar, by the name of their source."""


def load_class(spark: SparkSession, name: str) -> bool:
    """Load a class, and return whether it can be used: not where the class loader accepts no further jars."""
    return _load(spark._jvm, name)


@lru_cache(32)
def _load(jvm: Any, name: str) -> bool:
    loader = jvm.Thread.currentThread().getContextClassLoader()
    try:
        loader.addURL(jvm.java.io.File(str(JAR)).toURI().toURL())  # as `--jars` does; adding a jar twice has no effect
        loader.loadClass(name)
    except Py4JNetworkError:
        raise  # the JVM has ended
    except Py4JError:
        return False
    return True
