"""Reads the timings that Spark reports about a streaming query."""

from __future__ import annotations

from typing import Any

from pyspark.sql.streaming.query import StreamingQuery


def asking_us(query: StreamingQuery | None) -> int:
    """How long Spark took to request the newest offsets from a query's sources for its last batch, in µs; 0 before
    that.

    PySpark's own `lastProgress` copies every field with one call to Java each; this function needs three calls.
    """
    java: Any = getattr(query, "_jsq", None)
    told = None if java is None else java.lastProgress()
    return 0 if told is None else (told.durationMs().get("latestOffset") or 0) * 1000
