"""Every query of the list, in Spark's own batch engine and in one pond: the same columns, types and rows."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from kit.judges.interpreted import interpreted, interpreted_table
from kit.judges.recorded import RecordedAnswers
from millpond import Pond
from millpond.model.endpoints import Sink
from millpond.plan.explain.plan_text import explain

# not imported by its name, so that Spark ships its functions themselves to workers, which cannot import a test
_spec = importlib.util.spec_from_file_location("query_list", Path(__file__).parent / "queries" / "query_list.py")
assert _spec is not None and _spec.loader is not None
_list = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_list)
BATCH, FRAMES, SQL, STATIC, TABLES, TIMES, VIEWS = (
    _list.BATCH, _list.FRAMES, _list.SQL, _list.STATIC, _list.TABLES, _list.TIMES, _list.VIEWS,
)  # fmt: skip

pytestmark = pytest.mark.slow

ROWS = 160
NAMES = [*SQL, *FRAMES]
RECORDED = RecordedAnswers(__file__, Path(__file__).read_text(), Path(_list.__file__).read_text())


class Answers:
    """What a pond and what Spark say to every query."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        _write(spark, folder)
        streams, tables = _streams(spark, folder), _tables(spark, folder)
        for name in (*TABLES, *STATIC):
            tables[name].createOrReplaceTempView(name)
        spark.sql("CREATE OR REPLACE TEMPORARY FUNCTION taxed(x DOUBLE) RETURNS DOUBLE RETURN x * 1.25D")
        spark.udf.register("risk", lambda kind, amount: f"{kind}:{int(amount) % 2}", "string")
        with Pond(spark, folder / "pond") as pond:
            pond.load(_declarations(folder))
            for name, text in SQL.items():
                pond.add(name, text)
            for name, frame in FRAMES.items():
                pond.add(name, frame(streams))
            pond.run(once=True, drain=True)
            self.explained = explain(pond.plan, pond.streams)
            self.ours = {name: pond.table(name) for name in NAMES}
            self.pond = pond
        for name, text in VIEWS.items():
            spark.sql(text).createOrReplaceTempView(name)
        self.ask: dict[str, Callable[[], DataFrame]] = {}
        for name, text in (SQL | BATCH).items():
            self.ask[name] = lambda text=text: spark.sql(text)
        for name, frame in FRAMES.items():
            self.ask[name] = lambda frame=frame: frame(tables)


def _write(spark: SparkSession, folder: Path) -> None:
    for name, (columns, made) in TABLES.items():
        names = ", ".join(column.split()[0] for column in columns.split(", "))
        spark.range(0, ROWS, 1, 2).createOrReplaceTempView("ids")  # two files, two epochs
        frame = spark.sql(f"SELECT * FROM (SELECT {made} FROM ids) AS t({names})")
        frame.write.parquet(str(folder / name))
    for name, (format_, text) in STATIC.items():
        spark.sql(text).coalesce(1).write.option("header", True).format(format_).save(str(folder / name))
    spark.catalog.dropTempView("ids")


def _tables(spark: SparkSession, folder: Path) -> dict[str, DataFrame]:
    found = {name: spark.read.schema(columns).parquet(str(folder / name)) for name, (columns, _) in TABLES.items()}
    return found | _static(spark, folder)


def _static(spark: SparkSession, folder: Path) -> dict[str, DataFrame]:
    found = {name: spark.read.parquet(str(folder / name)) for name, (format_, _) in STATIC.items() if format_ != "csv"}
    sites = spark.read.schema("site int, hall string, most double").option("header", True)
    found["sites"] = sites.csv(str(folder / "sites"))
    found["rows"] = spark.createDataFrame([("pos", 1), ("atm", 2)], "kind string, weight int")
    return found


def _streams(spark: SparkSession, folder: Path) -> dict[str, DataFrame]:
    found = _static(spark, folder)
    for name, (columns, _) in TABLES.items():
        reader = spark.readStream.schema(columns).option("maxFilesPerTrigger", 1)
        found[name] = reader.parquet(str(folder / name)).withWatermark(TIMES[name], "30 days")
    return found


def _declarations(folder: Path) -> str:
    """The streams and views of the list, as a pond file; a view carries the watermark of each stream."""
    lines = []
    for name, (columns, _) in TABLES.items():
        lines += [
            f"CREATE TABLE {name}_s ({columns}) USING parquet OPTIONS (path '{folder / name}', maxFilesPerTrigger 1);",
            f"CREATE TEMPORARY VIEW {name} AS SELECT * FROM STREAM {name}_s "
            f"WATERMARK {TIMES[name]} DELAY OF INTERVAL 30 DAYS;",
        ]
    sites = f"OPTIONS (path '{folder / 'sites'}', header true)"
    lines.append(f"CREATE TEMPORARY VIEW sites (site INT, hall STRING, most DOUBLE) USING csv {sites};")
    lines += [
        f"CREATE TEMPORARY VIEW {name} USING parquet OPTIONS (path '{folder / name}');"
        for name, (format_, _) in STATIC.items() if format_ == "parquet"
    ]  # fmt: skip
    lines += [f"CREATE TEMPORARY VIEW {name} AS {text};" for name, text in VIEWS.items()]
    return "\n".join(lines)


@pytest.fixture(scope="module")
def answers(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Answers:
    """Of a pond whose plan is not compiled: that would cost most, and ponds of other tests do it."""
    with interpreted(spark):
        return Answers(spark, tmp_path_factory.mktemp("answers"))


def test_the_list_is_long_enough() -> None:
    assert len(NAMES) == len({*NAMES}) >= 200


@pytest.mark.parametrize("name", NAMES)
def test_a_query_has_sparks_columns_types_and_rows(spark: SparkSession, answers: Answers, name: str) -> None:
    ours = _answer(answers.ours[name])
    theirs = RECORDED.answer(name, SQL.get(name), ours, lambda: _answer(interpreted_table(answers.ask[name]())))
    assert ours[0] == theirs[0]
    assert theirs[1], "a query without rows proves nothing"
    assert ours[1] == theirs[1]


def _answer(table: pa.Table) -> tuple[list[tuple[str, str]], list[str]]:
    return _shape(table), _rows(table)


def _shape(table: pa.Table) -> list[tuple[str, str]]:
    return [(field.name, str(field.type).replace(" not null", "")) for field in table.schema]


def _rows(table: pa.Table) -> list[str]:
    return sorted(repr([_shown(value) for value in row.values()]) for row in table.to_pylist())


def _shown(value: object) -> object:
    if isinstance(value, list):  # Spark collects in the order in which events come, a pond in that of time
        return sorted(value, key=repr)
    # Spark adds doubles in the order in which they come, a pond exactly
    return format(value, ".10g") if isinstance(value, float) else value


def test_each_source_is_read_once(answers: Answers) -> None:
    """Streams that queries derive are copies of rows behind one scan: Spark's offsets name each source once."""
    [offsets] = list((Path(str(answers.pond.address)) / "spark").glob("*/offsets/0"))
    sources = [line.partition(":")[0] for line in offsets.read_text().splitlines()[2:]]
    assert sorted(sources) == sorted(f"{name}_s" for name in TABLES)


def test_equal_joins_are_one_source(answers: Answers) -> None:
    """An inner and a left join, in SQL or as a DataFrame, with another condition beside it, share one source."""
    names = ("join", "left_join", "right_join", "join_on", "df_join", "df_broadcast")
    assert len({query.stream for query in answers.pond.queries if query.name in names}) == 1
    assert "is computed while tx_s is read" in answers.explained


def test_a_pond_with_derived_streams_goes_on(spark: SparkSession, tmp_path: Path) -> None:
    """A second program finds the same joins, unions and functions, and reads on where the first one stopped."""
    columns, _ = TABLES["tx"]
    known = spark.createDataFrame([("m1", "eu"), ("m2", "us")], "merchant string, region string")

    def write(start: int) -> None:
        rows = spark.range(start, start + 40, 1, 1).selectExpr(
            "id", "concat('c', id % 3) AS card", "concat('m', id % 4) AS merchant", "'pos' AS kind",
            "id * 0.5D AS amount", "cast(id % 5 AS int) AS qty", "true AS flagged", "timestamp_seconds(id * 60) AS ts",
        )  # fmt: skip
        rows.write.mode("append").parquet(str(tmp_path / "tx"))

    def ask(tx: DataFrame) -> dict[str, DataFrame]:
        hour = F.window("ts", "1 hour")
        shift = F.udf(lambda amount: 10 // int(amount), "int")
        both = tx.select("card", "ts").union(tx.where("qty > 2").select("merchant", "ts"))
        return {
            "join": tx.join(known, "merchant").groupBy("region", hour).count(),
            "union": both.groupBy("card", hour).count(),
            "anti": tx.join(known, "merchant", "left_anti").groupBy("card", hour).count(),
            "among": tx.where(tx.merchant.isin(known.select("merchant"))).select("id"),
            "function": tx.where("amount >= 1").groupBy(shift("amount").alias("k"), hour).count(),
        }

    (tmp_path / "tx").mkdir()
    stream = spark.readStream.schema(columns).parquet(str(tmp_path / "tx")).withWatermark("ts", "1 minute")
    for start in (0, 40):
        write(start)
        with Pond(spark, tmp_path / "pond") as pond:
            for name, frame in ask(stream).items():
                pond.add(name, frame, sink=Sink("parquet", str(tmp_path / name)))
            pond.run(once=True, drain=start > 0)
    for name, frame in ask(spark.read.schema(columns).parquet(str(tmp_path / "tx"))).items():
        written = spark.read.schema(frame.schema).parquet(str(tmp_path / name))
        assert _rows(written.toArrow()) == _rows(frame.toArrow()) != []
