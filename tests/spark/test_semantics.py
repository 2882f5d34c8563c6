"""Each line of `docs/semantics.md` against Spark: one query in a pond and in Spark's own batch, over the same rows.

One pond answers all queries in a zone with daylight saving; a query that raises must not disturb its neighbours.
"""

from __future__ import annotations

import ast
import datetime as dt
import math
import re
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from kit.judges.interpreted import interpreted_table
from kit.judges.recorded import RecordedAnswers, columns_and_rows
from millpond import Pond
from millpond.errors import QueryError, QueryTypeError, UnsupportedQuery
from millpond.model.endpoints import Source
from millpond.model.stream import Field, Stream

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "semantics.md"

ZONE = "Europe/Berlin"
STREAM = "FROM STREAM ev WATERMARK ts DELAY OF INTERVAL 1 SECOND"
COLUMNS = (
    ("ts", "timestamp"), ("k", "string"), ("i", "int"), ("l", "bigint"), ("x", "double"), ("f", "float"),
    ("s", "string"), ("b", "boolean"), ("n", "timestamp_ntz"), ("m", "decimal(10,2)"),
)  # fmt: skip
DAY = "window(ts, '1 day')"
WEEK = "window(ts, '7 days')"
RECORDED = RecordedAnswers(__file__, Path(__file__).read_text())


def utc(text: str) -> dt.datetime:
    return dt.datetime.fromisoformat(text).replace(tzinfo=dt.timezone.utc)


NOON = utc("2024-06-01 12:00:00")
NAN, INF = math.nan, math.inf
TIMELESS = 1
"""Events without a time, which are dead for every query."""


def rows() -> list[tuple[Any, ...]]:
    """Edge cases, distinguished by `k`."""
    found: list[dict[str, Any]] = []

    def add(k: str, ts: dt.datetime | None = NOON, **values: Any) -> None:
        found.append({"ts": ts, "k": k} | values)

    for x in (NAN, -NAN, 1.0, INF, -INF, 0.0, -0.0, None):
        add("double", x=x, f=x)
    for s in ("a", None, "b", None, ""):
        add("null", s=s, i=None if s is None else 1, b=None if s is None else s == "a")
    add("no time", ts=None)
    add("empty", i=None, x=None)
    add("one", i=3, x=3.0)
    for large in (2**63 - 1, 1):
        add("overflow", l=large)
    for i in (2**31 - 1, -(2**31), 0, 4):
        add("row errors", i=i, s=str(i) if i else "zero")
    for x in (1e16, 1.0, -1e16, 0.1, 0.2):
        add("sums", x=x, f=x)
    for hour in range(60):  # both nights of 2024 in Berlin: 23 and 25 hours
        for day in ("2024-03-30 12:30:00", "2024-10-26 12:30:00"):
            add("nights", ts=utc(day) + dt.timedelta(hours=hour), i=hour)
    for text in ("1969-12-31 23:59:59.999999", "1970-01-01", "2024-06-01 12:00:00", "2024-06-01 11:59:59.999999"):
        add("bounds", ts=utc(text), i=1)
    for hour in (1, 2, 3):
        add("no zone", n=dt.datetime(2024, 3, 31, hour, 30), s=f"2024-03-31 0{hour}:30:00")
    for m in ("1.25", "-99999999.99", "0.01", None):
        add("decimal", m=None if m is None else Decimal(m))
    return [tuple(row.get(name) for name, _ in COLUMNS) for row in found]


def q(select: str, k: str, group: str = "", having: str = "", window: str = DAY) -> str:
    where = k if " " in k and "=" in k else f"k = '{k}'"
    keys = f"{group}, " if group else ""
    return f"SELECT {select} {STREAM} WHERE {where} GROUP BY {keys}{window}{f' HAVING {having}' if having else ''}"


SAME = {
    "nan_keys": q("x AS a, count(*) AS n", "double", "x"),
    "nan_float_keys": q("f AS a, count(*) AS n", "double", "f"),
    "nan_extremes": q("max(x) AS a, min(x) AS b", "double"),
    "nan_minimum_of_nan": q("min(x) AS a, max(x) AS b", "k = 'double' AND isnan(x)"),
    "nan_compares": q("count(*) AS n", "k = 'double' AND x > 1e308D AND x = cast('NaN' AS double)"),
    "nan_sum": q("sum(x) AS a, avg(x) AS b", "k = 'double' AND (isnan(x) OR x = 1)"),
    "zero_equals": q("count(*) AS n", "k = 'double' AND x = 0"),
    "null_keys": q("s AS a, count(*) AS n, count(s) AS c", "null", "s"),
    "null_boolean_keys": q("b AS a, count(*) AS n", "null", "b"),
    "null_ignored": q("count(*) AS n, count(i) AS c, sum(i) AS t, avg(i) AS v, min(i) AS a, max(ts) AS z", "null"),
    "null_conditions": q(
        "count(*) AS n, count(*) FILTER (WHERE s = 'a') AS c", "k = 'null' AND (s <> 'zz' OR i IN (1, NULL))"
    ),
    "null_having": q("s AS a, count(*) AS n", "null", "s", "sum(i) > 0"),
    "no_time": q("count(*) AS n", "no time"),
    "empty_group": q(
        "count(i) AS n, sum(i) AS t, avg(x) AS v, min(x) AS a, max(i) AS z, stddev(x) AS d, var_pop(x) AS p", "empty"
    ),
    "empty_filter": q("count(*) FILTER (WHERE i > 9) AS n, sum(i) FILTER (WHERE i > 9) AS t", "one"),
    "single_value": q(
        "stddev(x) AS d, stddev_pop(x) AS p, variance(x) AS v, skewness(i) AS s, kurtosis(x) AS k", "one"
    ),
    "bits": q("bit_and(i) AS a, bit_or(l) AS o, bit_xor(l) AS x", "nights", window="window(ts, '7 days')"),
    "no_bits": q("bit_and(i) AS a, bit_or(i) AS o, bit_xor(i) AS x", "empty"),
    "pairs": q("corr(x, i) AS c, covar_samp(x, i) AS s, covar_pop(x, i) AS p, regr_slope(x, i) AS b", "one"),
    "odd_pairs": q(
        "corr(x, f) AS c, covar_pop(x, l) AS n, regr_r2(1D, x) AS r, regr_intercept(x, 1D) AS e, "
        "regr_count(x, f) AS m, bool_and(x > 0) AS a, bool_or(b) AS o",
        "double",
    ),
    "few_pairs": q("regr_r2(i, x) AS r, corr(i, l) AS c, regr_avgy(i, x) AS y, regr_sxx(i, x) AS xx", "row errors"),
    "approximate": q(
        "approx_count_distinct(x) AS x, approx_count_distinct(f, 0.3) AS f, approx_count_distinct(s) AS s, "
        "approx_count_distinct(m) AS m",
        "double",
    ),
    "approximate_many": q(
        "approx_count_distinct(ts) AS a, approx_count_distinct(i, 0.39) AS b, "
        "approx_count_distinct(cast(i AS string), 0.1) FILTER (WHERE i > 3) AS c",
        "nights",
        window="window(ts, '7 days')",
    ),
    "percentiles": q(
        "median(x) AS m, percentile(x, array(0.25, 0.6)) AS p, percentile_disc(0.4) WITHIN GROUP (ORDER BY x) AS d",
        "sums",
    ),
    "percentiles_of_nan": q("median(x) AS m, percentile(x, 0.9) AS p, percentile(i, 0.5) AS n", "double"),
    "percentiles_downwards": q(
        "percentile_cont(0.2) WITHIN GROUP (ORDER BY x DESC) AS c, percentile_disc(0.4) WITHIN GROUP (ORDER BY x DESC) "
        "AS d, percentile_cont(0.9) WITHIN GROUP (ORDER BY i DESC) FILTER (WHERE i > 2) AS f, mode() WITHIN GROUP "
        "(ORDER BY i DESC) AS m",
        "double",
    ),
    "distinct": q("count(DISTINCT x) AS n, count(DISTINCT f, k) AS p, sum(DISTINCT i) AS t", "double"),
    "distinct_sums": q(
        "sum(DISTINCT i) AS t, avg(DISTINCT i) AS a, count(DISTINCT s) AS n, bit_xor(DISTINCT i) AS x, "
        "bit_or(DISTINCT i) AS o", "row errors",
    ),
    "distinct_spreads": q(
        "stddev(DISTINCT i % 3) AS s, stddev_pop(DISTINCT x) AS p, var_samp(DISTINCT i % 3) AS v, "
        "var_pop(DISTINCT i % 2) AS w, skewness(DISTINCT i % 3) AS k, kurtosis(DISTINCT i % 3) AS u", "nights",
    ),
    "lists": q("collect_list(x) AS l, collect_set(i) AS s, max_by(s, i) AS b, mode(s, true) AS m", "empty"),
    "texts": q("listagg(s) AS l, listagg(DISTINCT i, '-') AS n, string_agg(x, ',') AS x", "empty"),
    "texts_in_order": q(
        "listagg(s, ', ') WITHIN GROUP (ORDER BY s DESC) AS d, string_agg(DISTINCT s) WITHIN GROUP (ORDER BY s) AS a, "
        "listagg(s, '|') WITHIN GROUP (ORDER BY i DESC NULLS FIRST, upper(s) NULLS LAST) FILTER (WHERE s <> 'x') AS n, "
        "listagg(b, concat('-', '+')) WITHIN GROUP (ORDER BY b) AS b, count(s) AS c",
        "null",
    ),
    "texts_of_numbers": q(
        "listagg(i, ',') WITHIN GROUP (ORDER BY i) AS i, listagg(DISTINCT i, ',') WITHIN GROUP (ORDER BY i DESC) AS d, "
        "listagg(ts, ';') WITHIN GROUP (ORDER BY i % 7 DESC, ts) AS t",
        "nights",
    ),
    "histograms": q(
        "histogram_numeric(i, 200) AS i, histogram_numeric(cast(i AS double) / 7, 100) AS x, "
        "histogram_numeric(ts, 100) AS t, histogram_numeric(cast(ts AS date), 9) AS d, "
        "histogram_numeric(cast(i AS float), 99) FILTER (WHERE i % 3 = 0) AS f",
        "nights",
    ),
    "histograms_of_nothing": q("histogram_numeric(i, 2) AS i, histogram_numeric(x, 3) AS x", "empty"),
    "by": q("max_by(i, ts) AS a, min_by(i, ts, 2) AS b, max_by(ts, i) AS c, first(k) AS f", "nights"),
    "guarded": q("sum(CASE WHEN i <> 0 THEN 8 DIV i END) AS t, sum(if(i = 0, 0, 1)) AS n", "row errors"),
    "tried": q("sum(try_divide(8, i)) AS t, count(try_cast(s AS int)) AS n, count(try_add(i, 1)) AS c", "row errors"),
    "tried_total": q(
        "try_sum(l) AS t, try_sum(DISTINCT l) AS d, try_avg(l) AS a, try_sum(i) AS n, "
        f"try_sum(if(l > 0, {'9' * 38}BD, 0BD)) AS z, count(*) AS c", "overflow",
    ),
    "types": q(
        "sum(i) AS t, avg(i) AS v, sum(f) AS w, max(f) AS z, count(*) AS n, min(ts) AS a, sum(i) / count(*) AS r", "one"
    ),
    "days_are_24_hours": q("count(*) AS n, window.start AS a, window.end AS z", "nights"),
    "local_days": q("date_trunc('day', ts) AS a, count(*) AS n", "nights", "1", window="window(ts, '7 days')"),
    "local_hours": q("hour(ts) AS h, count(*) AS n", "nights", "1", window="window(ts, '7 days')"),
    "calendar_day": q("ts + INTERVAL 1 DAY AS a, ts + INTERVAL 24 HOURS AS z, count(*) AS n", "nights", "1, 2"),
    "calendar_month": q("ts + INTERVAL 1 MONTH AS a, count(*) AS n", "nights", "1"),
    "offset": q("count(*) AS n, window.start AS a", "nights", window="window(ts, '1 day', '1 day', '-2 hours')"),
    "half_open": q("count(*) AS n, window.start AS a", "bounds", window="window(ts, '12 hours')"),
    "gaps": q(
        "count(*) AS n, window.start AS a, window.end AS z", "bounds", window="window(ts, '10 seconds', '3 seconds')"
    ),
    "sessions": q(
        "count(*) AS n, session_window.start AS a, session_window.end AS z",
        "nights",
        window="session_window(ts, '59 minutes')",
    ),
    "sessions_touch": q("count(*) AS n, session_window AS w", "nights", window="session_window(ts, '1 hour')"),
    "sessions_of_days": q(
        "count(*) AS n, session_window AS w", "k = 'nights' AND i < 10", window="session_window(ts, '1 day')"
    ),
    "sessions_of_hours": q(
        "count(*) AS n, session_window AS w", "k = 'nights' AND i < 10", window="session_window(ts, '24 hours')"
    ),
    "sessions_of_their_own": q(
        "count(*) AS n, session_window AS w",
        "nights",
        window="session_window(ts, CASE WHEN i % 7 = 0 THEN '-1 hours' WHEN i % 5 = 0 THEN NULL ELSE '70 minutes' END)",
    ),
    "sessions_by_key": q("b AS a, count(i) AS c, session_window AS w", "null", "b", "", "session_window(ts, '1 hour')"),
    "sessions_timeless": q("count(*) AS n", "no time", window="session_window(ts, '1 hour')"),
    "no_zone": q("n AS a, count(*) AS c", "no zone", "n"),
    "no_zone_extremes": q(
        "min(cast(n AS timestamp)) AS a, max(cast(n AS timestamp)) AS z, min(n) AS m, max(n + INTERVAL 1 HOUR) AS x",
        "no zone",
    ),
    "text_to_time": q("cast(s AS timestamp) AS a, count(*) AS n", "no zone", "1"),
    "decimal_casts": q("sum(cast(m AS double)) AS t, max(cast(m AS bigint)) AS z, count(m) AS n", "decimal"),
    "decimal_sums": q("sum(m) AS t, avg(m) AS v, min(m) AS a, max(m) AS z, count(m) AS n", "decimal"),
    "decimal_keys": q("m AS a, count(*) AS n", "decimal", "m"),
}
"""Queries that a pond answers as Spark does, row by row and type by type."""

OWN = {
    "overflow": q("sum(l) AS t, count(*) AS n", "overflow"),
    "row_overflow": q("sum(i + 1) AS t, count(*) AS n", "row errors"),
    "row_division": q("sum(8 DIV i) AS t, count(*) AS n", "row errors"),
    "row_cast": q("count(cast(s AS int)) AS n", "row errors"),
    "exact_sum": q("sum(x) AS t", "sums"),
    "exact_covariance": q("covar_pop(x, f) AS c", "sums"),
    "exact_variance": q("var_pop(x) AS v, avg(x) AS a", "k = 'sums' AND x < 1"),
    "percentiles_of_bins": q(
        "window.start AS a, percentile_approx(i * 1.37D - 20, array(0.0, 0.5, 0.9, 1.0)) AS x, "
        "approx_percentile(cast(i * 1.37D AS decimal(10,2)), 0.5, 100) AS m, percentile_approx(i * 1000000007L, 0.3) "
        "AS l, percentile_approx(cast(i AS float) / 7, 0.5, 50) AS f, percentile_approx(i, array(0.5, 0.9)) AS n, "
        "percentile_approx(x, 0.5) AS e, percentile_approx(i, 0.5) FILTER (WHERE i > 30) AS o",
        "nights",
    ),
    "coarse_histograms": q("histogram_numeric(i, 4) AS h, histogram_numeric(x, 4) AS e", "nights", window=WEEK),
}
"""Queries that a pond answers otherwise, on purpose."""


class Answered(NamedTuple):
    """Rows of a pond and of Spark by query, and what became of the events."""

    pond: dict[str, list[str]]
    table: dict[str, pa.Table]
    session: SparkSession
    dead: dict[str, int]
    quarantined: dict[str, str]
    door: Pond

    def spark(self, text: str) -> Any:
        return interpreted_table(self.session.sql(text.replace(STREAM, "FROM ev")))


def plain(table: Any) -> list[str]:
    """Rows as texts, so that NaN equals itself and 0.0 is not -0.0."""
    return sorted(repr(row) for row in table.to_pylist())


@pytest.fixture(scope="module")
def answered(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("semantics")
    session = spark.newSession()
    session.conf.set("spark.sql.session.timeZone", ZONE)
    schema = ", ".join(f"{name} {kind}" for name, kind in COLUMNS)
    session.createDataFrame(rows(), schema).coalesce(1).write.parquet(str(folder / "in"))
    session.read.schema(schema).parquet(str(folder / "in")).createOrReplaceTempView("ev")
    dead: dict[str, int] = {}

    def count(epoch: Any) -> None:
        for name, counts in epoch.record.counts.items():
            dead[name] = dead.get(name, 0) + counts.get("dead", 0)

    with Pond(session, folder / "pond", instances=2, on_epoch=count) as pond:
        pond.stream(Stream("ev", tuple(Field(*c) for c in COLUMNS), Source("parquet", (("path", str(folder / "in")),))))
        for name, text in (SAME | OWN).items():
            pond.add(name, text)
        pond.run(once=True, drain=True)
        tables = {name: pond.table(name) for name in SAME | OWN}
        yield Answered(
            {name: plain(table) for name, table in tables.items()},
            tables, session, dead, dict(pond.manifest().quarantined), pond,
        )  # fmt: skip


def same(answered: Answered, *names: str) -> None:
    for name in names:
        ours = columns_and_rows(answered.table[name])
        theirs = RECORDED.answer(name, SAME[name], ours, lambda name=name: columns_and_rows(answered.spark(SAME[name])))
        assert ours[1] == theirs[1], name
        assert answered.dead[name] == TIMELESS, name
        if theirs[1]:
            assert ours[0] == theirs[0], name


def test_nan_is_one_key_and_the_largest_value(answered: Answered) -> None:
    same(answered, "nan_keys", "nan_float_keys", "nan_extremes", "nan_minimum_of_nan", "nan_compares", "nan_sum")
    assert any("'a': nan, 'n': 2" in row for row in answered.pond["nan_keys"])


def test_minus_zero_is_zero(answered: Answered) -> None:
    same(answered, "zero_equals")
    assert [row for row in answered.pond["nan_keys"] if "0.0" in row] == ["{'a': 0.0, 'n': 2}"]


def test_null_is_one_key_and_no_value(answered: Answered) -> None:
    same(answered, "null_keys", "null_boolean_keys", "null_ignored", "null_conditions", "null_having")


def test_an_event_without_a_time_is_in_no_window(answered: Answered) -> None:
    same(answered, "no_time")
    assert answered.pond["no_time"] == []
    assert answered.dead["no_time"] == TIMELESS


def test_an_aggregate_over_nothing_is_null_and_a_count_is_zero(answered: Answered) -> None:
    same(answered, "empty_group", "empty_filter")


def test_a_sample_of_one_has_no_deviation(answered: Answered) -> None:
    same(answered, "single_value")


def test_a_sum_that_leaves_bigint_stops_its_query_alone(answered: Answered) -> None:
    assert answered.pond["overflow"] == []
    assert list(answered.quarantined) == ["overflow"]
    with pytest.raises(PySparkException, match="ARITHMETIC_OVERFLOW"):
        answered.spark(OWN["overflow"])


@pytest.mark.parametrize(("name", "dead", "row"), [
    ("row_overflow", 1, f"{{'t': {-(2**31) + 1 + 1 + 5}, 'n': 3}}"),
    ("row_division", 1, "{'t': 2, 'n': 3}"),
    ("row_cast", 1, "{'n': 3}"),
])  # fmt: skip
def test_an_event_that_raises_is_dead_for_its_query_alone(answered: Answered, name: str, dead: int, row: str) -> None:
    assert answered.dead[name] == dead + TIMELESS
    assert answered.pond[name] == [row]
    with pytest.raises(PySparkException, match=r"OVERFLOW|DIVIDE_BY_ZERO|CAST_INVALID_INPUT"):
        answered.spark(OWN[name])


def test_what_a_case_or_try_guards_does_not_raise(answered: Answered) -> None:
    same(answered, "guarded", "tried", "tried_total")


def test_sums_and_variances_of_doubles_are_rounded_once(answered: Answered) -> None:
    assert answered.pond["exact_sum"] == [repr({"t": math.fsum([1e16, 1.0, -1e16, 0.1, 0.2])})]
    values = [Decimal(x) for x in (-1e16, 0.1, 0.2)]
    mean = sum(values) / 3
    exact = float(sum((value - mean) ** 2 for value in values) / 3)
    [row] = answered.pond["exact_variance"]
    assert ast.literal_eval(row) == {"v": pytest.approx(exact, rel=1e-15), "a": math.fsum([-1e16, 0.1, 0.2]) / 3}
    [theirs] = answered.spark(OWN["exact_sum"]).to_pylist()
    assert theirs["t"] != math.fsum([1e16, 1.0, -1e16, 0.1, 0.2])


def test_pairs_skip_nulls_and_have_sparks_edges(answered: Answered) -> None:
    same(answered, "pairs", "odd_pairs", "few_pairs")


def test_a_covariance_of_doubles_is_rounded_once(answered: Answered) -> None:
    pairs = [(Fraction(x), Fraction(float(np.float32(x)))) for x in (1e16, 1.0, -1e16, 0.1, 0.2)]
    numerator = 5 * sum(x * y for x, y in pairs) - sum(x for x, _ in pairs) * sum(y for _, y in pairs)
    assert answered.pond["exact_covariance"] == [repr({"c": float(numerator) / 25.0})]


def test_approximate_counts_are_sparks(answered: Answered) -> None:
    same(answered, "approximate", "approximate_many")


def test_percentiles_are_sparks_to_the_last_bit(answered: Answered) -> None:
    same(answered, "percentiles", "percentiles_of_nan", "percentiles_downwards")


def test_percentiles_of_bins_are_within_the_stated_error(answered: Answered) -> None:
    theirs, mine = answered.spark(OWN["percentiles_of_bins"]), answered.table["percentiles_of_bins"]
    assert columns_and_rows(mine)[0] == columns_and_rows(theirs)[0]
    rows_of = {row["a"]: row for row in mine.to_pylist()}
    assert len(rows_of) == theirs.num_rows > 3
    for exact in theirs.to_pylist():
        found = rows_of[exact["a"]]
        assert (found["n"], found["o"], found["e"]) == (exact["n"], exact["o"], None)  # small integers are exact
        assert found["x"] == pytest.approx(exact["x"], rel=0.001)
        assert found["l"] == pytest.approx(exact["l"], rel=0.001)
        assert float(found["m"]) == pytest.approx(float(exact["m"]), rel=0.01, abs=0.005)
        assert found["f"] == pytest.approx(exact["f"], rel=0.02)


def test_distinct_values_are_told_apart_as_spark_does(answered: Answered) -> None:
    same(answered, "distinct", "distinct_sums", "distinct_spreads")


def test_lists_of_nothing_are_empty_and_extremes_by_another_column_are_sparks(answered: Answered) -> None:
    same(answered, "lists", "by")


def test_joined_texts_are_sparks_where_their_order_is_told(answered: Answered) -> None:
    same(answered, "texts", "texts_in_order", "texts_of_numbers")


def test_histograms_of_few_values_are_sparks(answered: Answered) -> None:
    same(answered, "histograms", "histograms_of_nothing")


def test_coarse_histograms_are_of_runs_of_the_sorted_values(answered: Answered) -> None:
    """Spark's bins depend on the order of events; those of a pond are means of neighbours, and few."""
    theirs, mine = answered.spark(OWN["coarse_histograms"]), answered.table["coarse_histograms"]
    assert columns_and_rows(mine)[0] == columns_and_rows(theirs)[0]
    assert len(mine) == theirs.num_rows == 2
    for row in mine.to_pylist():
        assert (len(row["h"]), row["e"]) == (4, None)
        assert sum(bin_["y"] for bin_ in row["h"]) == 60.0
        start = 0
        for bin_ in row["h"]:
            count = int(bin_["y"])
            assert bin_["x"] == (2 * start + count - 1) // 2, "the mean of so many of 0 … 59, towards zero"
            start += count


def test_results_have_sparks_types(answered: Answered) -> None:
    same(answered, "types")


def test_a_window_of_a_day_has_24_hours_in_every_zone(answered: Answered) -> None:
    same(answered, "days_are_24_hours", "offset")


def test_local_days_and_hours_know_daylight_saving(answered: Answered) -> None:
    same(answered, "local_days", "local_hours")
    counts = sorted(ast.literal_eval(n) for row in answered.pond["local_days"] for n in re.findall(r"'n': (\d+)", row))
    assert {23, 25} <= set(counts)


def test_days_and_months_of_an_interval_are_of_the_calendar(answered: Answered) -> None:
    same(answered, "calendar_day", "calendar_month")


def test_windows_are_half_open_also_before_1970(answered: Answered) -> None:
    same(answered, "half_open", "gaps")


def test_a_time_without_a_zone_is_a_key_but_no_event_time(answered: Answered) -> None:
    same(answered, "no_zone", "no_zone_extremes", "text_to_time")
    text = "SELECT count(*) FROM STREAM ev WATERMARK n DELAY OF INTERVAL 1 SECOND GROUP BY window(n, '1 day')"
    with pytest.raises(QueryTypeError, match="EVENT_TIME_IS_NOT_ON_TIMESTAMP_TYPE"):
        answered.door._declarations.front.query_from_sql("no_event_time", text)


def test_a_session_ends_a_gap_after_its_last_event_and_touching_ones_are_one(answered: Answered) -> None:
    same(answered, "sessions", "sessions_touch", "sessions_by_key", "sessions_timeless")
    assert len(answered.pond["sessions"]) == 120
    assert len(answered.pond["sessions_touch"]) == 2


def test_a_gap_of_days_is_of_the_calendar_and_events_may_bring_their_own(answered: Answered) -> None:
    same(answered, "sessions_of_days", "sessions_of_their_own")
    assert answered.pond["sessions_of_days"] != answered.pond["sessions_of_hours"]


def test_durations_of_months_are_no_windows(answered: Answered) -> None:
    with pytest.raises(QueryTypeError, match="counts months"):
        answered.door._declarations.front.query_from_sql("months", q("count(*)", "one", window="window(ts, '1 month')"))
    with pytest.raises(PySparkException):
        answered.spark(q("count(*)", "one", window="window(ts, '1 month')"))


@pytest.mark.parametrize("text", ["sum(make_ym_interval(i))", "max(make_interval(1))"])
def test_aggregates_of_intervals_of_months_are_refused(answered: Answered, text: str) -> None:
    with pytest.raises(QueryError, match="interval"):
        answered.door._declarations.front.query_from_sql("interval", q(text, "one"))


def test_decimals_are_what_they_are_in_spark(answered: Answered) -> None:
    same(answered, "decimal_casts", "decimal_sums", "decimal_keys")


@pytest.mark.parametrize("text", [
    "ts > localtimestamp()", "year(now()) > 2000", "ts > 'now'", "ts > '12:00:00'", "s = current_user",
    "rand() < 0.5",
])  # fmt: skip
def test_what_changes_from_run_to_run_is_refused(answered: Answered, text: str) -> None:
    with pytest.raises((UnsupportedQuery, QueryError)):
        answered.door._declarations.front.query_from_sql("unstable", q("count(*)", f"k = 'one' AND {text}"))


_TEST = re.compile(r"`(tests/[\w/]+\.py)::(test_\w+)`")


def _lines() -> list[str]:
    return [line for line in PAGE.read_text(encoding="utf-8").splitlines() if re.match(r"\| (?!What \|)", line)]


def test_each_line_of_the_table_names_a_test_that_exists() -> None:
    lines = _lines()
    assert len(lines) >= 20
    for line in lines:
        named = _TEST.findall(line)
        assert named, line
        for path, name in named:
            tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
            assert name in {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}, line


def test_each_test_of_this_file_is_in_the_table() -> None:
    tree = ast.parse(Path(__file__).read_text(encoding="utf-8"))
    tests = {node.name for node in tree.body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")}
    named = {name for line in _lines() for path, name in _TEST.findall(line) if path.endswith("test_semantics.py")}
    assert {name for name in tests if not name.startswith("test_each_")} == named
