"""A front end that knows one stream, `tx`, without files."""

from __future__ import annotations

from pathlib import Path

from millpond.model.endpoints import Source
from millpond.model.stream import Field, Stream
from millpond.spark.frontend.frontend import FrontEnd
from millpond.spark.reading.read_frame import EventTime
from millpond.spark.session.session import Session


def front_end(spark: Session, schema: str, folder: Path) -> FrontEnd:
    """The front end; `schema` has SQL's columns, of which `ts` is the event time, with a delay of ten seconds."""
    front = FrontEnd(spark)
    columns = [Field(one.name, one.dataType.simpleString()) for one in spark.createDataFrame([], schema).schema.fields]
    source = Source("parquet", (("path", str(folder)),))
    front.declare(Stream("tx", tuple(columns), source), EventTime("ts", "10 seconds"))
    return front
