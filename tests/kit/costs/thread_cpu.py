"""Measures the CPU time of an analysis: unlike elapsed time, it hardly grows while other programs use the cores."""

from __future__ import annotations

import time
from typing import Any


class ThreadCpu:
    """The CPU seconds of this Python thread and of the Java thread that executes its calls, since the object was made.

    PySpark pins each Python thread to one Java thread, so work of other threads and sessions does not count.
    """

    def __init__(self, spark: Any) -> None:
        self._java = spark._jvm.java.lang.management.ManagementFactory.getThreadMXBean()
        self._began = self._now()

    def _now(self) -> float:
        return time.thread_time() + float(self._java.getCurrentThreadCpuTime()) / 1e9

    def seconds(self) -> float:
        """The CPU seconds so far."""
        return self._now() - self._began
