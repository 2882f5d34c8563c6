"""Changes how many records the batches of a running streaming query read.

Spark requests the limit of a source once, when a query starts, and keeps it. A changed option would need another query,
which costs about a second. So the limit that Spark keeps is replaced: it is read anew for each batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery


class ReadLimits:
    """The limits that the running query has."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._set: tuple[StreamingQuery | None, Mapping[str, int]] = None, {}

    def set(self, query: StreamingQuery | None, limits: Mapping[str, int]) -> None:
        """Set the largest number of records of each stream in the coming batches of a query, by the stream's name.

        To be called between two batches; without calls to the JVM if the query has these limits.
        """
        if query is None or not limits or self._set == (query, limits):
            return
        jvm: Any = self._spark._jvm
        java: Any = getattr(query, "_jsq")  # noqa: B009
        execution = java.streamingQuery()
        sources, kept = execution.sourceIdMap(), execution.uniqueSources()
        for name, most in limits.items():
            source = sources.get(name)
            if source.isDefined():  # no query may need this stream
                limit = jvm.org.apache.spark.sql.connector.read.streaming.ReadLimit.maxRows(most)
                kept = kept.updated(source.get(), limit)
        getattr(execution, "uniqueSources_$eq")(kept)
        self._set = query, dict(limits)
