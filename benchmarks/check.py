"""What the pond emits is what Spark's own batch query answers for the closed windows; checked before timing."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from engines import MakeQuery, stream_of
from pyspark.sql import SparkSession
from workload import SCHEMA

from millpond import Pond


def check_results(spark: SparkSession, source: Path, folder: Path, queries: Sequence[MakeQuery]) -> int:
    """Rows compared, all equal (sums to the cent: Spark's own depend on order in the last bits).

    Raises:
        AssertionError: they differ.
    """
    batch = spark.read.schema(SCHEMA).parquet(str(source))
    newest = batch.agg({"ts": "max"}).first()[0]
    total = 0
    with Pond(spark, folder) as pond:
        for number, make in enumerate(queries):
            pond.add(f"q{number}", make(stream_of(spark, source)))
        pond.run()
        for number, make in enumerate(queries):
            closed = make(batch).where(f"window.end <= timestamp'{newest}'")
            ours, theirs = _canonical(pond.table(f"q{number}")), _canonical(closed.toArrow())
            assert ours.equals(theirs), f"query {number}: {ours.num_rows} rows against {theirs.num_rows}"
            total += ours.num_rows
    return total


def _canonical(table: pa.Table) -> pa.Table:
    """Window end, key columns, count, sum in cents and maximum, sorted by window and key."""
    keys = [name for name in table.column_names if name not in ("window", "n", "s", "m")]
    end = pc.struct_field(table.column("window"), "end").cast(pa.timestamp("us", "UTC")).cast(pa.int64())
    columns = {
        "end": end,
        **{key: table.column(key).cast(pa.string()) for key in keys},
        "n": table.column("n").cast(pa.int64()),
        "cents": pc.round(pc.multiply(table.column("s"), 100.0)).cast(pa.int64()),
        "m": table.column("m").cast(pa.float64()),
    }
    plain = pa.table({name: pa.chunked_array(column).combine_chunks() for name, column in columns.items()})
    return plain.sort_by([(name, "ascending") for name in ("end", *keys)])
