"""Lets Spark answer queries of a judge without compiling them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_SETTINGS = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}


@contextmanager
def interpreted(spark: Any) -> Iterator[None]:
    """Within, no plan of the Spark session becomes Java code: of a query that runs once, its compilation costs most."""
    for name, value in _SETTINGS.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name in _SETTINGS:
            spark.conf.unset(name)
