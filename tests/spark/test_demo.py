"""The demo on a sample of the flights: the same code as the full demo, and a check that can fail."""

from __future__ import annotations

import io
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from rich.console import Console

from millpond.control.commands.demo import (
    DISORDER_US,
    FILES,
    SQL,
    DemoOptions,
    demo_text,
    load_flights,
    run_demo,
    write_files,
)
from millpond.control.commands.demo_check import EXPECTED, compare
from millpond.errors import ForeignPondError

ROWS = 12_000


@pytest.mark.slow
def test_a_sample(spark: SparkSession, tmp_path: Path) -> None:
    out = io.StringIO()
    assert run_demo(DemoOptions(tmp_path / "it's", ROWS), Console(file=out)), out.getvalue()
    lines = out.getvalue().splitlines()
    assert lines[-1].startswith("all ") and lines[-1].endswith(" rows equal")
    assert "  late    0 events, malformed 0" in lines
    assert any("From the store, plane_day of" in line for line in lines)
    for query in EXPECTED:
        assert any(line.startswith(f"  {query} ") and line.endswith(" equal") for line in lines)

    # again on the same folder: nothing new, still equal
    again = io.StringIO()
    assert run_demo(DemoOptions(tmp_path / "it's", ROWS), Console(file=again)), again.getvalue()
    assert again.getvalue().splitlines()[-1] == lines[-1]
    with pytest.raises(ForeignPondError, match="12,000 flights, not 5"):
        run_demo(DemoOptions(tmp_path / "it's", 5), Console(file=io.StringIO()))
    _check_notices(tmp_path / "it's")


def _check_notices(folder: Path) -> None:
    """A row that is changed, missing or there twice is found."""
    flights, results = load_flights(ROWS), folder / "results"
    one = {"carrier_hourly": EXPECTED["carrier_hourly"]}
    assert [compared.equal for compared in compare(flights, results, one)] == [True]
    part = sorted((results / "carrier_hourly").glob("*.parquet"))[0]
    whole = pq.read_table(part)
    changed = whole.set_column(2, "flights", pa.array([*whole.column("flights").to_pylist()[:-1], 10**6]))
    for table in (changed, whole.slice(1), pa.concat_tables([whole, whole.slice(0, 1)])):
        pq.write_table(table, part)
        found = compare(flights, results, one)[0]
        assert not found.equal
    pq.write_table(changed, part)
    assert any("1000000" in example for example in compare(flights, results, one)[0].examples)


def test_files_are_out_of_order_within_the_delay(tmp_path: Path) -> None:
    files = write_files(load_flights(ROWS), tmp_path / "flights")
    assert len(files) == FILES
    assert [file.stat().st_mtime for file in files] == sorted({file.stat().st_mtime for file in files})
    newest, disorder, back = None, 0, 0
    for file in files:
        times = pq.read_table(file).column("ts").cast(pa.int64()).to_pylist()
        disorder += sum(later < earlier for earlier, later in pairwise(times))
        if newest is not None:
            back = max(back, newest - min(times))
        newest = max(times) if newest is None else max(newest, *times)
    assert disorder > ROWS / 10
    assert 0 < back < DISORDER_US


def test_missing_values_are_null(tmp_path: Path) -> None:
    flights = load_flights(ROWS)
    write_files(flights, tmp_path / "flights")
    events = pq.read_table(tmp_path / "flights")
    cancelled = flights.column("dep_delay").null_count
    assert cancelled > 0
    assert events.column("dep_delay").null_count == cancelled
    assert not events.column("dep_delay").to_pandas().dropna().isna().any()


def test_the_text_names_every_query_that_is_checked(tmp_path: Path) -> None:
    text = SQL.read_text(encoding="utf-8")
    assert text.count("CREATE STREAMING TABLE") == len(EXPECTED)
    assert all(f"CREATE STREAMING TABLE {name} " in text or f"TABLE {name}\n" in text for name in EXPECTED)
    assert "{folder}" not in demo_text(tmp_path)
