"""Checks every result row of the demo against DuckDB, with separate SQL over the same flights.

Nothing here uses the code of a pond. The queries are written by hand for DuckDB, windows are arithmetic on
microseconds, and the compared rows are read from the Parquet files that a user would read.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from millpond.errors import SetupError
from millpond.version import install

FLOAT_TOLERANCE = 1e-9
"""Relative tolerance, only for columns of standard deviations. All other columns must be equal bit by bit."""

_FLIGHTS = """
CREATE VIEW flights AS
SELECT epoch_us(make_timestamp(year, month, day, hour, minute, 0.0)) AS us,
       carrier, tailnum, origin, dest, dep_delay, arr_delay, air_time, distance
FROM raw
"""

_HOUR, _QUARTER, _DAY = 3_600_000_000, 900_000_000, 86_400_000_000


class Expected(NamedTuple):
    """One query for DuckDB; `{rows}` is replaced by the flights, once per window with its start."""

    key: str
    size_us: int
    slide_us: int
    sql: str
    floats: tuple[str, ...] = ()


def _deviation(column: str) -> str:
    """SQL of the sample standard deviation: delays are whole minutes, so only the last division and root round."""
    n, v = f"count({column})", column
    squares = f"{n} * sum(({v} * {v})::HUGEINT) - sum({v}::HUGEINT) * sum({v}::HUGEINT)"
    return f"CASE WHEN {n} > 1 THEN sqrt(({squares})::DOUBLE / ({n} * ({n} - 1))) END"


EXPECTED = {
    "carrier_hourly": Expected("carrier", _HOUR, _HOUR, """
        SELECT carrier, start, count(*) AS flights, sum(distance) AS miles,
               min(dep_delay) AS best, max(dep_delay) AS worst, avg(dep_delay) AS mean
        FROM {rows} GROUP BY carrier, start"""),
    "carrier_day": Expected("carrier", _DAY, _HOUR, f"""
        SELECT carrier, start, count(*) AS flights, count(dep_delay) AS departed, avg(dep_delay) AS mean,
               {_deviation('dep_delay')} AS spread
        FROM {{rows}} GROUP BY carrier, start""", ("spread",)),
    "carrier_late": Expected("carrier", 6 * _HOUR, _HOUR, """
        SELECT carrier, start, count(*) AS late_flights, max(dep_delay) AS worst, avg(dep_delay) AS mean
        FROM {rows} WHERE dep_delay > 15 GROUP BY carrier, start HAVING count(*) >= 10"""),
    "origin_traffic": Expected("origin", _QUARTER, _QUARTER, """
        SELECT origin, start, count(*) AS flights, count(dep_delay) AS departed FROM {rows} GROUP BY origin, start"""),
    "origin_delays": Expected("origin", 3 * _HOUR, _QUARTER, f"""
        SELECT origin, start, count(*) AS flights, avg(dep_delay) AS mean, {_deviation('dep_delay')} AS spread,
               max(dep_delay) AS worst
        FROM {{rows}} GROUP BY origin, start HAVING avg(dep_delay) > 20""", ("spread",)),
    "origin_long": Expected("origin", _DAY, _DAY, """
        SELECT origin, start, count(*) AS flights, sum(air_time) AS minutes, min(air_time) AS fastest,
               max(distance) AS farthest
        FROM {rows} WHERE distance > 1500 AND dest <> 'HNL' GROUP BY origin, start"""),
    "plane_day": Expected("tailnum", _DAY, _DAY, """
        SELECT tailnum, start, count(*) AS flights, sum(distance) AS miles, avg(arr_delay) AS mean,
               max(arr_delay) AS worst
        FROM {rows} GROUP BY tailnum, start"""),
    "plane_week": Expected("tailnum", 7 * _DAY, _DAY, f"""
        SELECT tailnum, start, count(*) AS flights, sum(distance) AS miles, avg(arr_delay) AS mean,
               {_deviation('arr_delay')} AS spread
        FROM {{rows}} GROUP BY tailnum, start HAVING count(*) >= 10""", ("spread",)),
    "plane_delayed": Expected("tailnum", 7 * _DAY, _DAY, f"""
        SELECT tailnum, start, count(*) AS flights, avg(arr_delay) AS mean, {_deviation('arr_delay')} AS spread,
               max(arr_delay) AS worst
        FROM {{rows}} GROUP BY tailnum, start HAVING count(*) >= 5 AND avg(arr_delay) > 45""", ("spread",)),
    "plane_punctual": Expected("tailnum", 7 * _DAY, _DAY, """
        SELECT tailnum, start, count(*) AS flights, sum(distance) AS miles, max(arr_delay) AS worst
        FROM {rows} GROUP BY tailnum, start HAVING count(*) >= 5 AND max(arr_delay) <= 0"""),
}  # fmt: skip
"""Query of demo.sql -> the same query for DuckDB. Tumbling windows start at multiples of their size since 1970 UTC."""


class Compared(NamedTuple):
    """The comparison of one query: rows found in its files, rows expected, and some that differ, as text."""

    query: str
    found: int
    expected: int
    differing: int
    examples: tuple[str, ...]

    @property
    def equal(self) -> bool:
        """Whether the files contain exactly the expected rows, each once."""
        return not self.differing and self.found == self.expected


def compare(flights: pa.Table, results: Path, expected: Mapping[str, Expected] = EXPECTED) -> list[Compared]:
    """Compare the Parquet files in `results`/<query> with a recomputation from the flights.

    Raises:
        SetupError: DuckDB is not installed.
    """
    with duckdb().connect() as database:
        database.register("raw", flights)
        database.execute(_FLIGHTS)
        return [_compare(database, name, one, results / name) for name, one in expected.items()]


def duckdb() -> Any:
    """The module `duckdb`, which only the demo needs.

    Raises:
        SetupError: DuckDB is not installed.
    """
    try:
        return import_module("duckdb")
    except ImportError as error:
        raise SetupError("The demo checks its rows with DuckDB.", f"Run `{install('demo')}`.") from error


def _compare(database: Any, name: str, case: Expected, folder: Path) -> Compared:
    windows = case.size_us // case.slide_us
    rows = (
        f"(SELECT flights.*, (us // {case.slide_us} - back) * {case.slide_us} AS start"
        f" FROM flights, range({windows}) AS r(back))"
    )
    database.execute(f"CREATE OR REPLACE TEMP TABLE expected AS {case.sql.format(rows=rows)}")
    columns = [column for column, *_ in database.execute("DESCRIBE expected").fetchall()]
    values = [column for column in columns if column not in (case.key, "start")]
    files = sorted(str(path) for path in folder.glob("*.parquet"))
    if files:
        found = f"read_parquet({files!r})"
        picked = ", ".join([case.key, "epoch_us(w.start) AS start", "epoch_us(w.end) AS stop", *values])
        database.execute(f"CREATE OR REPLACE TEMP TABLE found AS SELECT {picked} FROM {found}")
    else:
        database.execute("CREATE OR REPLACE TEMP TABLE found AS SELECT *, 0 AS stop FROM expected LIMIT 0")
    same = " AND ".join(
        [f"f.stop = f.start + {case.size_us}", *(_same(column, column in case.floats) for column in values)]
    )
    same_key = f"f.{case.key} IS NOT DISTINCT FROM e.{case.key}"
    joined = f"FROM found f FULL JOIN expected e ON {same_key} AND f.start = e.start"
    differs = f"{joined} WHERE NOT coalesce({same} AND e.start IS NOT NULL, false)"
    rows_found, rows_expected = _count(database, "FROM found"), _count(database, "FROM expected")
    differing = _count(database, differs)
    examples = database.execute(f"SELECT f, e {differs} LIMIT 5").fetchall() if differing else []
    found_expected = tuple(f"found {f}, expected {e}" for f, e in examples)
    return Compared(name, rows_found, rows_expected, differing, found_expected)


def _same(column: str, is_float: bool) -> str:
    exact = f"f.{column} IS NOT DISTINCT FROM e.{column}"
    if not is_float:
        return exact
    near = f"abs(f.{column} - e.{column}) <= {FLOAT_TOLERANCE} * greatest(abs(f.{column}), abs(e.{column}))"
    return f"({exact} OR coalesce({near}, false))"


def _count(database: Any, source: str) -> int:
    return int(database.execute(f"SELECT count(*) {source}").fetchone()[0])
