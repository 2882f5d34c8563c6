"""What the front end translates is computed as in Spark: values, NULLs and errors, bit for bit."""

from __future__ import annotations

import datetime
import itertools
import math
from decimal import Decimal
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from kit.judges.interpreted import interpreted_table
from millpond.kernels.columns import from_arrow, to_arrow
from millpond.kernels.evaluate import Evaluator
from millpond.model.endpoints import Source
from millpond.model.expressions import Foreign, walk
from millpond.model.stream import Field, Stream
from millpond.spark.catalyst.private_names import Catalyst, analysed, items
from millpond.spark.frontend.frontend import FrontEnd
from millpond.spark.reading.read_frame import EventTime

SCHEMA = (
    "ts TIMESTAMP, i INT, j INT, l BIGINT, m BIGINT, x DOUBLE, y DOUBLE, f FLOAT, s STRING, t STRING, "
    "b BOOLEAN, dt DATE, k TINYINT, h SMALLINT, p DECIMAL(10,2), q DECIMAL(10,2), r DECIMAL(20,6), w DECIMAL(38,6)"
)
INTS = [None, 0, 1, -1, 2, 7, -7, 2**31 - 1, -(2**31)]
LONGS = [None, 0, 1, -1, 3, 2**53 + 1, 2**63 - 1, -(2**63)]
DOUBLES = [None, 0.0, -0.0, 1.5, -2.5, 1e300, -1e300, math.nan, math.inf, -math.inf, 0.1, 3e9, 9.3e18, 5e-324]
PRICES = [None, 0, 1, -1, 250, -250, 700, 10**10 - 1, -(10**10) + 1]
WIDE = [None, 0, 1, -1, 5 * 10**5, -15 * 10**5, 10**38 - 1, -(10**38) + 1, 2**64 + 5, 10**28 + 9, 10**16]
TEXTS = [None, "", "a", "A", "abc", "xabc", "abcx", "a%", "straße", "ÄÖ", "日本", "é"]
TIMES = [datetime.datetime(1970, 1, 1, 0, 0, second) for second in range(10)]

EXPRESSIONS = [
    "i + j", "i - j", "i * j", "l + m", "l - m", "l * m", "x + y", "x - y", "x * y", "x / y", "i / j", "i % j",
    "l % m", "x % y", "-i", "-l", "-x", "abs(i)", "abs(l)", "abs(x)", "cast(k + k AS int)", "h * h", "f + f",
    "f * x", "i + l", "i + x", "floor(x)", "ceil(x)", "ceil(i)", "floor(l)", "sqrt(x)", "exp(y)", "ln(x)",
    "log(x)", "log10(x)", "pow(x, 2)", "pow(x, y)", "isnan(x)", "greatest(i, j)", "least(x, y)",
    "greatest(x, y, 1.0D)", "least(l, i)", "x = y", "x <=> y", "x < y", "x <= y", "x > y", "x >= y", "i = j",
    "i <=> j", "i < l", "s = t", "s <=> t", "s < t", "s >= t", "x IN (1.5, 'NaN', 0)", "i IN (1, NULL, 7)",
    "i IN (j, 2)", "s IN ('a', 'abc')", "s NOT IN ('a', NULL)", "b AND i > 0", "b OR i > 0", "NOT b",
    "i = 0 OR 1 / i > 0.5D", "i <> 0 AND 1 / i > 0.5D", "1 / i > 0.5D OR i = 0", "i IS NULL", "i IS NOT NULL",
    "CASE WHEN i > 0 THEN x WHEN j > 0 THEN y END", "if(b, s, t)", "CASE i WHEN 0 THEN 0D ELSE 1D / i END",
    "coalesce(i, j, 3)", "coalesce(s, t)", "nvl(x, y)", "nullif(i, 7)", "nullif(x, y)", "ifnull(i, 1 % j)",
    "cast(i AS bigint)", "cast(i AS double)", "cast(l AS double)", "cast(l AS float)", "cast(x AS float)",
    "cast(l AS int)", "cast(i AS smallint)", "cast(i AS tinyint)", "cast(x AS int)", "cast(x AS bigint)",
    "cast(f AS double)", "cast(f AS int)", "cast(b AS int)", "cast(b AS double)", "cast(i AS string)",
    "cast(l AS string)", "cast(k AS string)", "upper(s)", "lower(s)", "length(s)", "startswith(s, 'a')",
    "endswith(s, 'c')", "contains(s, 'ab')", "s LIKE 'a%'", "s LIKE '%c'", "s LIKE '%b%'", "concat(s, t)", "s || 'x'",
    "ts > TIMESTAMP '1970-01-01 00:00:03'", "dt < DATE '2000-01-01'", "i BETWEEN j AND 7", "x BETWEEN y AND 2",
    "p + q", "p - r", "r - p", "p * q", "p * r", "-p", "abs(r)", "p = q", "p <=> q", "p < r", "w >= p", "w <= r",
    "p > 10", "p > 1.5D", "p IN (1, 2.5)", "p IN (q, 7)", "p BETWEEN q AND 7", "greatest(p, q)", "least(w, p)",
    "coalesce(p, 0)", "nullif(p, q)", "CASE WHEN i > 0 THEN p ELSE r END", "if(b, w, p)", "p IS NULL", "p + i",
    "i * 1.10", "cast(p AS double)", "cast(r AS double)", "cast(w AS double)", "cast(i AS decimal(12,2))",
    "cast(l AS decimal(20,1))", "cast(l AS decimal(10,0))", "cast(w AS decimal(10,1))", "cast(r AS decimal(8,3))",
    "cast(w AS decimal(38,20))", "cast(r AS decimal(30,10))", "cast(p AS decimal(3,0))", "p > 1E-30",
    "try_cast(p AS decimal(12,2))",
    "i > 1 + 1", "x > 0.1", "f > 0.1", "i > 1.5D", "try_cast(i AS bigint)",
]  # fmt: skip

ROUGH = ("exp", "ln", "log", "pow")
"""Functions whose last bit the JVM and the C library round differently."""


class Rows(NamedTuple):
    """Rows of edge cases, a front end that reads them, and Spark's answer per expression: NULL where it raised."""

    frame: DataFrame
    table: pa.Table
    front: FrontEnd
    answers: dict[str, pa.ChunkedArray]


@pytest.fixture(scope="module")
def rows(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Rows:
    pairs = list(itertools.product(range(len(DOUBLES)), repeat=2))
    data = [
        (
            TIMES[n % 10], INTS[a % 9], INTS[b % 9], LONGS[a % 8], LONGS[b % 8], DOUBLES[a], DOUBLES[b],
            DOUBLES[b] if DOUBLES[b] is None or abs(DOUBLES[b]) < 1e30 else None,
            TEXTS[a % 12], TEXTS[b % 12], (None, True, False)[n % 3], datetime.date(1970 + a, 1, 1 + b),
            (None, 1, -128, 127)[n % 4], (None, 300, -181, 181)[n % 4],
            *(None if number is None else Decimal(f"{number}E-{scale}") for number, scale in (
                (PRICES[a % 9], 2), (PRICES[b % 9], 2), (LONGS[b % 8], 6), (WIDE[n % 11], 6),
            )),
        )
        for n, (a, b) in enumerate(pairs)
    ]  # fmt: skip
    folder = tmp_path_factory.mktemp("rows")
    spark.createDataFrame(data, SCHEMA).coalesce(1).write.mode("overwrite").parquet(str(folder))
    front = FrontEnd(spark)
    session = Catalyst(spark).clone()
    session.conf.set("spark.sql.subexpressionElimination.enabled", "false")
    frame = session.read.schema(SCHEMA).parquet(str(folder))
    columns = tuple(Field(field.name, field.dataType.simpleString()) for field in frame.schema.fields)
    front.declare(Stream("tx", columns, Source("parquet", (("path", str(folder)),))), EventTime("ts", "1 second"))
    doors = Catalyst(session)
    plan = doors.clean(analysed(frame.selectExpr(*(f"{text} AS e{n}" for n, text in enumerate(EXPRESSIONS)))))
    attempts = [doors.column(doors.attempt(column.child())) for column in items(plan.projectList())]
    answers = interpreted_table(frame.select(*(attempt.alias(f"e{n}") for n, attempt in enumerate(attempts))))
    return Rows(frame, frame.toArrow(), front, dict(zip(EXPRESSIONS, answers.columns, strict=True)))


@pytest.mark.parametrize("text", EXPRESSIONS)
def test_an_expression_means_what_spark_means(rows: Rows, text: str) -> None:
    frame, table, front, answers = rows
    query = front.query_from_sql("q", f"SELECT {text} AS k, count(*) FROM tx GROUP BY {text}, window(ts, '1 hour')")
    [key] = query.keys
    assert not any(isinstance(node, Foreign) for node in walk(key)), "left to Spark"
    kinds = {field.name: field.dataType.simpleString() for field in frame.schema.fields}
    columns = {name: from_arrow(table[name].combine_chunks(), kind) for name, kind in kinds.items()}
    values = Evaluator(columns, table.num_rows)(key)
    error = np.broadcast_to(values.error, (table.num_rows,)).tolist()
    ours = to_arrow(values._replace(null=values.null | values.error), key.type, table.num_rows).to_pylist()
    spark_rows = answers[text].to_pylist()
    differences = [
        (table.slice(n, 1).to_pylist()[0], spark_row, mine, raised)
        for n, (spark_row, mine, raised) in enumerate(zip(spark_rows, ours, error, strict=True))
        if (spark_row is None) != raised or (spark_row is not None and not _same(text, spark_row["v"], mine))
    ]
    assert not differences, differences[:3]


def _same(text: str, theirs: object, mine: object) -> bool:
    if isinstance(theirs, float) and isinstance(mine, float):
        if math.isnan(theirs) or math.isnan(mine):
            return math.isnan(theirs) and math.isnan(mine)
        if text.startswith(ROUGH):
            return math.isclose(theirs, mine, rel_tol=1e-14)
        return theirs == mine and math.copysign(1, theirs) == math.copysign(1, mine)
    return theirs == mine
