"""Lets Spark interpret its plans: those of a judge, and those of Java machines that live for a few epochs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

INTERPRETING = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}
COMPILING = {"spark.sql.codegen.wholeStage": "true", "spark.sql.codegen.factoryMode": "FALLBACK"}
"""Spark's defaults."""


@contextmanager
def interpreted(spark: Any) -> Iterator[None]:
    """Within, no plan of the Spark session becomes Java code: of a query that runs once, its compilation costs most."""
    for name, value in INTERPRETING.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name in INTERPRETING:
            spark.conf.unset(name)
