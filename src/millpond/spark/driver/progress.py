"""Reads the timings that Spark reports about a streaming query."""

from __future__ import annotations

from typing import Any

from pyspark.sql.streaming.query import StreamingQuery


def asking_us(query: StreamingQuery | None) -> int:
    """How long Spark has asked the sources of a query for their newest offsets, for its last batch; 0: there was none.

    PySpark's own `lastProgress` brings every field over, each by a call; here are three.
    """
    java: Any = getattr(query, "_jsq", None)
    told = None if java is None else java.lastProgress()
    return 0 if told is None else (told.durationMs().get("latestOffset") or 0) * 1000
