"""The daemon that forks Spark's workers: which zips are left out of the path."""

from __future__ import annotations

import sys
from pathlib import Path

import pyspark

from millpond.spark.driver.worker_daemon import without_zips

HOME = Path(pyspark.__file__).parent
PACKED = [str(HOME / "python" / "lib" / "pyspark.zip"), str(HOME / "jars" / "spark-core_2.13-4.3.0.jar")]


def test_zips_of_the_installed_pyspark_are_left_out() -> None:
    rest = [path for path in sys.path if path]
    assert without_zips(["", *PACKED, *rest]) == ["", *rest]


def test_zips_of_another_spark_stay() -> None:
    other = ["/opt/spark/python/lib/pyspark.zip", "/opt/spark/jars/spark-core_2.13-4.3.1.jar"]
    rest = [path for path in sys.path if path]
    assert without_zips([*other, *rest]) == [*other, *rest]


def test_zips_stay_where_nothing_else_has_pyspark(tmp_path: Path) -> None:
    assert without_zips([str(tmp_path), *PACKED]) == [str(tmp_path), *PACKED]
