"""Lets the child processes of a test join the Java machine of its Spark session instead of starting their own.

A child that joins costs half a second of a core, one that starts Spark ten. It is still a process of its own: it can be
killed or stopped, and has its own exit status and terminal. Its Java machine and Python workers survive it.
"""

from __future__ import annotations

import sys
from typing import Any


def joining(spark: Any) -> dict[str, str]:
    """Environment variables with which PySpark in one child process finds the Java machine of the session `spark`.

    A gateway of py4j calls back into one Python process only, so each call opens another gateway. The child begins with
    `tests/spark/joined_session.py`, because it must not start a Spark context.
    """
    context = spark._jsc.sc()
    server = spark._jvm.org.apache.spark.api.python.Py4JServer(context.conf())
    server.start()
    return {
        "PYSPARK_GATEWAY_PORT": str(server.getListeningPort()),
        "PYSPARK_GATEWAY_SECRET": server.secret(),
        "PYSPARK_PYTHON": sys.executable,  # otherwise its workers run the `python3` of the PATH
    }
