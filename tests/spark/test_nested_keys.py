"""Arrays as keys and as compared columns, fields of JSON texts, and products, judged by Spark's batch."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from tests.spark.test_structs import COLUMNS, _events, _rows

from kit.inputs.event_files import write_json
from kit.judges.interpreted import interpreted_table
from millpond import Pond

pytestmark = pytest.mark.slow

LISTS = """SELECT l, e, array(d, -d) AS z, struct(k, l) AS s, size(l) AS size, get(e, 0).y AS y, count(*) AS n,
    window(ts, '30 minutes') AS at FROM {tx}
    GROUP BY l, e, array(d, -d), struct(k, l), window(ts, '30 minutes') HAVING size(l) > 0 OR l IS NULL"""
REPEATS = """SELECT DISTINCT l, struct(k, l AS m) AS s, cast(k AS BINARY) AS b FROM {tx}"""
FIELDS = """SELECT n, a, b, again FROM {tx} LATERAL VIEW
    json_tuple(element_at(array('{{"a":1.50,"b":{{"c" : [1, 2]}}}}', '{{"a":"é\\\\n","b":null}} ', 'bad',
    '{{"b":2,"a":1', '[{{"a":1}}]'), v + 1), 'a', 'b', 'a') t AS a, b, again"""
QUERIES = {"lists": LISTS, "fields": FIELDS, "repeats": REPEATS}


def _products(frame: DataFrame) -> DataFrame:
    frame = frame.repartition("k").coalesce(2).withColumn("s", F.col("s").withField("a", F.lit(1)).dropFields("b"))
    return frame.groupBy("k", F.window("ts", "20 minutes")).agg(F.product("v").alias("p"), F.count("v").alias("n"))


def _batch(frame: DataFrame) -> list[str]:
    return _rows(interpreted_table(frame).to_pylist())


def test_rows_are_those_of_sparks_batch_although_it_restarts(spark: SparkSession, tmp_path: Path) -> None:
    source = tmp_path / "in"

    def declare(pond: Pond) -> None:
        pond.load(f"CREATE TABLE tx ({COLUMNS}) USING json OPTIONS (path '{source}', maxFilesPerTrigger '1');")
        for name, text in QUERIES.items():
            pond.add(name, text.format(tx="STREAM tx WATERMARK ts DELAY OF INTERVAL 3 HOURS"))
        frame = spark.readStream.schema(COLUMNS).option("maxFilesPerTrigger", "1").json(str(source))
        pond.add("products", _products(frame.withWatermark("ts", "3 hours")))

    for number in range(2):
        write_json(source, number, _events(number, 50))
    with Pond(spark, tmp_path / "pond", instances=2) as pond:
        declare(pond)
        pond.run()
    write_json(source, 2, _events(2, 50))
    with Pond(spark, tmp_path / "pond", instances=2) as pond:
        declare(pond)
        pond.run(drain=True)
        ours = {name: _rows(pond.table(name).to_pylist()) for name in (*QUERIES, "products")}
        assert not pond.problems()
    spark.read.schema(COLUMNS).json(str(source)).createOrReplaceTempView("nested_tx")
    assert ours["products"] == _batch(_products(spark.table("nested_tx")))
    for name, text in QUERIES.items():
        assert ours[name] == _batch(spark.sql(text.format(tx="nested_tx"))), name
