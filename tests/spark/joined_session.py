"""A Spark session in the Java machine that the environment names (`kit.programs.shared_java`), for child processes.

Run as a program, it is the command `millpond` in such a session.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession


def joined_session(settings: Mapping[str, str] | None = None) -> SparkSession:
    """A new session with these settings in the running context; it becomes the one that `spark_session` returns."""
    SparkContext._ensure_initialized()
    jvm = SparkContext._jvm
    assert jvm is not None
    running = jvm.org.apache.spark.SparkContext.getOrCreate()
    context = SparkContext(
        conf=SparkConf(_jconf=running.conf()), jsc=jvm.org.apache.spark.api.java.JavaSparkContext(running)
    )
    session = SparkSession(context).newSession()
    for name, value in (settings or {}).items():
        session.conf.set(name, value)
    jvm.SparkSession.setActiveSession(session._jsparkSession)
    SparkSession._activeSession = SparkSession._instantiatedSession = session
    return session


if __name__ == "__main__":
    from millpond.cli import main

    joined_session()
    main()
