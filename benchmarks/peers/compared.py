"""What all engines read, and whether they answered the same: the input in two forms, and a digest of rows."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

import here  # noqa: F401
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as csv
import pyarrow.parquet as pq
from results import keep
from workload import WINDOWS

COLUMNS = ("customer", "end", "n", "s", "m")
"""Of a query's rows in files: `end` in seconds since 1970 UTC."""


def multiples(count: int) -> list[tuple[int, int]]:
    """Sizes and slides of `count` queries: the canonical eight, then others whose size is a multiple of their slide,
    since Flink's windows must be.
    """
    more = ((10 * size, 10 * slide) for size in range(1, 61) for slide in (1, 2, 3, 5, 6) if size % slide == 0)
    return list(dict.fromkeys([*WINDOWS, *more]))[:count]


def dealt(source: Path, parts: int = 2) -> Path:
    """The same events in `parts` files that are each in order of time, for engines that give no order to files.

    A customer's events are all in one file (by the last digit of the name), as in a topic that has the customer as its
    key; made once, beside `source`.
    """
    folder = source.with_name(f"{source.name}-dealt-{parts}")
    if not (folder / "_DONE").exists():
        folder.mkdir(exist_ok=True)
        table = pa.concat_tables(pq.read_table(path) for path in sorted(source.glob("*.parquet")))
        digit = pc.cast(pc.utf8_slice_codeunits(table["customer"], -1), pa.int64()).to_numpy()
        for part in range(parts):
            rows = table.filter(pa.array(digit % parts == part))
            pq.write_table(rows, folder / f"part-{part}.parquet", row_group_size=1 << 17)
        (folder / "_DONE").touch()
    return folder


def newest_second(source: Path) -> int:
    """The newest event time, in whole seconds: windows that end at or before it are closed for every engine."""
    newest = max(pc.max(pq.read_table(path, columns=["ts"])["ts"]).value for path in source.glob("*.parquet"))
    return int(newest) // 1_000_000


def digest(folder: Path, queries: int, until: int) -> tuple[int, str]:
    """Number and SHA-256 of the sorted rows that `queries` queries wrote, of windows that end at or before `until`.

    Sums are taken to the cent: those of other engines depend on order in their last bits.
    """
    hashed, total = hashlib.sha256(), 0
    for number in range(queries):
        rows = _rows(folder / str(number))
        rows = rows.filter(pc.less_equal(rows["end"], until)).sort_by([("end", "ascending"), ("customer", "ascending")])
        total += rows.num_rows
        hashed.update(f"{number}:{rows.num_rows};".encode())
        hashed.update("\n".join(rows["customer"].to_pylist()).encode())
        cents = pc.cast(pc.round(pc.multiply(rows["s"], 100.0)), pa.int64())
        for column in (rows["end"], rows["n"], cents, rows["m"]):
            hashed.update(column.to_numpy().tobytes())
    return total, hashed.hexdigest()


def _rows(folder: Path) -> pa.Table:
    types = (pa.string(), pa.int64(), pa.int64(), pa.float64(), pa.float64())
    schema = pa.schema(list(zip(COLUMNS, types, strict=True)))
    found = [path for path in sorted(folder.rglob("*")) if path.is_file() and path.stat().st_size and _shown(path)]
    return pa.concat_tables([schema.empty_table(), *(_table(path, schema) for path in found)])


def _shown(path: Path) -> bool:
    """Not a file that an engine has not published, nor a list of its own."""
    return path.name[0] not in "._" and path.parent.name[0] not in "._"


def _table(path: Path, schema: pa.Schema) -> pa.Table:
    if path.suffix == ".parquet":
        return pq.read_table(path).select(COLUMNS).cast(schema)
    options = csv.ConvertOptions(column_types=schema)
    return csv.read_csv(path, csv.ReadOptions(column_names=COLUMNS), convert_options=options)


def leave(name: str, figures: Mapping[str, float], results: Path | None) -> None:
    """Print the figures as the last line, and keep them in a folder if one is named; small runs keep nothing."""
    if results is None:
        print(json.dumps(figures))
    else:
        keep(name, figures, results)
