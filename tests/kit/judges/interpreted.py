"""Lets Spark answer queries of a judge without compiling them.

No plan becomes Java code: of a query that runs once, its compilation costs most.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa

_SETTINGS = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}


def interpreted_table(frame: Any) -> pa.Table:
    """The rows of a DataFrame as an Arrow table."""
    with interpreted(frame.sparkSession):
        return frame.toArrow()


def interpreted_rows(frame: Any) -> list[Any]:
    """The rows of a DataFrame as Spark's rows."""
    with interpreted(frame.sparkSession):
        return list(frame.collect())


@contextmanager
def interpreted(spark: Any) -> Iterator[None]:
    """Within, no query of the session `spark` is compiled, nor of ponds that it opens."""
    for name, value in _SETTINGS.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name in _SETTINGS:
            spark.conf.unset(name)
