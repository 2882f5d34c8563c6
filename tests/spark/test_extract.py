"""SQL texts and DataFrames become the queries they mean; what is not supported is refused by name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from kit.costs.thread_cpu import ThreadCpu
from kit.inputs.one_stream import front_end
from millpond.errors import MillpondError, QueryError, QueryRefused, QueryTypeError, UnsupportedQuery
from millpond.model.aggregates import APPROX_DISTINCT, PERCENTILE, Aggregate
from millpond.model.endpoints import Sink, Source
from millpond.model.expressions import Column, Expression, Foreign, Literal, call, literal, render
from millpond.model.query import Deduplication, Named, Query
from millpond.model.selection import Selection, foreign_keys
from millpond.model.stream import Field, Stream
from millpond.model.types import WINDOW
from millpond.model.windows import Session, Sliding
from millpond.spark.analysis.properties import Mode
from millpond.spark.analysis.windows import tumbling_twin
from millpond.spark.catalyst.private_names import JavaObject, analysed, children, items
from millpond.spark.frontend import frontend
from millpond.spark.frontend.frontend import FrontEnd
from millpond.spark.frontend.gate import judge, parse
from millpond.spark.frontend.window_functions import window
from millpond.spark.reading.read_frame import EventTime
from millpond.spark.session.session import reading_session

SCHEMA = (
    "id BIGINT, customer STRING, kind STRING, amount DOUBLE, ts TIMESTAMP, i INT, f FLOAT, b BOOLEAN, "
    "dt DATE, d DECIMAL(10,2), items ARRAY<STRUCT<price:DOUBLE>>, raw STRING, n TIMESTAMP_NTZ"
)
HOUR = 3_600_000_000
W = "window(ts, '1 hour')"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tx")


@pytest.fixture(scope="module")
def front(spark: SparkSession, folder: Path) -> FrontEnd:
    return front_end(spark, SCHEMA, folder)


def frame(spark: SparkSession, folder: Path) -> DataFrame:
    reader = spark.readStream.schema(SCHEMA)
    return reader.parquet(str(folder)).withWatermark("ts", "10 seconds")


def column(name: str) -> Expression:
    kinds = {"amount": "double", "i": "int", "kind": "string", "ts": "timestamp", "f": "float", "id": "bigint"}
    return Column(name, kinds.get(name, "string"))


CUSTOMER, AMOUNT, KIND, INT = column("customer"), column("amount"), column("kind"), column("i")
COUNT = Aggregate("count", None, None, "bigint")
SUM = Aggregate("sum", AMOUNT, None, "double")
POS = call("eq", (KIND, literal("pos", "string")), "boolean")
ONE = literal(1.0, "double")


def test_a_whole_query(front: FrontEnd) -> None:
    text = (
        "SELECT customer AS c, window(ts, '1 hour', '10 minutes') AS w, sum(amount) AS total "
        "FROM STREAM tx WATERMARK ts DELAY OF INTERVAL 30 SECONDS WHERE kind = 'pos' GROUP BY ALL HAVING count(*) > 3"
    )
    query = front.query_from_sql("q", text, sink=Sink("console"), serve=True)
    assert query == Query(
        name="q",
        stream="tx",
        event_time="ts",
        delay_us=30_000_000,
        window=Sliding(HOUR, HOUR // 6),
        keys=(CUSTOMER,),
        aggregates=(SUM, COUNT),
        output=(
            Named("c", Column("key:0", "string")),
            Named("w", Column("window", WINDOW)),
            Named("total", Column("agg:0", "double")),
        ),
        where=POS,
        having=call("gt", (Column("agg:1", "bigint"), literal(3, "bigint")), "boolean"),
        sink=Sink("console"),
        serve=True,
        text=text,
    )


WINDOWS = [
    ("window(ts, '1 hour')", Sliding(HOUR, HOUR)),
    ("window(ts, '7 days', '1 second')", Sliding(168 * HOUR, 1_000_000)),
    ("window(ts, '1 week')", Sliding(168 * HOUR, 168 * HOUR)),
    ("window(ts, INTERVAL 1 HOUR, INTERVAL '10' MINUTE)", Sliding(HOUR, HOUR // 6)),
    ("window(ts, INTERVAL '1' DAY, '3600 seconds', '5 minutes')", Sliding(24 * HOUR, HOUR, HOUR // 12)),
    ("window(ts, '1 hour 30 minutes')", Sliding(HOUR * 3 // 2, HOUR * 3 // 2)),
    ("window(ts, INTERVAL '1:30' HOUR TO MINUTE)", Sliding(HOUR * 3 // 2, HOUR * 3 // 2)),
    ("window(ts, '1 hour', '1 hour', '-5 minutes')", Sliding(HOUR, HOUR, HOUR * 11 // 12)),
    ("window(ts, '10 seconds', '4 seconds')", Sliding(10_000_000, 4_000_000)),
    (
        "window(timeColumn => ts, slideDuration => '1 second', windowDuration => '2 seconds')",
        Sliding(2_000_000, 1_000_000),
    ),
]


@pytest.mark.parametrize(("text", "window"), WINDOWS)
def test_windows_from_text(front: FrontEnd, text: str, window: Sliding) -> None:
    query = front.query_from_sql("q", f"SELECT count(*) AS n FROM tx GROUP BY {text}")
    assert (query.window, query.keys, query.aggregates) == (window, (), (COUNT,))


@pytest.mark.parametrize(
    ("arguments", "window"),
    [
        (("1 hour",), Sliding(HOUR, HOUR)),
        (("1 hour", "10 minutes"), Sliding(HOUR, HOUR // 6)),
        (("1 hour", "10 minutes", "2 minutes"), Sliding(HOUR, HOUR // 6, HOUR // 30)),
        (("10 seconds", "4 seconds"), Sliding(10_000_000, 4_000_000)),
    ],
)
def test_windows_from_frames(
    spark: SparkSession, front: FrontEnd, folder: Path, arguments: tuple[str, ...], window: Sliding
) -> None:
    source = frame(spark, folder).groupBy(F.window("ts", *arguments), "customer").count()
    query = front.query_from_dataframe("q", source)
    assert (query.window, query.stream, query.where, query.keys) == (window, "tx", None, (CUSTOMER,))


LONG = Sliding(168 * HOUR, 1_000_000)


def test_a_long_hop_in_a_text_is_never_expanded(front: FrontEnd) -> None:
    text = "SELECT customer, count(*) AS n FROM tx GROUP BY customer, window(ts, '7 days', '1 second')"
    twin = tumbling_twin(front._catalyst, text, judge(parse(front._catalyst, text), ["tx"]).windows)
    assert _size(front, front._catalyst.clean(analysed(front._spark.sql(twin.text)))) < 200
    cpu = ThreadCpu(front._spark)
    assert front.query_from_sql("q", text).window == LONG
    assert cpu.seconds() < 5  # 0.1 s; expanded it would end in OutOfMemory


def test_a_long_hop_in_a_frame_is_never_expanded(spark: SparkSession, front: FrontEnd, folder: Path) -> None:
    cpu = ThreadCpu(spark)
    source = frame(spark, folder).groupBy(window("ts", "7 days", "1 second"), "customer").count().where("count > 1")
    assert _size(front, front._catalyst.clean(analysed(source))) < 300
    query = front.query_from_dataframe("q", source)
    assert cpu.seconds() < 5
    assert (query.window, query.stream, query.where, query.keys) == (LONG, "tx", None, (CUSTOMER,))
    assert [column.name for column in query.output] == ["window", "customer", "count"]
    offset = frame(spark, folder).groupBy(window(F.col("ts"), "1 hour", "10 minutes", "-1 minute").alias("w")).count()
    assert front.query_from_dataframe("q", offset).window == Sliding(HOUR, HOUR // 6, HOUR * 9 // 60)
    hours = (("1 hour", "2 hours"), ("1 hour", "0 seconds"), ("1 hour", "1 microsecond"))
    for wrong in (("1 month",), ("an hour",), *hours):
        with pytest.raises(QueryTypeError):
            window("ts", *wrong)


def test_a_frame_with_our_window_does_not_run_in_spark(spark: SparkSession) -> None:
    times = spark.range(3).select(F.timestamp_seconds("id").alias("ts"))
    with pytest.raises(PySparkException, match="only a pond answers"):
        times.groupBy(window("ts", "1 hour", "1 minute")).count().collect()


def _size(front: FrontEnd, plan: JavaObject) -> int:
    """How many nodes a plan and its expressions have."""
    stack, count = [plan], 0
    while stack:
        node = stack.pop()
        count += 1
        stack.extend(children(node))
        if not front._catalyst.is_expression(node):
            stack.extend(items(node.expressions()))
    return count


def test_window_time_is_the_last_microsecond(front: FrontEnd) -> None:
    inner = "SELECT window(ts, '1 hour', '1 minute') AS w, count(*) AS n FROM tx GROUP BY ALL"
    query = front.query_from_sql("q", f"SELECT window_time(w) AS t, n FROM ({inner})")
    assert query.output[0] == Named("t", Column("window.time", "timestamp"))


def test_joins_and_unions_are_streams_of_their_own(spark: SparkSession, front: FrontEnd) -> None:
    """The same join is the same stream, however it is written; another table, key or branch is another."""
    spark.range(3).selectExpr("id", "'x' AS tag").createOrReplaceTempView("tags")
    spark.range(4).selectExpr("id", "'x' AS tag").createOrReplaceTempView("others")

    def stream(text: str) -> str:
        return front.query_from_sql("q", f"SELECT count(*) AS n FROM {text} GROUP BY window(ts, '1 hour')").stream

    join = stream("tx JOIN tags USING (id)")
    assert join == stream("tx LEFT JOIN tags ON tags.id = tx.id")
    assert join == stream("(SELECT * FROM tx WHERE i > 1) JOIN tags USING (id)")
    assert len({join, stream("tx JOIN others USING (id)"), stream("tx JOIN tags ON tags.id = tx.i"), "tx"}) == 4
    union = stream("(SELECT ts, kind FROM tx UNION ALL SELECT ts, customer FROM tx WHERE i > 1)")
    assert union == stream("(SELECT ts, kind FROM tx UNION ALL SELECT ts, customer AS k FROM tx WHERE i > 1)")
    assert union != stream("(SELECT ts, kind FROM tx UNION ALL SELECT ts, customer FROM tx WHERE i > 2)")
    assert front.streams[join].derived is not None and "LEFT JOIN" in front.streams[join].derived.text


def test_a_table_joins_each_branch_of_nested_unions(front: FrontEnd) -> None:
    counts = "SELECT kind AS k, window(ts, '1 hour') AS w, count(*) AS n FROM tx GROUP BY ALL"
    united = f"SELECT k FROM ({counts}) UNION ALL SELECT k FROM ({counts}) UNION ALL SELECT customer FROM tx"
    text = f"SELECT u.k, x FROM ({united}) AS u JOIN (VALUES ('a', 1)) AS d(k, x) ON u.k = d.k"
    query = front.query_from_sql("q", text)
    assert isinstance(query, Selection) and len(front.streams[query.stream].steps) == 2


def test_sub_queries_over_a_table_are_joins_that_queries_share(
    spark: SparkSession, front: FrontEnd, folder: Path
) -> None:
    spark.range(3).selectExpr("id", "'x' AS tag").write.mode("overwrite").parquet(str(folder.parent / "few"))
    front.table("few", Source("parquet", (("path", str(folder.parent / "few")),)))

    def read(text: str) -> Query:
        query = front.query_from_sql("q", f"SELECT count(*) AS n FROM tx {text} GROUP BY {W}")
        assert isinstance(query, Query)
        return query

    texts = [f"WHERE {no}EXISTS (SELECT 1 FROM few WHERE few.id = tx.id)" for no in ("", "NOT ")]
    texts += [f"LEFT {kind} JOIN few ON few.id = tx.id" for kind in ("SEMI", "ANTI")]
    semi, anti, *joined = [read(text) for text in (*texts, "WHERE id IN (SELECT id FROM few)")]
    assert len({query.stream for query in (semi, anti, *joined)}) == 1
    assert [query.where for query in joined] == [semi.where, anti.where, semi.where]
    assert semi.where != anti.where and read("WHERE id NOT IN (SELECT id FROM few)").stream != semi.stream
    known = front.streams[semi.stream]
    assert known.derived is not None and "EXISTENCE JOIN parquet" in known.derived.text
    for text, what, cure in (
        ("WHERE kind = (SELECT tag FROM few)", "more than one row", "max(v)"),
        ("WHERE id IN (SELECT id FROM few ORDER BY id LIMIT 2)", "Limit", "to a table"),
        ("WHERE id IN (SELECT id FROM few a WHERE EXISTS (SELECT 1 FROM few b WHERE b.id = a.id))", "another", "join"),
        ("WHERE i < (SELECT max(id) FROM few WHERE few.id < tx.id)", "than an equality", "by equalities"),
    ):
        with pytest.raises(UnsupportedQuery, match=what) as caught:
            read(text)
        assert cure in caught.value.cure


def test_a_union_of_streams_waits_for_the_slowest(spark: SparkSession, front: FrontEnd, tmp_path: Path) -> None:
    here = spark.readStream.schema("k STRING, ts TIMESTAMP").json(str(tmp_path))
    there = spark.readStream.schema("k STRING, ts TIMESTAMP").csv(str(tmp_path))
    below = here.withWatermark("ts", "1 minute").union(there.withWatermark("ts", "1 minute"))
    above = here.union(there).withWatermark("ts", "1 minute")
    hour = F.window("ts", "1 hour")
    queries = [front.query_from_dataframe("q", source.groupBy(hour).count()) for source in (below, above)]
    order, none = (front.streams[query.stream].order for query in queries)
    assert none is None and order is not None
    assert (order.offset, len(order.partitions), len({query.stream for query in queries})) == (None, 2, 2)


def test_a_python_function_is_known_by_what_it_does(spark: SparkSession, front: FrontEnd, folder: Path) -> None:
    def key(function: object) -> Expression:
        source = frame(spark, folder).groupBy(F.udf(function, "string")("kind"), F.window("ts", "1 hour")).count()
        return front.query_from_dataframe("q", source).keys[0]

    upper, lower = (lambda text: text.upper()), (lambda text: text.lower())
    assert isinstance(key(upper), Foreign)
    assert key(upper) == key(upper) != key(lower)


PAIR = call("and", tuple(call("isnotnull", (c,), "boolean") for c in (AMOUNT, INT)), "boolean")
DOUBLES = call(
    "and", tuple(call("isnotnull", (c,), "boolean") for c in (AMOUNT, call("cast", (INT,), "double"))), "boolean"
)
HALF = literal(0.5, "double")
AGGREGATES = [
    ("count(*)", COUNT),
    ("count(1)", COUNT),
    ("count(amount)", Aggregate("count", AMOUNT, None, "bigint")),
    (
        "count(amount, kind)",
        Aggregate(
            "count",
            None,
            call("and", tuple(call("isnotnull", (c,), "boolean") for c in (AMOUNT, KIND)), "boolean"),
            "bigint",
        ),
    ),
    ("count_if(kind = 'pos')", Aggregate("count", None, POS, "bigint")),
    ("count(*) FILTER (WHERE kind = 'pos')", Aggregate("count", None, POS, "bigint")),
    ("count(CASE WHEN kind = 'pos' THEN 1 END)", Aggregate("count", None, POS, "bigint")),
    ("sum(amount)", SUM),
    ("sum(i)", Aggregate("sum", INT, None, "bigint")),
    ("sum(f)", Aggregate("sum", column("f"), None, "double")),
    ("sum(amount) FILTER (WHERE kind = 'pos')", Aggregate("sum", AMOUNT, POS, "double")),
    ("sum(CASE WHEN kind = 'pos' THEN amount END)", Aggregate("sum", AMOUNT, POS, "double")),
    ("sum(if(kind = 'pos', amount, NULL))", Aggregate("sum", AMOUNT, POS, "double")),
    ("avg(i)", Aggregate("avg", INT, None, "double")),
    ("mean(amount)", Aggregate("avg", AMOUNT, None, "double")),
    ("min(i)", Aggregate("min", INT, None, "int")),
    ("max(DISTINCT i)", Aggregate("max", INT, None, "int")),
    ("bit_and(i)", Aggregate("bit_and", INT, None, "int")),
    ("bit_or(i)", Aggregate("bit_or", INT, None, "int")),
    ("bit_xor(i) FILTER (WHERE kind = 'pos')", Aggregate("bit_xor", INT, POS, "int")),
    ("max(ts)", Aggregate("max", column("ts"), None, "timestamp")),
    ("min(dt)", Aggregate("min", Column("dt", "date"), None, "date")),
    ("std(amount)", Aggregate("stddev_samp", AMOUNT, None, "double")),
    ("stddev_pop(amount)", Aggregate("stddev_pop", AMOUNT, None, "double")),
    ("variance(i)", Aggregate("var_samp", call("cast", (INT,), "double"), None, "double")),
    ("var_pop(amount)", Aggregate("var_pop", AMOUNT, None, "double")),
    ("sum(amount * 2)", Aggregate("sum", call("multiply", (AMOUNT, literal(2.0, "double")), "double"), None, "double")),
    ("max(b)", Aggregate("max", Column("b", "boolean"), None, "boolean")),
    ("every(b)", Aggregate("min", Column("b", "boolean"), None, "boolean")),
    ("bool_or(b) FILTER (WHERE kind = 'pos')", Aggregate("max", Column("b", "boolean"), POS, "boolean")),
    ("corr(amount, i)", Aggregate("corr", AMOUNT, None, "double", call("cast", (INT,), "double"))),
    ("covar_samp(if(kind = 'pos', amount, NULL), amount)", Aggregate("covar_samp", AMOUNT, POS, "double", AMOUNT)),
    ("regr_slope(amount, i)", Aggregate("regr_slope", AMOUNT, None, "double", call("cast", (INT,), "double"))),
    ("approx_count_distinct(kind)", Aggregate(APPROX_DISTINCT, KIND, None, "bigint", literal(0.05, "double"))),
    (
        "approx_count_distinct(if(kind = 'pos', i, NULL), 0.1)",
        Aggregate(APPROX_DISTINCT, INT, POS, "bigint", literal(0.1, "double")),
    ),
    ("percentile_approx(amount, 0.5)", Aggregate(PERCENTILE, AMOUNT, None, "double", parameters=(HALF,))),
    (
        "approx_percentile(i, array(0.5, 0.5), 100)",
        Aggregate(PERCENTILE, INT, None, "array<int>", parameters=(HALF, HALF), accuracy=100),
    ),
    ("regr_avgx(amount, i)", Aggregate("avg", INT, PAIR, "double")),
    ("regr_syy(amount, i)", Aggregate("regr_sxx", AMOUNT, DOUBLES, "double")),
    ("regr_count(amount, i)", Aggregate("count", None, PAIR, "bigint")),
]


@pytest.mark.parametrize(("text", "aggregate"), AGGREGATES)
def test_aggregates(front: FrontEnd, text: str, aggregate: Aggregate) -> None:
    assert front.query_from_sql("q", f"SELECT {text} AS a FROM tx GROUP BY {W}").aggregates == (aggregate,)


CONDITIONS = [
    ("kind = 'pos'", "(kind = 'pos')"),
    ("'pos' = kind", "(kind = 'pos')"),
    ("amount > 10", "(amount > 10.0)"),
    ("10 < amount", "(amount > 10.0)"),
    ("amount > 1 + 1", "(amount > 2.0)"),
    ("amount BETWEEN 1 AND 2.5", "((amount >= 1.0) and (amount <= 2.5))"),
    ("kind IN ('b', 'a', 'b')", "in(kind, 'a', 'b')"),
    ("kind IN ('a')", "(kind = 'a')"),
    ("kind LIKE 'a%'", "startswith(kind, 'a')"),
    ("kind LIKE '%a'", "endswith(kind, 'a')"),
    ("kind LIKE '%a%'", "contains(kind, 'a')"),
    ("kind LIKE 'a'", "(kind = 'a')"),
    ("kind LIKE '%%a' ESCAPE '%'", "FOREIGN"),
    ("NOT (kind <=> NULL)", "not((kind <=> none))"),
    ("nvl(kind, 'x') = 'x'", "(coalesce(kind, 'x') = 'x')"),
    ("nullif(i, 3) = 4", "(case((i = 3), none, i) = 4)"),
    ("i % 2 = 1", "((i % 2) = 1)"),
    ("i / 2 > 1", "((cast(i as double) / 2.0) > 1.0)"),
    ("abs(-i) = 1", "(abs(negate(i)) = 1)"),
    ("cast(i AS string) = '1'", "(cast(i as string) = '1')"),
    ("i = 1.5", "(cast(cast(i as decimal(10,0)) as decimal(11,1)) = 1.5)"),
    ("upper(kind) = 'POS'", "(upper(kind) = 'POS')"),
    ("concat(kind, customer) = 'ab'", "(concat(kind, customer) = 'ab')"),
    ("floor(amount) = 1", "(floor(amount) = 1)"),
    ("ln(amount) > 1 AND log10(amount) > 1", "((ln(amount) > 1.0) and (log10(amount) > 1.0))"),
    ("sqrt(amount) > 1 OR isnan(amount)", "((sqrt(amount) > 1.0) or isnan(amount))"),
    ("greatest(i, 2) = 2", "(greatest(i, 2) = 2)"),
    ("ts > TIMESTAMP '1970-01-01 00:00:01'", "(ts > 1000000)"),
    ("dt > DATE '1970-01-02'", "(dt > 1)"),
    ("b", "b"),
    ("CASE kind WHEN 'a' THEN b ELSE false END", "case((kind = 'a'), b, false)"),
    ("f > 0.5", "(cast(f as double) > 0.5)"),
    ("d > 1.5", "(d > 1.50)"),
    ("cast(d AS double) > 1.5D", "(cast(d as double) > 1.5)"),
    ("d / 2 > 1", "(FOREIGN > 1.000000)"),
    ("-cast(d AS decimal(38,2)) > 1", "(FOREIGN > 1.00)"),
    ("kind RLIKE 'a.c'", "FOREIGN"),
    ("contains(kind, customer)", "FOREIGN"),
    ("hour(ts) = 3", "(FOREIGN = 3)"),
    ("try_divide(amount, i) > 1", "(FOREIGN > 1.0)"),
    ("exists(items, x -> x.price > 1)", "FOREIGN"),
    ("from_json(raw, 'a INT').a = 1", "(FOREIGN = 1)"),
    ("round(amount, 1) = 1", "(FOREIGN = 1.0)"),
    ("items[0].price > 1", "(FOREIGN > 1.0)"),
    ("kind = 'pos' AND hour(ts) = 3", "((kind = 'pos') and (FOREIGN = 3))"),
]


def without_foreign(expression: Expression | None) -> str:
    assert expression is not None
    text = render(expression)
    stack = [expression]
    while stack:
        node = stack.pop()
        if isinstance(node, Foreign):
            text = text.replace(node.sql, "FOREIGN")
        elif not isinstance(node, Column | Literal):
            stack.extend(node.args)
    return text


@pytest.mark.parametrize(("text", "expected"), CONDITIONS)
def test_conditions(front: FrontEnd, text: str, expected: str) -> None:
    query = front.query_from_sql("q", f"SELECT count(*) FROM tx WHERE {text} GROUP BY {W}")
    assert without_foreign(query.where) == expected


EQUAL = [
    ("SELECT {} FROM tx WHERE kind = 'pos' AND amount > 1 GROUP BY {w}", "count(*)"),
    ("SELECT {} FROM (SELECT * FROM tx WHERE amount > 1) WHERE kind = 'pos' GROUP BY {w}", "count(*)"),
    ("WITH p AS (SELECT * FROM tx WHERE 'pos' = kind) SELECT {} FROM p WHERE p.amount > 1 GROUP BY {w}", "count(*)"),
    (
        "SELECT {} FROM (SELECT *, amount + 0 AS a FROM tx) t WHERE kind = 'pos' AND 1 < t.amount GROUP BY {w}",
        "count(1)",
    ),
]


def test_the_same_question_is_the_same_value(front: FrontEnd) -> None:
    found = {front.query_from_sql("q", text.format(what + " AS n", w=W)).where for text, what in EQUAL}
    assert len(found) == 1


def test_foreign_keys_follow_meaning(front: FrontEnd) -> None:
    def key(text: str, source: str = "tx") -> str:
        query = front.query_from_sql("q", f"SELECT max({text}) FROM {source} GROUP BY {W}")
        node = query.aggregates[0].argument
        assert isinstance(node, Foreign)
        return node.key

    inner = "(SELECT ts, hour(ts) AS h, i AS j, amount FROM tx)"
    assert key("hour(ts)") == key("HOUR(tx.ts)") == key("h", inner) != key("minute(ts)")
    assert key("try_divide(i, 2)") == key("try_divide(j, 2)", inner) != key("try_divide(i, 3)")
    assert key("pmod(i, 2)") != key("pmod(id, 2)")
    assert key("width_bucket(i, 0, 9, 3)") != key("width_bucket(id, 0, 9, 3)")
    assert key("CAST(i IN (1, 2) AS STRING)") != key("CAST(id IN (1, 2) AS STRING)")


def test_a_case_with_more_than_one_branch_is_no_filter(front: FrontEnd) -> None:
    for end in ("THEN 1 END", "THEN 10 ELSE 20 END"):
        text = f"CASE WHEN i IS NULL THEN NULL WHEN i > 5 {end}"
        (aggregate,) = front.query_from_sql("q", f"SELECT sum({text}) AS s FROM tx GROUP BY {W}").aggregates
        assert aggregate.filter is None and aggregate.argument is not None
        assert render(aggregate.argument).count("case") == 1 and aggregate.argument.type == "int"


def test_names_of_functions_are_read_in_any_case(front: FrontEnd) -> None:
    for name in ("max_by", "MAX_BY", "Max_By", "min_by", "MIN_BY"):
        (aggregate,) = front.query_from_sql("q", f"SELECT {name}(kind, amount, 3) AS k FROM tx GROUP BY {W}").aggregates
        assert aggregate.function == name.lower()


def test_a_struct_key_is_grouped_by_its_fields_and_restored(front: FrontEnd) -> None:
    text = f"SELECT k, k.s, to_json(k.s) AS j, max(struct(amount, i)) AS m {{}} GROUP BY k, {W}"
    query = front.query_from_sql("q", text.format("FROM (SELECT *, struct(kind, struct(i) AS s) AS k FROM tx)"))
    assert [render(key) for key in query.keys] == ["kind", "i"]
    whole, part, text_of_part, largest = (item.expression for item in query.output)
    assert render(whole) == "struct(key:0, struct(key:1))" and render(part) == "struct(key:1)"
    assert isinstance(text_of_part, Foreign) and text_of_part.columns == ("key:0", "key:1")
    assert largest == Column("agg:0", "struct<amount:double,i:int>") and query.aggregates[0].filter is None
    with pytest.raises(UnsupportedQuery, match="is served"):
        front.query_from_sql("q", f"SELECT count(*) FROM tx GROUP BY struct(kind), {W}", serve=True)


def test_a_window_that_is_not_grouped_by_is_refused(front: FrontEnd) -> None:
    for grouping in (W, "window(ts, '1 hour', '10 minutes')"):
        text = f"SELECT kind, count(*) AS n FROM (SELECT *, {grouping} AS w FROM tx) GROUP BY kind"
        with pytest.raises(UnsupportedQuery, match="does not group by"):
            front.query_from_sql("q", text, mode=Mode("update"))


def test_a_name_that_with_binds_is_no_stream(front: FrontEnd, tmp_path: Path) -> None:
    tx = next(stream for stream in front.streams.values() if stream.name == "tx")
    elsewhere = Source("parquet", (("path", str(tmp_path)),))
    front.declare(replace(tx, name="other", source=elsewhere), EventTime("ts", "1 second"))
    front.view("good", "SELECT * FROM tx WHERE amount > 1")
    text = f"WITH other AS (SELECT * FROM good) SELECT count(*) AS n FROM other GROUP BY {W}"
    query = front.query_from_sql("q", text)
    assert query.streams == ("tx",)


def test_parameters_are_live_wherever_they_are_taken(front: FrontEnd) -> None:
    front.parameters = {"least": literal(5, "bigint"), "part": literal(0.5, "double"), "sep": literal("-", "string")}
    where = "id >= -:least AND amount < -:part AND id <= :least"
    query = front.query_from_sql("q", f"SELECT count(*) AS n FROM tx WHERE {where} GROUP BY {W}")
    shown = "" if query.where is None else render(query.where)
    assert "2305843" not in shown and "2.30584" not in shown and shown.count("least") == 2
    refused = (
        "SELECT id > :least AS big, count(*) AS n FROM tx GROUP BY id > :least, {w} HAVING count(*) > :least",
        "SELECT listagg(kind, :sep) AS k, count(*) AS n FROM tx WHERE kind <> :sep GROUP BY {w}",
        "SELECT count(*) AS n FROM (SELECT * FROM tx WHERE id > :least UNION ALL SELECT * FROM tx) AS a "
        "WHERE id < :least GROUP BY {w}",
    )
    for text in refused:
        with pytest.raises(UnsupportedQuery, match="is used where its value cannot change"):
            front.query_from_sql("q", text.format(w=W))


def test_keys_windows_and_outputs(front: FrontEnd) -> None:
    query = front.query_from_sql(
        "q",
        f"SELECT upper(kind) AS k, {W}.start, sum(amount) / count(*) AS r, round(avg(amount), 2) AS a, 'x' AS c, "
        f"customer FROM tx GROUP BY 1, {W}, customer",
    )
    assert [render(key) for key in query.keys] == ["upper(kind)", "customer"]
    assert [(output.name, render(output.expression)) for output in query.output] == [
        ("k", "key:0"),
        ("window.start", "window.start"),
        ("r", "(agg:0 / cast(agg:1 as double))"),
        ("a", "round(agg:2, 2)"),
        ("c", "'x'"),
        ("customer", "key:1"),
    ]


def test_a_window_may_come_from_a_subquery(front: FrontEnd) -> None:
    text = f"SELECT w.end AS e, count(*) AS n FROM (SELECT {W} AS w, kind FROM tx) GROUP BY w"
    query = front.query_from_sql("q", text)
    assert query.output[0] == Named("e", Column("window.end", "timestamp"))
    assert query.window == Sliding(HOUR, HOUR)


def test_a_null_time_filter_of_the_users_stays(front: FrontEnd) -> None:
    query = front.query_from_sql("q", f"SELECT count(*) FROM tx WHERE id IS NOT NULL GROUP BY {W}")
    assert query.where == call("isnotnull", (column("id"),), "boolean")


def test_equal_aggregates_are_one(front: FrontEnd) -> None:
    text = f"SELECT count(*) AS a, count(1) AS b, sum(amount) AS c, sum(amount) + 1 AS d FROM tx GROUP BY {W}"
    assert front.query_from_sql("q", text).aggregates == (COUNT, SUM)


def test_spark_may_name_the_result_of_an_aggregate_with_its_own_id(front: FrontEnd) -> None:
    text = f"SELECT round(count_if(amount > 1) * 100.0 / count(*), 2) AS rate FROM tx GROUP BY {W}"
    (output,) = front.query_from_sql("q", text).output
    result = "round(((CAST(`agg:0` AS DECIMAL(20,0)) * 100.0BD) / CAST(`agg:1` AS DECIMAL(20,0))), 2)"
    assert render(output.expression) == result


def test_sample_tumble(spark: SparkSession, front: FrontEnd, folder: Path) -> None:
    source = frame(spark, folder).where("kind = 'pos'").groupBy(F.window("ts", "1 hour"), "customer")
    query = front.query_from_dataframe(
        "q", source.agg(F.count("*").alias("n"), F.sum("amount").alias("total")).where("n > 3")
    )
    assert query == Query(
        name="q",
        stream="tx",
        event_time="ts",
        delay_us=10_000_000,
        window=Sliding(HOUR, HOUR),
        keys=(CUSTOMER,),
        aggregates=(COUNT, SUM),
        output=(
            Named("window", Column("window", WINDOW)),
            Named("customer", Column("key:0", "string")),
            Named("n", Column("agg:0", "bigint")),
            Named("total", Column("agg:1", "double")),
        ),
        where=POS,
        having=call("gt", (Column("agg:0", "bigint"), literal(3, "bigint")), "boolean"),
    )


def test_sample_hop(spark: SparkSession, front: FrontEnd, folder: Path) -> None:
    big = F.sum(F.when(F.col("amount") > 10, F.col("amount")).otherwise(0)).alias("big")
    atm = F.expr("count(*) FILTER (WHERE kind = 'atm')").alias("atm")
    source = frame(spark, folder).groupBy("customer", F.window(F.col("ts"), "1 hour", "10 minutes"))
    shaped = source.agg(big, atm, F.avg("amount").alias("a")).select(
        "customer", F.col("window.start").alias("ws"), (F.col("big") / F.col("a")).alias("r")
    )
    query = front.query_from_dataframe("q", shaped)
    assert [(n.name, render(n.expression)) for n in query.output] == [
        ("customer", "key:0"),
        ("ws", "window.start"),
        ("r", "(agg:0 / agg:2)"),
    ]
    assert render(query.aggregates[0].argument or ONE) == "case((amount > 10.0), amount, 0.0)"


def test_a_new_frame_declares_its_stream(spark: SparkSession, front: FrontEnd, tmp_path: Path) -> None:
    reader = spark.readStream.format("json").schema("a INT, at TIMESTAMP").option("maxFilesPerTrigger", 2)
    source = reader.load(str(tmp_path)).withColumnRenamed("at", "t").withWatermark("t", "1 minute")
    query = front.query_from_dataframe("q", source.groupBy(F.window("t", "1 hour")).agg(F.max("a")))
    stream = front.streams[query.stream]
    assert stream.source == Source("json", (("maxFilesPerTrigger", "2"), ("path", str(tmp_path))))
    assert (query.event_time, query.delay_us) == ("at", 60_000_000)
    assert (
        front.query_from_sql(
            "again",
            f"SELECT max(a) FROM {query.stream} WATERMARK at DELAY OF INTERVAL 1 MINUTE GROUP BY window(at, '1 hour')",
        ).aggregates
        == query.aggregates
    )


def test_a_stateless_query(front: FrontEnd) -> None:
    text = "SELECT id, amount * 2 AS twice, upper(customer) AS c, items, raw AS r FROM STREAM tx WHERE amount > 100"
    query = front.query_from_sql("q", text, sink=Sink("console"))
    assert query == Selection(
        name="q",
        stream="tx",
        output=(
            Named("id", column("id")),
            Named("twice", call("multiply", (AMOUNT, literal(2.0, "double")), "double")),
            Named("c", call("upper", (CUSTOMER,), "string")),
            Named("items", Column("items", "array<struct<price:double>>")),
            Named("r", Column("raw", "string")),
        ),
        where=call("gt", (AMOUNT, literal(100.0, "double")), "boolean"),
        sink=Sink("console"),
        text=text,
    )
    [wanted] = front.wanted([query])
    assert wanted.columns == ("id", "customer", "amount", "items", "raw")


def test_a_stateless_query_needs_no_watermark_and_ignores_one(
    spark: SparkSession, front: FrontEnd, folder: Path
) -> None:
    source = spark.readStream.schema(SCHEMA).parquet(str(folder))
    bare, marked = (
        front.query_from_dataframe("q", one.select("id").where("id > 1"))
        for one in (source, source.withWatermark("ts", "10 seconds"))
    )
    assert bare == marked
    assert isinstance(bare, Selection)


def test_equal_elements_are_one_derived_stream_whatever_is_dropped(front: FrontEnd) -> None:
    """Outer or not, with other conditions, by LATERAL VIEW or in SELECT: each element is made once."""
    inner, outer, lateral = (
        front.query_from_sql("q", text)
        for text in (
            "SELECT id, explode(items) AS item FROM tx WHERE i > 1",
            "SELECT id, explode_outer(items) AS item FROM tx",
            f"SELECT sum(item.price) AS s FROM tx LATERAL VIEW explode(items) t AS item GROUP BY {W}",
        )
    )
    assert inner.stream == outer.stream == lateral.stream
    there = Column("each1", "boolean")
    assert inner.where == call("and", (call("gt", (INT, literal(1, "int")), "boolean"), there), "boolean")
    assert outer.where is None
    assert lateral.where == there
    derived = front.streams[inner.stream].derived
    assert derived is not None
    assert derived.text == "tx LATERAL VIEW OUTER explode(items)"


def test_a_stateless_query_has_nothing_to_serve_and_nothing_late(front: FrontEnd) -> None:
    with pytest.raises(UnsupportedQuery, match="no key"):
        front.query_from_sql("q", "SELECT id FROM tx", serve=True)
    with pytest.raises(UnsupportedQuery, match="Nothing is late"):
        front.query_from_sql("q", "SELECT id FROM tx", late=Sink("memory"))


REFUSED = [
    (f"SELECT listagg(cast(kind AS binary)) FROM tx GROUP BY {W}", UnsupportedQuery, "is of binary"),
    (f"SELECT histogram_numeric(d, 5) FROM tx GROUP BY {W}", UnsupportedQuery, "decimal.*Cast them to DOUBLE"),
    (f"SELECT percentile_approx(ts, 0.5) FROM tx GROUP BY {W}", UnsupportedQuery, "unix_micros"),
    (f"SELECT percentile(amount, 0.5, 2) FROM tx GROUP BY {W}", UnsupportedQuery, "frequency"),
    (f"SELECT approx_count_distinct(kind, 0.001) FROM tx GROUP BY {W}", UnsupportedQuery, "16384 registers"),
    (f"SELECT corr(DISTINCT amount, i) FROM tx GROUP BY {W}", UnsupportedQuery, "corr DISTINCT"),
    (f"SELECT count(*) FROM tx GROUP BY array(ts), {W}", UnsupportedQuery, r"array<timestamp>.*to_json\(array"),
    (f"SELECT count(*) FROM tx GROUP BY struct(raw, map(1, i)), {W}", UnsupportedQuery, r"struct<raw.*to_json\(struct"),
    (f"SELECT approx_count_distinct(items) FROM tx GROUP BY {W}", UnsupportedQuery, "array<struct.*to_json"),
    ("SELECT count(*) FROM tx GROUP BY session_window(ts, '5 minutes').start", UnsupportedQuery, "part of it"),
    ("SELECT count(*) FROM tx GROUP BY session_window(ts, CAST(rand() AS STRING))", QueryError, "run to run|rand"),
    ("SELECT count(*) FROM tx GROUP BY session_window(ts, '1 month')", QueryTypeError, "months"),
    ("SELECT count(*) FROM tx GROUP BY session_window(ts, '0 seconds')", QueryTypeError, "positive|empty"),
    ("SELECT count(*) FROM tx GROUP BY session_window(ts, '876601 hours')", QueryTypeError, "never end"),
    ("SELECT count(*) FROM tx GROUP BY session_window(window(ts, '1 hour'), '1 hour')", UnsupportedQuery, "inside"),
    (f"SELECT count(*) FROM tx GROUP BY session_window(ts, '1 hour'), {W}", QueryError, "(?i)multiple time"),
    ("SELECT count(*) FROM tx", UnsupportedQuery, "does not group by a window"),
    ("SELECT count_window(ts, 5) AS w, id FROM tx", UnsupportedQuery, "count window.*no aggregation"),
    ("SELECT window(ts, '1 day', '1 second') AS w, id FROM tx", UnsupportedQuery, "86,400 windows"),
    ("SELECT id, x FROM tx LATERAL VIEW stack(id, id, i) t AS x", QueryRefused, "stack with this number of rows"),
    (
        "SELECT id, v FROM tx LATERAL VIEW variant_explode(parse_json(raw)) t AS p, k, v", QueryRefused,
        "variant_explode in LATERAL VIEW",
    ),
    ("SELECT id, explode(kind) FROM tx", QueryTypeError, "explode"),
    ("SELECT id, kind AS id FROM tx", QueryTypeError, "Two columns"),
    ("SELECT id, make_ym_interval(1, cast(id AS INT)) AS age FROM tx", UnsupportedQuery, "interval year to month"),
    ("SELECT id, named_struct('a', kind, 'a', i) AS s FROM tx", UnsupportedQuery, "struct<a:string,a:int>"),
    (f"SELECT named_struct('a', count(*), 'a', i) AS s FROM tx GROUP BY i, {W}", UnsupportedQuery, "a:bigint,a:int"),
    ("SELECT id FROM tx ORDER BY id", MillpondError, "ORDER BY|Sort"),
    ("SELECT DISTINCT items FROM tx", UnsupportedQuery, "compare a column of type array<struct"),
    (" INTERSECT ".join([f"SELECT {', '.join(['id'] * 251)} FROM tx"] * 2), UnsupportedQuery, "compares 251 columns"),
    ("SELECT count(*) FROM tx a JOIN tx b ON a.id = b.id GROUP BY window(a.ts, '1 hour')", UnsupportedQuery, "join"),
    (f"SELECT count(*) FROM (SELECT DISTINCT * FROM tx) GROUP BY {W}", UnsupportedQuery, "of type array<struct"),
    (f"SELECT make_ym_interval(count(*)) FROM tx GROUP BY {W}", MillpondError, "interval|cannot resolve"),
    (f"SELECT count(*) FROM tx GROUP BY current_date(), {W}", QueryError, "clock in a key"),
    (f"SELECT substring(max(kind), int(rand() * 3)) FROM tx GROUP BY {W}", QueryError, "rand"),
    (f"SELECT count(*) AS a, sum(i) AS a FROM tx GROUP BY {W}", QueryTypeError, "Two columns"),
    (f"SELECT nosuch, count(*) FROM tx GROUP BY nosuch, {W}", QueryTypeError, "nosuch"),
    (f"SELECT sum(kind) + items FROM tx GROUP BY {W}", QueryTypeError, "cannot resolve"),
    ("SELECT count(*) FROM tx GROUP BY window(ts, '1 month')", QueryTypeError, "months"),
    ("SELECT count(*) FROM tx GROUP BY window(ts, INTERVAL 1 YEAR)", QueryTypeError, "months"),
    ("SELECT count(*) FROM tx GROUP BY window(ts, '0 seconds')", QueryTypeError, "empty"),
    ("SELECT count(*) FROM tx GROUP BY window(ts, '1 hour', '2 hours')", QueryTypeError, "gaps"),
    ("SELECT count(*) FROM tx GROUP BY window(ts, '1 hour', '1 hour', '2 hours')", QueryTypeError, "one slide"),
    ("SELECT count(*) FROM tx GROUP BY window(ts, kind)", QueryTypeError, "no literal"),
    (f"SELECT _metadata.file_path, count(*) FROM tx GROUP BY 1, {W}", QueryTypeError, "_metadata"),
    (
        "SELECT count(*) FROM tx GROUP BY window(window(ts, '1 hour', '1 minute').start, '1 hour', '1 minute')",
        UnsupportedQuery,
        "inside a window",
    ),
    ("SELECT count(*) FROM tx GROUP BY window(window(ts, '1 hour'), '1 hour')", UnsupportedQuery, "inside a window"),
    ("SELECT count(*) FROM tx GROUP BY window(ts + INTERVAL 9 SECONDS, '1 hour')", UnsupportedQuery, "the expression"),
    ("SELECT count(*) FROM tx GROUP BY window(date_trunc('DAY', ts), '2 hours', '1 hour')", UnsupportedQuery, "trunc"),
    ("SELECT count(*) FROM tx GROUP BY cumulate_window(ts - INTERVAL 1 DAY, '1 day', '1 hour')", QueryError, "express"),
    ("SELECT count(*) FROM tx GROUP BY session_window(from_utc_timestamp(ts, 'CET'), '1 hour')", QueryError, "utc"),
    (
        "SELECT count(*) FROM tx GROUP BY session_window(ts - INTERVAL 1 DAY, CASE WHEN i > 1 THEN '1 hour' END)",
        UnsupportedQuery,
        "over the expression",
    ),
    ("SELECT count(*) FROM tx GROUP BY window(ts, 'an hour')", QueryTypeError, "no interval"),
    ("SELECT count(*) FROM tx GROUP BY window(n, '1 hour')", MillpondError, "timestamp_ntz|watermark"),
    (f"SELECT window(ts, '1 hour', '1 minute') AS w, count(*) FROM tx GROUP BY {W}", UnsupportedQuery, "Multiple time"),
    (f"SELECT kind, count(*) FROM tx GROUP BY ROLLUP (kind, {W})", UnsupportedQuery, "lacks the window"),
    (f"SELECT kind, count(*) FROM tx GROUP BY {W}, GROUPING SETS (kind, kind)", UnsupportedQuery, "same grouping"),
    ("SELECT count(*) FROM tx GROUP BY CUBE (kind, id, i, d, n, flag, amount)", QueryRefused, "more than 6 columns"),
    (f"SELECT count(*) FROM tx GROUP BY {W}, CUBE (kind, id, i, d), CUBE (n, amount, raw)", QueryRefused, "64"),
]


@pytest.mark.parametrize(("text", "error", "what"), REFUSED)
def test_refusals(front: FrontEnd, text: str, error: type[MillpondError], what: str) -> None:
    with pytest.raises(error, match=what) as caught:
        front.query_from_sql("q", text)
    assert caught.value.cure


def test_percentiles_of_bins_of_dataframes_are_those_of_sql(spark: SparkSession, front: FrontEnd, folder: Path) -> None:
    text = f"SELECT percentile_approx(amount, array(0.5, 0.9), 100) AS p FROM tx GROUP BY {W}"
    from_sql = front.query_from_sql("q", text)
    grouped = frame(spark, folder).groupBy(F.window("ts", "1 hour"))
    found = front.query_from_dataframe("q", grouped.agg(F.percentile_approx("amount", [0.5, 0.9], 100).alias("p")))
    assert found.aggregates == from_sql.aggregates


def test_what_is_planned_is_refused_by_name_and_place(front: FrontEnd) -> None:
    text = "SELECT window(ts, '1 hour', '1 minute') AS w,\n  corr(DISTINCT amount, i) AS n FROM tx GROUP BY ALL"
    said = r"At line 2, column 3: `corr\(DISTINCT amount, i\)` uses corr DISTINCT"
    with pytest.raises(UnsupportedQuery, match=said):
        front.query_from_sql("q", text)


def test_sessions_are_read_from_sql_and_dataframes_alike(spark: SparkSession, front: FrontEnd, folder: Path) -> None:
    text = (
        "SELECT kind, session_window.start AS a, session_window AS w, count(*) AS n FROM tx WHERE amount > 1 "
        "GROUP BY kind, session_window(ts, '90 seconds')"
    )
    from_sql = front.query_from_sql("q", text)
    assert from_sql.window == Session(90_000_000)
    window = F.session_window("ts", "90 seconds").alias("w")
    grouped = frame(spark, folder).where("amount > 1").groupBy("kind", window).agg(F.count("*").alias("n"))
    found = front.query_from_dataframe("q", grouped.select("kind", F.col("w.start").alias("a"), "w", "n"))
    assert replace(found, delay_us=from_sql.delay_us) == replace(from_sql, text="")
    above = frame(spark, folder).withColumn("s", F.session_window("ts", "1 hour")).where("amount > 1")
    assert front.query_from_dataframe("above", above.groupBy("s").count()).where == from_sql.where


@pytest.mark.parametrize("gap", ["CASE WHEN kind = 'pos' THEN '5 minutes' ELSE '1 hour' END", "'1 day'"])
def test_gaps_that_differ_from_event_to_event(front: FrontEnd, gap: str) -> None:
    query = front.query_from_sql("q", f"SELECT count(*) FROM tx WHERE i > 0 GROUP BY session_window(ts, {gap})")
    assert isinstance(query.window, Session)
    end = query.window.own_end
    assert isinstance(end, Foreign) and end.type == "timestamp"
    assert set(end.columns) == ({"ts"} if gap == "'1 day'" else {"kind", "ts"})
    positive = call("lt", (column("ts"), end), "boolean")
    assert query.where == call("and", (call("gt", (INT, literal(0, "int")), "boolean"), positive), "boolean")


def test_a_window_needs_a_watermark(spark: SparkSession, front: FrontEnd, folder: Path) -> None:
    source = spark.readStream.schema(SCHEMA).parquet(str(folder))
    with pytest.raises(QueryTypeError, match=r"no watermark.*withWatermark\('ts', '10 seconds'\)"):
        front.query_from_dataframe("q", source.groupBy(F.window("ts", "1 hour")).count())


def _frames(source: DataFrame, folder: Path) -> dict[str, Callable[[], DataFrame]]:
    hour = F.window("ts", "1 hour")
    bare = source.sparkSession.readStream.schema(SCHEMA).parquet(str(folder))
    of_the_clock = bare.withColumn("at", F.current_timestamp()).withWatermark("at", "1 second")
    shout = F.udf(lambda text: text.upper(), "string")
    whole = F.pandas_udf(lambda texts: texts, "string")
    other = source.select("id")
    static = source.sparkSession.range(3)
    return {
        "rand|not deterministic|run to run": lambda: source.where(F.rand() < 0.1).groupBy(hour).count(),
        "run to run": lambda: source.where(F.year("ts") < F.year(F.current_timestamp())).groupBy(hour).count(),
        "uuid": lambda: source.groupBy(F.expr("uuid()"), hour).count(),
        "hidden": lambda: bare.withWatermark("ts", "1 second").groupBy("_metadata.file_path", hour).count(),
        "whole columns": lambda: source.groupBy(whole("kind"), hour).count(),
        "not deterministic": lambda: source.groupBy(shout.asNondeterministic()("kind"), hour).count(),
        "has no bound": lambda: source.join(other, "id").groupBy(hour).count(),
        "below a union": lambda: source.select(hour).union(source.select(hour)).groupBy("window").count(),
        "no stream": lambda: source.select("ts").union(static.select(F.timestamp_seconds("id"))).groupBy(hour).count(),
        "Limit": lambda: source.join(static.orderBy("id").limit(3), "id").groupBy(hour).count(),
        "`current_timestamp": lambda: of_the_clock.groupBy(F.window("at", "1 hour")).count(),
    }  # fmt: skip


@pytest.mark.parametrize("what", [
    "rand|not deterministic|run to run", "run to run", "uuid", "whole columns", "not deterministic",
    "hidden",
    "has no bound",
    "below a union", "no stream", "Limit", "`current_timestamp",
])  # fmt: skip
def test_frames_refused(spark: SparkSession, front: FrontEnd, folder: Path, what: str) -> None:
    with pytest.raises(QueryError, match=what):
        front.query_from_dataframe("q", _frames(frame(spark, folder), folder)[what]())


def test_duplicates_within_the_watermark(spark: SparkSession, front: FrontEnd, folder: Path) -> None:
    source = frame(spark, folder)
    once = source.dropDuplicatesWithinWatermark(["id", "kind"]).where("i > 0").groupBy(F.window("ts", "1 hour"), "kind")
    query = front.query_from_dataframe("q", once.count())
    assert isinstance(query, Query)
    assert query.deduplicated is not None
    assert {one.name for one in query.deduplicated.columns} == {"id", "kind"}
    assert query.deduplicated.within_us == query.delay_us
    assert query.where is not None
    exact = source.dropDuplicates(["id", "ts"]).groupBy(F.window("ts", "1 hour"), "id").count()
    query = front.query_from_dataframe("exact", exact)
    assert isinstance(query, Query)
    assert query.deduplicated == Deduplication((Column("id", "bigint"), Column("ts", "timestamp")), 0)


def test_a_batch_frame_is_no_stream(spark: SparkSession, front: FrontEnd) -> None:
    with pytest.raises(QueryTypeError, match="no stream"):
        front.query_from_dataframe("q", spark.range(3).groupBy().count())


def test_the_users_session_is_left_alone(spark: SparkSession, folder: Path) -> None:
    before = spark.conf.getAll
    FrontEnd(spark).declare(Stream("mine", (Field("a", "int"),), Source("csv", (("path", str(folder)),))))
    assert spark.conf.getAll == before
    assert not spark.catalog.tableExists("mine")


def test_a_view_that_is_named_like_a_query_is_refused(spark: SparkSession, folder: Path) -> None:
    session = spark.newSession()
    front = front_end(session, SCHEMA, folder)
    front.query_from_sql("big", f"SELECT {W} AS w, sum(amount) AS amount FROM STREAM tx GROUP BY ALL")
    with pytest.raises(QueryTypeError, match="A query Big is declared already"):
        front.view("Big", "SELECT id FROM tx")
    text = "SELECT w FROM STREAM big WHERE amount > 99"
    session.range(3).selectExpr("id", "1.0D AS amount").createOrReplaceTempView("BIG")
    with pytest.raises(QueryTypeError, match="big is both a query and a temporary view"):
        front.query_from_sql("q", text)
    session.catalog.dropTempView("BIG")
    assert front.query_from_sql("q", text).streams == ("big",)


def test_expressions_of_dropped_queries_are_freed(
    spark: SparkSession, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frontend, "NEWEST", 1)
    front = front_end(spark.newSession(), SCHEMA, folder)
    made = [front.query_from_sql(f"q{n}", f"SELECT repeat(customer, {n}) AS c FROM STREAM tx") for n in range(4)]
    for query in made[:3]:
        front.forget(query.name)
    front.retain(made[1:2])
    assert front.foreigns.keys() == foreign_keys(made[1]) | foreign_keys(made[3])


def test_frames_of_a_session_that_names_its_sources(spark: SparkSession, folder: Path) -> None:
    named = reading_session(spark).readStream.name("mine").schema(SCHEMA).parquet(str(folder))
    door = FrontEnd(spark)
    source = named.withWatermark("ts", "1 second").groupBy(F.window("ts", "1 hour")).count()
    query = door.query_from_dataframe("q", source)
    assert door.query_from_dataframe("q", source) == query
    assert list(door.streams) == [query.stream]
