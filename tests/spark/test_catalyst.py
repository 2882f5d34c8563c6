"""The front end's calls of the JVM: equal facts as one by one, in few calls; names of any kind."""

from __future__ import annotations

import pytest
from py4j.java_gateway import JavaObject
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from kit.costs.jvm_calls import jvm_calls
from millpond.spark.catalyst.private_names import (
    Catalyst,
    analysed,
    attributes_of,
    computed_in,
    items,
    kind_of,
    span_of,
)
from millpond.spark.catalyst.text_span import TextSpan
from millpond.spark.frontend.frontend import FrontEnd
from millpond.spark.session.session import reading_session

WM = "STREAM tx WATERMARK ts DELAY OF INTERVAL 1 SECOND"
TYPES = (
    "ts TIMESTAMP, `a#7L` BIGINT, `b AS c#1` STRING, `d\u0001` INT, d DECIMAL(10,2), "
    "s STRUCT<x: BIGINT, `y z`: ARRAY<STRING>>, m MAP<STRING, DATE>, i INTERVAL DAY TO SECOND, n TIMESTAMP_NTZ"
)


@pytest.fixture(scope="module")
def front(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> FrontEnd:
    folder = tmp_path_factory.mktemp("tx")
    front = FrontEnd(spark.newSession())  # without the views of other tests, which cost calls too
    spark.createDataFrame([("a", 1)], "c STRING, v BIGINT").write.parquet(str(folder / "dim"))
    (folder / "in").mkdir()
    columns = ", ".join(f"c{n} DOUBLE" for n in range(20))
    front.load_file(
        f"CREATE TABLE tx (ts TIMESTAMP, c STRING, v BIGINT, {columns}) USING parquet OPTIONS (path '{folder}/in');"
        f"CREATE TEMPORARY VIEW dim USING parquet OPTIONS (path '{folder}/dim')"
    )
    return front


def test_a_query_costs_few_calls_whatever_the_width_of_its_stream(front: FrontEnd) -> None:
    window = "window(ts, '1 hour', '1 minute')"
    text = f"SELECT c, {window} AS w, sum(v) AS s, count(*) AS n FROM {WM} WHERE v > 3 GROUP BY ALL"
    front.query_from_sql("warm", text)
    with jvm_calls() as sent:
        front.query_from_sql("q", text)
    assert len(sent) < 520, len(sent)


def test_names_of_spark_are_checked_once_in_a_jvm(front: FrontEnd, spark: SparkSession) -> None:
    with jvm_calls() as sent:
        FrontEnd(spark.newSession())
    assert len(sent) < 60, len(sent)


def test_names_in_the_jvm_are_looked_up_once(spark: SparkSession) -> None:
    jvm = reading_session(spark)._jvm
    assert jvm is spark._jvm and jvm is not None

    def lookups() -> list[str]:
        with jvm_calls() as sent:
            assert jvm.py4j.reflection.TypeUtil.isInstanceOf(jvm.java.lang.Object._java_lang_class, "x")
            assert isinstance(jvm.PythonUtils.toSeq([1]), JavaObject)
            assert jvm.com.acme.Missing is not jvm.com.acme.Missing, "a jar with this class may be added later"
            assert jvm.java.lang.Integer.MAX_VALUE == 2**31 - 1
        return [command.split("\n")[2] for command in sent if command.startswith("r\nu\n")]

    lookups()
    assert lookups() == ["com", "com.acme", "com.acme.Missing"] * 2


def test_columns_of_a_plan_in_few_calls(spark: SparkSession) -> None:
    frame = spark.createDataFrame([], TYPES).withWatermark("ts", "90 seconds")
    plan = analysed(frame)
    with jvm_calls() as sent:
        found = attributes_of(plan)
    assert [(one.name, one.hidden) for one in found] == [(name, False) for name in frame.columns]
    assert [one.id for one in found] == [one.exprId().id() for one in items(plan.output())]
    assert [one.type for one in found][5:7] == ["struct<x:bigint,`y z`:array<string>>", "map<string,date>"]
    assert len(sent) < 8
    stream = analysed(spark.readStream.format("rate").load().withWatermark("timestamp", "90 seconds"))
    assert [one.metadata for one in attributes_of(stream)] == [{"spark.watermarkDelayMs": 90_000}, {}]


def test_what_a_projection_computes(spark: SparkSession) -> None:
    frame = spark.createDataFrame([], TYPES).withWatermark("ts", "90 seconds")
    plan = analysed(frame.withColumn("x", F.col("`a#7L`") + 1).withColumnRenamed("d", "e"))
    for node, name in ((plan, "e"), (plan.child(), "x")):
        for found in (items(node.projectList()), computed_in(node)):
            assert [str(one.name()) for one in found if kind_of(one) == "Alias"] == [name]
    plain = analysed(frame.drop("d\u0001").withColumn("x", F.col("`a#7L`") + 1))
    assert [kind_of(one) for one in computed_in(plain)] == ["Alias"]


def test_places_and_names_of_views(spark: SparkSession) -> None:
    catalyst = Catalyst(spark)
    text = "SELECT a,\n b + 1 FROM t"
    plan = catalyst.parse(text)
    assert span_of(items(plan.projectList())[1].child()) == TextSpan(text, 11, 16)
    assert span_of(analysed(spark.range(1))) is None
    for name in ("odd name", "odd`one"):
        spark.range(1).createOrReplaceTempView("`" + name.replace("`", "``") + "`")
    try:
        assert {"odd name", "odd`one"} <= set(catalyst.temporary().views)
    finally:
        for name in ("odd name", "odd`one"):
            spark.catalog.dropTempView(name)


def test_the_same_join_with_an_aggregated_table_is_the_same_stream(front: FrontEnd) -> None:
    text = (
        f"SELECT tx.c, count(*) AS n FROM {WM} JOIN (SELECT c, max(v) AS most FROM dim GROUP BY c) AS d USING (c) "
        "WHERE tx.v < most GROUP BY tx.c, window(ts, '1 hour')"
    )
    first, second = front.query_from_sql("first", text), front.query_from_sql("second", text)
    assert first.stream == second.stream
