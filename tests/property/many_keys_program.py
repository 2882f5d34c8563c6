"""One pond with very many keys, by itself in a process whose memory can be measured: prints what it saw as JSON.

    python many_keys_program.py FOLDER KEYS

Every key has one event in the first half of a window, every 999th another in the second half.
"""

from __future__ import annotations

import json
import resource
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kit.simulator.changing_pond import ChangingPond
from millpond.followers.record_rows import RowsReader
from millpond.followers.sinks.in_process import MemorySink
from millpond.log.records import EpochRecord, Receipt, Section, decode
from millpond.model.aggregates import Aggregate
from millpond.model.endpoints import Sink
from millpond.model.expressions import Column, call, literal
from millpond.model.query import Named, Query
from millpond.model.stream import Field, Stream
from millpond.model.windows import Sliding

SECOND = 1_000_000
EPOCHS = 20
EVERY = 999
"""One key in this many occurs twice."""

STREAM = Stream("tx", (Field("k", "string"), Field("g", "int"), Field("amount", "double"), Field("ts", "timestamp")))
COUNT = Aggregate("count", None, None, "bigint")
TOTAL = Aggregate("sum", Column("amount", "double"), None, "double")


def query(name: str, **more: Any) -> Query:
    keys = (Column("k", "string"), Column("g", "int"))
    output = (Named("k", Column("key:0", "string")), Named("g", Column("key:1", "int")),
              Named("n", Column("agg:0", "bigint")), Named("total", Column("agg:1", "double")))  # fmt: skip
    window = Sliding(3600 * SECOND, 3600 * SECOND)
    return Query(name, "tx", "ts", 0, window, keys, (COUNT, TOTAL), output, **more)


TWICE = call("gt", (Column("agg:0", "bigint"), literal(1, "bigint")), "boolean")
QUERIES = (query("all", sink=Sink("noop")), query("twice", having=TWICE, sink=Sink("memory")))


def events(numbers: np.ndarray[Any, np.dtype[np.int64]], second: int) -> pa.Table:
    """Key i is ("Kundin-<i>", i mod 7), the latter NULL for every fifth; its amount is i / 100."""
    n = len(numbers)
    texts = pc.binary_join_element_wise(pa.scalar("Kundin-"), pa.array(numbers).cast(pa.string()), "")
    small = pa.array((numbers % 7).astype(np.int32), mask=numbers % 5 == 0)
    times = pa.array(np.full(n, second * SECOND)).view(pa.timestamp("us", "UTC"))
    return pa.table({"k": texts, "g": small, "amount": pa.array(numbers / 100), "ts": times})


def _section(folder: Path, receipt: Receipt, section: Section) -> pa.Buffer:
    data = (folder / (receipt.file or "")).read_bytes()
    return pa.py_buffer(data).slice(section.offset, section.size)


def peak_bytes() -> int:
    """The largest resident memory of this process until now."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def main(folder: Path, keys: int) -> dict[str, Any]:
    """Run the pond and print its results."""
    before = peak_bytes()
    sink = MemorySink("twice", RowsReader(lambda _n, receipt, section: _section(folder, receipt, section)))
    pond = ChangingPond(folder, [STREAM], QUERIES, followers=[sink])
    order = np.random.default_rng(5).permutation(keys)
    for i, part in enumerate(np.array_split(order, EPOCHS)):
        pond.epoch({"tx": [events(part, i)]})
    pond.epoch({"tx": [events(np.arange(0, keys, EVERY), 1800)]})
    live = [section for section in pond.manifest.sections.values() if section.kind == "keys"]
    pond.drain()
    last = decode(pond.log.read(pond.manifest.n) or b"").record
    assert isinstance(last, EpochRecord)
    return {
        "rows": {name: last.counts[name]["rows"] for name in ("all", "twice")},
        "key_rows": sum(found.rows for found in live),
        "key_sections": len(live),
        "table_bytes": sum(path.stat().st_size for path in (folder / "cache").rglob("*.npy")),
        "twice": sink.table().sort_by("total").to_pylist(),
        "peak_bytes": peak_bytes() - before,
    }


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]), int(sys.argv[2]))))
