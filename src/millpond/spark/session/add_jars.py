"""Adds jars that PySpark does not contain to a session when they are first needed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from millpond.errors import SetupError
from millpond.spark.session.jars import avro


def provide(spark: SparkSession, jars: Sequence[Path]) -> None:
    """Add jars to a session unless it already has them.

    Raises:
        SetupError: a jar cannot be added to Spark.
    """
    context, jvm = spark.sparkContext._jsc.sc(), spark._jvm
    assert jvm is not None
    known = str(context.listJars())
    loader = jvm.Thread.currentThread().getContextClassLoader()
    accepts_jars = str(loader.getClass().getName()).endswith(".MutableURLClassLoader")
    for path in jars:
        if f"/{path.name}" in known:
            continue
        try:
            if accepts_jars:
                # Not only in sessions, because the failures of executors are read by a thread that belongs to no
                # session.
                loader.addURL(jvm.java.net.URI(path.absolute().as_uri()).toURL())
                context.addJar(str(path.absolute()))
            else:
                spark._jsparkSession.sessionState().resourceLoader().addJar(str(path))
        except (PySparkException, Py4JError) as error:
            raise SetupError(f"{path} cannot be given to Spark: {error}.", "Is it a jar?") from error


def provide_avro(spark: SparkSession) -> None:
    """Add Spark's decoder of Avro to a session.

    Raises:
        SetupError: its jar cannot be fetched or added.
    """
    provide(spark, avro())
