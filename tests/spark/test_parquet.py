"""Parquet files that gather tasks read into Arrow: the same values as Spark's reader, or an obstacle."""

from __future__ import annotations

import datetime as dt
import math
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from decimal import Context, Decimal
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from kit.inputs.event_files import not_local
from millpond import Pond
from millpond.kernels.columns import arrow_type
from millpond.reconfigure.probation import Probation
from millpond.runtime.inputs import parquet_files
from millpond.runtime.inputs.file_parts import FileColumn, NotEqual
from millpond.runtime.inputs.parquet_files import read_columns
from millpond.spark.driver import driver
from millpond.spark.reading.arrow_files import MOST_DELIVERED, NO_MEMORY, _Contents
from millpond.spark.reading.file_source import list_in_driver
from millpond.spark.session.session import reading_session
from millpond.state.keys.keys import plain

DECLARED = {
    "o": "boolean", "i8": "tinyint", "i16": "smallint", "i32": "int", "i64": "bigint", "f": "float", "d": "double",
    "s": "string", "y": "binary", "day": "date", "t": "timestamp", "n": "timestamp_ntz", "m": "decimal(9,2)",
    "wide": "decimal(30,5)", "größe": "string",
}  # fmt: skip
COLUMNS = tuple(FileColumn(name, kind, place) for place, (name, kind) in enumerate(DECLARED.items(), 1))

_SINCE, _UNTIL = dt.datetime(1400, 1, 1), dt.datetime(2500, 1, 1)


def _time(rng: Random) -> dt.datetime:
    return _SINCE + dt.timedelta(microseconds=rng.randrange((_UNTIL - _SINCE) // dt.timedelta(microseconds=1)))


def _near_time(rng: Random) -> dt.datetime:
    return dt.datetime(1970, 1, 1) + dt.timedelta(microseconds=rng.randrange(-(1 << 52), 1 << 52))


def _bounded(bits: int, low: int | None = None) -> Callable[[Random], int]:
    least = -(1 << bits) if low is None else low
    return lambda rng: rng.choice([least, (1 << bits) - 1, 0, rng.randrange(max(least, -100), 100)])


def _float(rng: Random) -> float:
    return rng.choice([0.0, -0.0, math.nan, math.inf, -math.inf, 5e-324, 0.1, rng.uniform(-1e30, 1e30)])


def _digits(digits: int, places: int) -> Callable[[Random], Decimal]:
    most = 10**digits - 1
    return lambda rng: Decimal(rng.choice([most, -most, 0, rng.randint(-most, most)])).scaleb(-places, Context(40))


def _text(rng: Random) -> str:
    return rng.choice(["", "a", "ß", "zażółć", "\0", "x" * 40])


_VALUES: list[tuple[pa.DataType, Callable[[Random], Any]]] = [
    (pa.bool_(), lambda rng: rng.random() < 0.5),
    (pa.int8(), _bounded(7)),
    (pa.int16(), _bounded(15)),
    (pa.int32(), lambda rng: rng.randrange(-100, 100)),
    (pa.int64(), _bounded(63)),
    (pa.int32(), _bounded(31)),
    (pa.uint8(), _bounded(8, 0)),
    (pa.uint32(), _bounded(32, 0)),
    (pa.uint64(), _bounded(64, 0)),
    (pa.float32(), _float),
    (pa.float64(), _float),
    (pa.string(), _text),
    (pa.large_string(), _text),
    (pa.dictionary(pa.int32(), pa.string()), _text),
    (pa.binary(), lambda rng: rng.randbytes(rng.randrange(4))),
    (pa.binary(3), lambda rng: rng.randbytes(3)),
    (pa.date32(), lambda rng: _time(rng).date()),
    (pa.date64(), lambda rng: _time(rng).date()),
    (pa.timestamp("us", "UTC"), _time),
    (pa.timestamp("ms", "Europe/Berlin"), lambda rng: _time(rng).replace(microsecond=0)),
    (pa.timestamp("ns", "UTC"), _near_time),
    (pa.timestamp("us"), _time),
    (pa.timestamp("s"), lambda rng: _time(rng).replace(microsecond=0)),
    (pa.time64("us"), lambda rng: _time(rng).time()),
    (pa.duration("us"), lambda rng: _time(rng) - _SINCE),
    (pa.decimal128(9, 2), _digits(9, 2)),
    (pa.decimal128(5, 2), _digits(5, 2)),
    (pa.decimal128(30, 5), _digits(30, 5)),
    (pa.decimal256(9, 2), _digits(9, 2)),
    (pa.decimal128(12, 4), _digits(12, 4)),
    (pa.list_(pa.int32()), lambda rng: [1, 2][: rng.randrange(3)]),
    (pa.struct([("o", pa.bool_())]), lambda rng: {"o": True}),
    (pa.null(), lambda rng: None),
    (pa.float16(), _float),
]
_FITTING = {
    "o": [0], "i8": [1, 3], "i16": [1, 2, 3], "i32": [1, 2, 5], "i64": [1, 5, 4], "f": [9], "d": [9, 10],
    "s": [11, 12, 13], "y": [14], "day": [16, 17], "t": [18, 19], "n": [21, 22], "m": [25, 26, 28], "größe": [11],
    "wide": [27],
}  # fmt: skip
"""For each column, positions in `_VALUES` that are likely to be read in Arrow; the others are obstacles, or rare."""


def _write(path: Path, rng: Random) -> None:
    """Write a random file.

    Raises:
        ArrowException, OSError: the format cannot store it.
    """
    rows = rng.randrange(7)
    names, arrays = [], []
    for name in rng.sample([*DECLARED], rng.randrange(5)):
        kind, value = _VALUES[rng.choice(range(len(_VALUES)) if rng.random() < 0.1 else _FITTING[name])]
        lacking = rng.choice([0, 0.3, 1])
        names.append(rng.choice([name, name, name.upper()]))
        arrays.append(_array([None if rng.random() < lacking else value(rng) for _ in range(rows)], kind))
    if rng.random() < 0.1 and names:
        names, arrays = [*names, names[0].swapcase()], [*arrays, arrays[0]]
    names, arrays = (
        [*names, "more", "o.o"],
        [*arrays, _array([7] * rows, pa.int64()), _array([True] * rows, pa.bool_())],
    )
    schema = pa.schema([
        pa.field(name, one.type, one.null_count > 0 or one.type == pa.null() or rng.random() < 0.5)
        for name, one in zip(names, arrays, strict=True)
    ])  # fmt: skip
    options: dict[str, Any] = {
        "compression": rng.choice(["none", "snappy", "gzip", "zstd", "lz4", "brotli"]),
        "use_dictionary": rng.random() < 0.5, "data_page_version": rng.choice(["1.0", "2.0"]),
        "row_group_size": rng.randrange(1, 8), "version": rng.choice(["1.0", "2.4", "2.6"]),
        "store_schema": rng.random() < 0.5, "write_page_checksum": rng.random() < 0.5,
        "store_decimal_as_integer": rng.random() < 0.5, "write_statistics": rng.random() < 0.5,
    }  # fmt: skip
    how = rng.randrange(4)
    if how == 0:
        options["use_deprecated_int96_timestamps"] = True
    elif how == 1:
        options |= {"coerce_timestamps": rng.choice(["us", "ms"]), "allow_truncated_timestamps": True}
    if not options["use_dictionary"] and len({*names}) == len(names):
        encodings = {pa.int32(): _WHOLE, pa.int64(): _WHOLE, pa.string(): _TEXTS, pa.binary(): _TEXTS}
        options["column_encoding"] = {
            field.name: rng.choice(encodings[field.type]) for field in schema if field.type in encodings
        }
    pq.write_table(pa.Table.from_arrays(arrays, schema=schema), path, **options)


_WHOLE = ["PLAIN", "DELTA_BINARY_PACKED", "BYTE_STREAM_SPLIT"]
_TEXTS = ["PLAIN", "DELTA_BYTE_ARRAY", "DELTA_LENGTH_BYTE_ARRAY"]


def _array(values: Sequence[object], kind: pa.DataType) -> pa.Array:
    if kind == pa.decimal256(9, 2):
        return pa.array(values, pa.decimal128(9, 2)).cast(kind)
    if isinstance(kind, pa.DictionaryType):
        return pa.array(values, pa.string()).dictionary_encode()
    return pa.array(values, kind)


@pytest.fixture(scope="module")
def reading(spark: SparkSession) -> Iterator[SparkSession]:
    session = reading_session(spark)
    list_in_driver(session, [])  # as a pond does whose files are local
    yield session


def _ours(path: Path, shares: int = 1) -> pa.Table | None:
    """What the reader gives for all shares of a file, one after another; None for an obstacle.

    Text columns that may keep their dictionary have the values that they have without one.
    """
    plainly = _read(path, shares)
    with patch.object(parquet_files, "_ROWS_PER_BYTE", 0):
        encoded = _read(path, shares)
    assert (None if plainly is None else _bits(plainly)) == (None if encoded is None else _bits(encoded))
    return plainly


def _read(path: Path, shares: int) -> pa.Table | None:
    kinds = [arrow_type(kind) for kind in DECLARED.values()]
    schema = pa.schema(list(zip(DECLARED, kinds, strict=True)))
    parts = []
    try:
        for share in range(shares):
            for columns, rows in read_columns(str(path), COLUMNS, share, shares):
                assert all(len(column) == rows for column in columns)
                parts.append(pa.RecordBatch.from_arrays([plain(column) for column in columns], schema=schema))
    except NotEqual:
        return None
    return pa.Table.from_batches(parts, schema)


def _of_spark(spark: SparkSession, paths: Sequence[Path]) -> dict[str, pa.Table]:
    """What Spark reads, by the names of the files."""
    names = [f"`{name}`" for name in DECLARED]
    schema = ", ".join(f"`{name}` {kind}" for name, kind in DECLARED.items())
    frame = spark.read.schema(schema).parquet(*map(str, paths))
    table = frame.select(*names, F.col("_metadata.file_name").alias("file")).toArrow()
    return {path.name: table.filter(pa.compute.equal(table["file"], path.name)).drop(["file"]) for path in paths}


def _bits(table: pa.Table) -> dict[str, list[object]]:
    """The values, with every NaN and zero as it is."""
    bits = {pa.float32(): pa.int32(), pa.float64(): pa.int64()}
    found = {}
    for name in table.column_names:
        column = table[name].combine_chunks()
        found[name] = column.view(bits.get(column.type, column.type)).to_pylist()
    return found


QUERIES = """
CREATE TABLE tx (c STRING, ts TIMESTAMP, amount DECIMAL(9,2), lacking INT, day DATE, shop STRING) USING parquet
  OPTIONS (path '{base}/in', maxFilesPerTrigger '1');
CREATE STREAMING TABLE counted USING json TBLPROPERTIES ('path' = '{out}') AS
  SELECT c, day, count(*) AS n, sum(amount) AS a, count(lacking) AS l FROM STREAM tx
  WATERMARK ts DELAY OF INTERVAL 0 SECONDS GROUP BY c, day, window(ts, '1 minute');
CREATE STREAMING TABLE every USING json TBLPROPERTIES ('path' = '{out}-every') AS
  SELECT c, ts, amount, lacking, day, shop FROM STREAM tx WHERE amount > 2;
"""


def _input(folder: Path) -> None:
    """Three files, one an epoch; a mark in the second makes it an obstacle, and means nothing for such new times.

    They are in folders of partitions. Spark ignores the column `shop` of the files.
    """
    marks = {"org.apache.spark.version": "2.4.8"}
    for number in range(3):
        times = [1_700_000_000_000_000 + 30_000_000 * number + i for i in range(4)]
        amounts = [Decimal(number + i) for i in range(4)]
        table = pa.table({
            "C": ["a", "b", None, "b"], "ts": pa.array(times, pa.timestamp("us", "UTC")),
            "amount": pa.array(amounts, pa.decimal128(9, 2)), "shop": ["ignored"] * 4,
        })  # fmt: skip
        path = folder / "in" / f"day=2026-01-{10 + number}" / f"shop=0{number}" / f"{number} ü%.parquet"
        path.parent.mkdir(parents=True)
        pq.write_table(table.replace_schema_metadata(marks if number == 1 else {}), path, row_group_size=2)
        os.utime(path, (1_700_000_000 + number,) * 2)


def _rows(*folders: Path) -> list[str]:
    return sorted(line for one in folders for path in one.glob("*.json") for line in path.read_text().splitlines())


def _run(spark: SparkSession, folder: Path, name: str, base: str = "") -> tuple[list[str], dict[str, str]]:
    """The rows of both queries, and the notes of the status about readers; `base`: another address of the folder."""
    out = folder / f"{name}-out"
    with Pond(spark, folder / name) as pond:
        pond.load(QUERIES.format(base=base or folder, out=out))
        pond.run(once=True, drain=True)
        notes = {one.name: str(one.note) for one in pond.status() if one.name.startswith("read:")}
    return _rows(out, out.with_name(f"{out.name}-every")), notes


def test_a_pond_reads_with_arrow_and_lets_spark_read_what_is_an_obstacle(spark: SparkSession, tmp_path: Path) -> None:
    _input(tmp_path)
    rows, notes = _run(spark, tmp_path, "arrow")
    assert len(rows) == 15
    note = notes["read:tx"]
    assert note.startswith("read with Arrow in 1 of 3 epochs; by Spark in the last: ")
    assert "1 ü%.parquet stores ts in the calendar of an old version of Spark" in note
    delivered, notes = _run(spark, tmp_path, "viewfs", not_local(spark, tmp_path))
    assert delivered == rows and notes["read:tx"].startswith("read with Arrow in 1 of 3 epochs; ")
    other = "spark.sql.parquet.fieldId.read.enabled"
    spark.conf.set(other, "true")
    try:
        assert _run(spark, tmp_path, "spark") == (rows, {}), "Spark reads all if it may read otherwise"
    finally:
        spark.conf.unset(other)


def test_spark_reads_files_that_are_not_local_after_memory_ran_out(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _input(tmp_path)
    base, packets, held = not_local(spark, tmp_path), driver.packets_of, list[bool]()
    rows, _ = _run(spark, tmp_path, "spark")

    def without_memory(*given: Any) -> Any:
        held.append(bool(given[3]))
        if given[3]:
            raise PySparkException("Caused by: java.lang.OutOfMemoryError: Java heap space")
        return packets(*given)

    monkeypatch.setattr(driver, "packets_of", without_memory)
    found, notes = _run(spark, tmp_path, "full", base)
    assert found == rows and held[0] and not any(held[1:])
    assert notes["read:tx"] == f"read with Arrow in 0 of 3 epochs; by Spark in the last: {NO_MEMORY}"
    held.clear()
    with monkeypatch.context() as patch:  # the process that ran out of memory has ended
        patch.setattr(Probation, "ran_out_of_memory_in", lambda _probation, batch: batch[1] == 0)
        assert _run(spark, tmp_path, "again", base)[0] == rows
    assert held and not any(held)


def test_spark_reads_files_that_are_not_local_and_large_or_changed(spark: SparkSession, tmp_path: Path) -> None:
    contents, base = _Contents(spark), not_local(spark, tmp_path)
    for name in "ab":
        (tmp_path / name).write_bytes(b"1234")
    frame = contents.of([f"{base}/a", f"{base}/b"])
    assert isinstance(frame, DataFrame)
    assert sorted(map(tuple, frame.collect())) == [(f"{base}/{name}", bytearray(b"1234")) for name in "ab"]
    with (tmp_path / "b").open("r+b") as file:
        file.truncate(MOST_DELIVERED + 1)
    assert contents.of([f"{base}/a", f"{base}/b"]) == f"{base}/b is not local and has 16,777,217 bytes"
    (tmp_path / "b").unlink()
    assert "PATH_NOT_FOUND" in str(contents.of([f"{base}/a", f"{base}/b"]))


def _check(spark: SparkSession, paths: Sequence[Path]) -> int:
    """Compare both readers; return the number of files that are read in Arrow."""
    ours = {path: table for i, path in enumerate(paths) if (table := _ours(path, i % 4 + 1)) is not None}
    theirs = _of_spark(spark, [*ours]) if ours else {}
    unlike = [path for path, table in ours.items() if _bits(table) != _bits(theirs[path.name])]
    assert not unlike, [(pq.read_schema(path), _bits(ours[path]), _bits(theirs[path.name])) for path in unlike]
    return len(ours)


@settings(max_examples=3, phases=[Phase.generate])
@given(st.integers(0, 1 << 30))
def test_both_readers_agree(reading: SparkSession, tmp_path_factory: pytest.TempPathFactory, seed: int) -> None:
    folder, rng = tmp_path_factory.mktemp("files"), Random(seed)
    paths = []
    for number in range(100):
        path = folder / f"{number}.parquet"
        with suppress(pa.ArrowException, OSError):
            _write(path, rng)
            paths.append(path)
    read = _check(reading, paths)
    assert 30 <= read < len(paths), "some files are obstacles, most are not"
