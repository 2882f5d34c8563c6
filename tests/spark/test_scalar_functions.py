"""Functions over columns equal Spark's on random rows, and stand in for expressions that only Spark evaluates."""

from __future__ import annotations

import datetime as dt
import math
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession

from kit.inputs.cases import BIGINTS
from kit.inputs.examples import seeds
from kit.judges.interpreted import interpreted_table
from millpond import Pond
from millpond.kernels.columns import as_attempted, from_arrow
from millpond.kernels.evaluate import Evaluator
from millpond.kernels.portable_regex import extracting
from millpond.kernels.scalar_functions import Uncovered
from millpond.model.expressions import Call, Column, literal
from millpond.spark.catalyst.private_names import Catalyst, analysed, items
from millpond.spark.reading.arrow_expressions import in_arrow

COLUMNS = {"s": "string", "r": "string", "i": "int", "l": "bigint", "x": "double", "ts": "timestamp", "d": "date"}
TYPES = {
    "s": pa.string(), "r": pa.string(), "i": pa.int32(), "l": pa.int64(), "x": pa.float64(),
    "ts": pa.timestamp("us", "UTC"), "d": pa.date32(),
}  # fmt: skip

COVERED = """
hour(ts); minute(ts); second(ts); year(ts); quarter(ts); month(ts); day(ts); dayofyear(ts); dayofweek(ts); weekday(ts)
year(d); quarter(d); month(d); dayofmonth(d); dayofyear(d); dayofweek(d); weekday(d); cast(ts AS date)
date_format(ts, 'yyyy-MM-dd'); date_format(ts, 'HH:mm'); date_format(ts, 'yyyy/MM/dd HH:mm:ss'); date_format(ts, 'MM')
date_trunc('hour', ts); date_trunc('DAY', ts); date_trunc('week', ts); date_trunc('MM', ts); date_trunc('quarter', ts)
date_trunc('year', ts); date_trunc('minute', ts); date_trunc('millisecond', ts); unix_seconds(ts); unix_millis(ts)
unix_micros(ts); datediff(d, cast(ts AS date)); date_add(d, i % 1000); date_sub(d, 3); timestamp_seconds(i)
timestamp_millis(i); timestamp_micros(l); l div 7; l div i; i div i; pmod(l, 7); pmod(i, -5)
nanvl(x, 1.5D); round(x, 2)
replace(s, 'a', ''); replace(s, 'a', 'éa'); substring(s, 2, 2); substring(s, 0, 3)
substring(s, -2, 1); substring(s, -9, 8)
substring(s, 3); substr(s, 2147483647, 2147483647); substring(s, 1, -1); left(s, 2); right(s, 2); right(s, 0); trim(s)
ltrim(s); rtrim(s); trim(BOTH 'a' FROM s); trim(LEADING 'é ' FROM s); btrim(s, 'ab'); reverse(s); instr(s, 'a')
instr(s, 'é'); split_part(s, '/', 1); split_part(s, '/', 2); split_part(s, '/', -1); split_part(s, 'é', -2)
split(s, ',')[0]; split(s, '[?]')[1]; split(s, '/')[2]; size(split(s, ',')); size(split(s, '\\\\.'))
regexp_extract(s, '(&|^)id=([^&]*)', 2); regexp_extract(s, '(\\\\d+)-(\\\\w*)', 1)
regexp_extract(s, '([a-c]+?)(b|/)', 0)
regexp_extract(s, '^([^/?]*)/', 1); s RLIKE '^[a-z]+'; s RLIKE 'a|b+'; s LIKE 'a%b_'; s LIKE '%a_é%'; s LIKE '_'
concat(s, '-', r); lower(trim(s)); CASE WHEN hour(ts) >= 8 THEN 'day' ELSE left(s, 1) END
coalesce(split_part(s, '=', 2), r); length(s) - length(replace(s, 'a', '')); if(instr(s, '?') > 0, 'q', 'n')
upper(substring(s, 1, 1)) = 'A'; concat(year(d), '-', month(d)); l div (i - i)
left(if(i <> 0 AND l div i > 3, s, 'z'), 1); left(if(size(split(s, ',')) > 1 AND split(s, ',')[1] = 'a', s, 'n'), 2)
left(if(i = 0 OR 7 <= l div i, s, 'z'), 1)
"""
"""Expressions that have equal functions; those of a text with characters outside ASCII are compared only there."""

OTHER = """
date_format(ts, 'EEEE'); date_format(ts, 'dd MMM'); date_format(ts, 'yyyy-DDD')
split(s, 'a|b')[0]; split(s, ',', 2)[0]; s RLIKE 'é'
regexp_extract(s, 'a.b', 0); regexp_extract(s, 'a$', 0); regexp_extract(s, '(a|b)*', 1)
s RLIKE '(?i)a'; s RLIKE 'a\\\\sb'
regexp_extract(s, '[a&&b]', 0); s LIKE 'a\\\\%b'; get_json_object(s, '$.a'); instr('abc', s)
replace(s, r, 'x'); s RLIKE r
substring(s, i, 2); split_part(s, '/', i); from_utc_timestamp(ts, 'Asia/Tokyo'); try_divide(l, i); sha2(s, 256)
concat_ws('-', s, r)
"""

PARTS = ("a", "b", "c", "ab", " ", "  ", "/", "?", ",", "&", "=", "id=", "-", "12", "0", "_", ".", "%", "A")
FOREIGN = ("é", "e\u0301", "ß", "日本", "😀", "\u2028", "\n", "\x85", "İ")


def expressions(texts: str) -> list[str]:
    return [one.strip() for line in texts.strip().splitlines() for one in line.split(";")]


def table(rng: Random, parts: tuple[str, ...], rows: int = 150) -> pa.Table:
    def text() -> str:
        return "".join(rng.choice(parts) for _ in range(rng.randrange(9)))

    first, last = dt.datetime(1, 1, 3), dt.datetime(9999, 12, 29)
    span = int((last - first).total_seconds())
    made = {
        "s": text, "r": text,
        "i": lambda: rng.choice((0, 1, -1, 2**31 - 1, -(2**31), rng.randrange(-50, 50))),
        "l": lambda: rng.choice((*(one for one in BIGINTS), rng.randrange(-(10**6), 10**6))),
        "x": lambda: rng.choice((0.0, -0.0, math.nan, math.inf, 2.675, -1.005, rng.uniform(-1e6, 1e6))),
        "ts": lambda: first + dt.timedelta(seconds=rng.randrange(span), microseconds=rng.randrange(10**6)),
        "d": lambda: dt.date(1, 1, 1) + dt.timedelta(days=rng.choice((0, 3_600_000, rng.randrange(3_600_000)))),
    }  # fmt: skip
    columns = {}
    for name, make in made.items():
        values = [None if rng.random() < 0.1 else make() for _ in range(rows)]
        values[-1] = None
        columns[name] = pa.array(values, TYPES[name])
    return pa.table(columns).slice(1)


def trees_of(catalyst: Catalyst, frame: DataFrame, texts: list[str]) -> list[Any]:
    """The trees of expressions, as the front end sees them."""
    plan = catalyst.clean(analysed(frame.selectExpr(*(f"{text} AS c{n}" for n, text in enumerate(texts)))))
    return [output.child() for output in items(plan.projectList())]


def shown(attempts: pa.StructArray) -> list[str]:
    """The values of attempts, as text."""
    values = attempts.field("v")
    if pa.types.is_temporal(values.type):
        values = values.view(pa.int64() if pa.types.is_timestamp(values.type) else pa.int32())
    failed = attempts.is_null().to_pylist()
    return ["raised" if one else repr(value) for one, value in zip(failed, values.to_pylist(), strict=True)]


@pytest.mark.parametrize(("parts", "zone"), [(PARTS, "UTC"), ((*PARTS, *FOREIGN), "+05:30")], ids=["ascii", "any"])
def test_functions_equal_sparks(spark: SparkSession, parts: tuple[str, ...], zone: str) -> None:
    session = spark.newSession()
    session.conf.set("spark.sql.session.timeZone", zone)
    catalyst, texts = Catalyst(session), expressions(COVERED)
    for seed in seeds(50, 1):
        rows = table(Random(seed + len(parts)), parts)
        frame = session.createDataFrame(rows)
        trees = trees_of(catalyst, frame, texts)
        made = [in_arrow(catalyst, tree) for tree in trees]
        assert not [text for text, one in zip(texts, made, strict=True) if one is None]
        attempts = (catalyst.column(catalyst.attempt(tree)).alias(f"c{n}") for n, tree in enumerate(trees))
        theirs = interpreted_table(frame.select(*attempts))
        batch = rows.combine_chunks().to_batches()[0]
        columns = {name: from_arrow(batch.column(name), kind) for name, kind in COLUMNS.items()}
        evaluator = Evaluator(columns, rows.num_rows)
        for n, (text, one) in enumerate(zip(texts, made, strict=True)):
            assert one is not None
            found = shown(as_attempted(evaluator(one), one.type, rows.num_rows))
            expected = shown(theirs.column(n).combine_chunks())
            assert found == expected, (text, [
                (row, ours, other) for row, ours, other in zip(rows.to_pylist(), found, expected, strict=True)
                if ours != other
            ][:3])  # fmt: skip


def test_other_expressions_are_left_to_spark(spark: SparkSession) -> None:
    session = spark.newSession()
    catalyst, frame = Catalyst(session), session.createDataFrame(table(Random(1), PARTS, 3))
    for text in expressions(OTHER):
        [tree] = trees_of(catalyst, frame, [text])
        assert in_arrow(catalyst, tree) is None, text
    session.conf.set("spark.sql.session.timeZone", "Europe/Berlin")
    [tree] = trees_of(catalyst, frame, ["hour(ts)"])
    assert in_arrow(catalyst, tree) is None


def test_values_that_may_differ_are_uncovered() -> None:
    ends = pa.array([0, 1], pa.int32()).buffers()[1]
    broken = pa.Array.from_buffers(pa.string(), 1, [None, ends, pa.py_buffer(b"\xff")])
    far = pa.array([2**62], pa.int64()).view(pa.timestamp("us", "UTC"))
    calls = {
        Call("reverse", (Column("s", "string"),), "string"): from_arrow(broken, "string"),
        Call("hour", (Column("s", "timestamp"), literal("UTC", "string")), "int"): from_arrow(far, "timestamp"),
    }
    for one, values in calls.items():
        with pytest.raises(Uncovered):
            Evaluator({"s": values}, 1)(one)


def test_patterns_that_java_and_re2_may_match_differently() -> None:
    found = r"a.b a$ (a)* (a a) \ba (?=a) [[a]] [a&&b] a** \1 é x{3 a\sb"
    for pattern in found.split():
        assert extracting(pattern, 0) is None, pattern


def test_a_pond_reads_files_with_arrow_although_the_model_lacks_a_function(spark: SparkSession, tmp_path: Path) -> None:
    """The last epoch has times that are not covered, so Spark reads it."""
    queries = {
        "parts": "SELECT l, split_part(s, '/', 2) AS p, i div i AS q FROM STREAM ev WHERE instr(s, 'a') > 0",
        "hours": "SELECT l, hour(ts) AS h, weekday(ts) AS w FROM STREAM ev WHERE minute(ts) > 20 OR ts IS NULL",
    }
    (tmp_path / "in").mkdir()
    for number in range(3):
        rows = table(Random(number), PARTS, 60)
        if number == 2:
            late = pa.array([253_402_300_800_000_000] * rows.num_rows, pa.int64()).cast(pa.timestamp("us", "UTC"))
            rows = rows.set_column(rows.schema.get_field_index("ts"), "ts", late)
        pq.write_table(rows, tmp_path / "in" / f"{number}.parquet")
    schema = ", ".join(f"{name} {kind}" for name, kind in COLUMNS.items())
    with Pond(spark, tmp_path / "pond") as pond:
        pond.load(f"CREATE TABLE ev ({schema}) USING parquet OPTIONS (path '{tmp_path}/in', maxFilesPerTrigger '1');")
        for name, text in queries.items():
            pond.add(name, text)
        pond.run(once=True)
        notes = {one.name: one.note for one in pond.status()}
        found = {name: pond.table(name).to_pylist() for name in queries}
    spark.read.schema(schema).parquet(str(tmp_path / "in")).createOrReplaceTempView("ev")
    for name, text in queries.items():
        text = text.replace("STREAM ", "")
        text = text.replace("i div i", "if(i = 0, NULL, i div i)")
        text += " AND coalesce(i, 1) <> 0" if name == "parts" else ""
        expected = interpreted_table(spark.sql(text)).to_pylist()
        assert sorted(map(repr, found[name])) == sorted(map(repr, expected)), name
    note = str(notes["read:ev"])
    assert "in 2 of 3 epochs" in note and note.endswith("a time is outside of the years 1 to 9999")
