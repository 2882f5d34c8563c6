"""Watches the executors of a cluster: reports when none registers, with the reason of the last failure.

Spark waits without limit for an executor. A standalone master reports failed executors to Spark's log only; that part
of the log is written to a file of its own (`log4j2.properties`).
"""

from __future__ import annotations

import re
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

PATIENCE_SECONDS = 20.0

LOG_PROPERTY = "millpond.cluster.log"
"""The system property that names the file in which Spark's client of a standalone master writes."""

_FAILED = re.compile(r"Executor updated: (\S+) is now (?:FAILED|EXITED|LOST)(?: \((.*)\))?")


def last_failure(log: Path | None) -> str | None:
    """The reason of the newest failure of an executor, as far as it was reported to the driver.

    >>> last_failure(None)
    """
    if log is None or not log.is_file():
        return None
    found = _FAILED.findall(log.read_text(errors="replace"))
    return None if not found else f"{len(found)} have failed; {found[-1][0]}: {found[-1][1] or 'no reason given'}"


def silence(master: str, seconds: float, failure: str | None) -> str:
    """The line that is printed when no executor registers.

    >>> silence("spark://a:7077", 20, None)[:66]
    '[MP-SPARK] No executor has registered with spark://a:7077 for 20 s'
    """
    output = {
        "k8s": "`kubectl logs` prints an executor's own output.",
        "yarn": "`yarn logs` prints an executor's own output.",
    }.get(master.partition("://")[0], "An executor's own output is on its host, below the worker's work folder.")
    reason = f" The last failure: {failure}." if failure else " Does the cluster have free cores and memory?"
    return (
        f"[MP-SPARK] No executor has registered with {master} for {seconds:.0f} s.{reason} {output}"
        " Executors need Java 17 or 21, and Python with the same packages as here."
    )


def watch_executors(spark: SparkSession, log: Path | None) -> threading.Thread:
    """Print one line if no executor registers within `PATIENCE_SECONDS`; returns the thread that waits for it."""
    context = spark.sparkContext
    arguments = _registered_in(spark), str(context.master), log, PATIENCE_SECONDS
    waiting = threading.Thread(target=_wait, args=arguments, name="executors", daemon=True)
    waiting.start()
    return waiting


def _registered_in(spark: SparkSession) -> Callable[[], bool]:
    jvm = spark.sparkContext._jsc.sc()
    return lambda: bool(jvm.getExecutorMemoryStatus().size() > 1)  # the driver is one of them


def _wait(registered: Callable[[], bool], master: str, log: Path | None, seconds: float) -> None:
    end = time.monotonic() + seconds
    try:
        while time.monotonic() < end:
            if registered():
                return
            time.sleep(0.5)
    except (Py4JError, ConnectionError, OSError):
        return  # the session has ended; the next use of the session reports that
    print(silence(master, seconds, last_failure(log)), file=sys.stderr, flush=True)
