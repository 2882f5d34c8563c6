"""A registered user function is called by its name, in SQL and DataFrames, and becomes an aggregate."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.udf import UserDefinedFunction
from pyspark.util import PythonEvalType

from millpond.errors import MillpondError, QueryRefused, QueryTypeError, UnsupportedQuery, UserFunctionError
from millpond.model.aggregates import Aggregate
from millpond.model.endpoints import Source
from millpond.model.expressions import Column, Foreign, call, literal
from millpond.model.query import Query
from millpond.model.stream import Field, Stream
from millpond.spark.frontend.frontend import FrontEnd
from millpond.spark.reading.read_frame import EventTime

pytestmark = pytest.mark.usefixtures("sample_functions")
COLUMNS = (
    Field("customer", "string"), Field("amount", "double"), Field("n", "int"), Field("price", "decimal(10,2)"),
    Field("ts", "timestamp"),
)  # fmt: skip
AMOUNT, N, CUSTOMER = Column("amount", "double"), Column("n", "int"), Column("customer", "string")
MEDIAN, WEIGHTED = "user:my_median@1", "user:my_weighted@2.1"
FROM = "FROM STREAM tx GROUP BY customer, window(ts, '1 hour')"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tx")


@pytest.fixture(scope="module")
def front(spark: SparkSession, folder: Path) -> FrontEnd:
    door = FrontEnd(spark)
    door.declare(Stream("tx", COLUMNS, Source("parquet", (("path", str(folder)),))), EventTime("ts", "10 seconds"))
    door.function("my_median", "sample_functions:median", "holistic", ("double",), "double")
    door.function(
        "my_weighted", "sample_functions:weighted", "holistic", ("double", "double"), "double",
        version="2.1", deadline="1500 milliseconds", memory="64 MB",
    )  # fmt: skip
    door.function("exact_sum", "sample_functions:exact", "holistic", ("decimal(10,2)",), "decimal(20,2)")
    return door


def median(argument: Column | Foreign | object = AMOUNT, condition: object = None) -> Aggregate:
    return Aggregate(MEDIAN, argument, condition, "double")  # type: ignore[arg-type]


def planned(front: FrontEnd, select: str) -> Query:
    return front.query_from_sql("q", f"SELECT customer, {select} {FROM}")


def test_a_query_calls_it_by_its_name_and_records_it(front: FrontEnd) -> None:
    query = planned(front, "window(ts, '1 hour') AS w, my_median(amount) AS m, sum(n) AS s")
    assert query.aggregates == (median(), Aggregate("sum", N, None, "bigint"))
    assert [(column.name, column.expression) for column in query.output[2:]] == [
        ("m", Column("agg:0", "double")), ("s", Column("agg:1", "bigint")),
    ]  # fmt: skip
    function = query.user_functions[MEDIAN]
    assert (function.name, function.version, function.module) == ("my_median", "1", "sample_functions:median")
    assert len(function.digest) == 64
    assert msgspec.json.decode(msgspec.json.encode(query), type=Query) == query


def test_a_query_without_one_has_no_such_field(front: FrontEnd) -> None:
    text = msgspec.json.encode(planned(front, "sum(amount) AS s")).decode()
    assert '"functions"' not in text and '"more"' not in text


def test_several_arguments_terms_and_having(front: FrontEnd) -> None:
    query = front.query_from_sql(
        "q", f"SELECT customer, MY_WEIGHTED(amount, n * 2) + 1 AS m {FROM} HAVING my_weighted(amount, n * 2) > 0"
    )
    (aggregate,) = query.aggregates
    double = call("multiply", (N, literal(2, "int")), "int")
    assert (aggregate.function, aggregate.arguments) == (WEIGHTED, (AMOUNT, call("cast", (double,), "double")))
    function = query.user_functions[WEIGHTED]
    assert (function.deadline_ms, function.memory_bytes) == (1500, 64 << 20)
    assert query.having is not None
    assert {field.name for field in front.wanted([query])[0].stream.columns} >= {"amount", "n"}
    assert {"amount", "n"} <= {*front.wanted([query])[0].columns}


def test_what_only_spark_evaluates_is_projected_for_it(front: FrontEnd) -> None:
    query = planned(front, "my_weighted(amount, log1p(amount)) AS m")
    (foreign,) = [part for part in query.aggregates[0].arguments if isinstance(part, Foreign)]
    assert foreign.key in front.foreigns
    assert [projected.value for projected in front.wanted([query])[0].foreigns] == [foreign]


@pytest.mark.parametrize("text", [
    "my_median(amount) FILTER (WHERE n > 3)",
    "my_median(amount)\n  filter(where\n n > 3)",
    "my_median((amount)) FILTER (WHERE (n > 3))",
    "my_median(amount, n > 3)",
])  # fmt: skip
def test_a_filter_is_a_condition(front: FrontEnd, text: str) -> None:
    assert planned(front, f"{text} AS m").aggregates == (median(AMOUNT, call("gt", (N, literal(3, "int")), "boolean")),)


def test_filters_of_several_calls_beside_a_hopping_window(front: FrontEnd) -> None:
    query = front.query_from_sql(
        "q",
        "SELECT customer, my_median(amount) FILTER (WHERE n > 1) AS a, my_median(amount) FILTER (WHERE n > 2) AS b, "
        "count(*) FILTER (WHERE n > 3) AS c FROM STREAM tx GROUP BY customer, window(ts, '1 hour', '10 minutes')",
    )
    over = [call("gt", (N, literal(limit, "int")), "boolean") for limit in (1, 2, 3)]
    assert query.aggregates[:2] == (median(AMOUNT, over[0]), median(AMOUNT, over[1]))
    assert query.window.slide_us == 600_000_000


def test_a_data_frame_calls_what_registering_returned(front: FrontEnd, spark: SparkSession, folder: Path) -> None:
    made = front.function("my_median", "sample_functions:median", "holistic", ("double",), "double")
    frame = _frame(spark, folder).groupBy("customer", F.window("ts", "1 hour"))
    query = front.query_from_dataframe("q", frame.agg(made("amount").alias("m"), made("n", F.col("n") > 3).alias("o")))
    over = call("gt", (N, literal(3, "int")), "boolean")
    assert query.aggregates == (median(), median(call("cast", (N,), "double"), over))


def _frame(spark: SparkSession, folder: Path) -> DataFrame:
    schema = ", ".join(f"{field.name} {field.type}" for field in COLUMNS)
    return spark.readStream.schema(schema).parquet(str(folder)).withWatermark("ts", "10 seconds")


def test_an_aggregate_of_pandas_with_the_same_name_is_another(
    front: FrontEnd, spark: SparkSession, folder: Path
) -> None:
    other = UserDefinedFunction(
        lambda values: values.median(), "double", "my_median", PythonEvalType.SQL_GROUPED_AGG_PANDAS_UDF
    )
    frame = _frame(spark, folder).groupBy("customer", F.window("ts", "1 hour")).agg(other("amount"))
    with pytest.raises(UnsupportedQuery):
        front.query_from_dataframe("q", frame)


@pytest.mark.parametrize(("select", "error", "what"), [
    ("my_mediam(amount)", QueryRefused, "Did you mean"),
    ("a.my_median(amount)", QueryRefused, "the function a.my_median"),
    ("my_median(DISTINCT amount)", UnsupportedQuery, "has DISTINCT"),
    ("my_median(amount) /* why */ FILTER (WHERE n > 1)", UnsupportedQuery, "FILTER that is not understood"),
    ("my_median(amount, amount)", QueryTypeError, "line 1, column 18: `my_median(amount, amount)` has 2 arguments"),
    ("my_median()", QueryTypeError, "has 0 arguments; my_median@1 takes 1"),
    ("my_median(customer)", QueryTypeError, "`customer` is string, and my_median@1 takes double"),
    ("my_median(price)", QueryTypeError, "`price` is decimal(10,2), and my_median@1 takes double"),
    ("exact_sum(amount)", QueryTypeError, "`amount` is double, and exact_sum@1 takes decimal(10,2)"),
    ("my_median(sum(amount))", QueryTypeError, "NESTED_AGGREGATE"),
    ("my_median(amount) OVER (ORDER BY ts)", MillpondError, ""),
])  # fmt: skip
def test_what_is_refused(front: FrontEnd, select: str, error: type[MillpondError], what: str) -> None:
    with pytest.raises(error) as caught:
        planned(front, f"{select} AS m")
    assert what in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["median", "sum", "repeat", "window", "java_method"])
def test_a_name_of_sparks_is_not_taken(front: FrontEnd, name: str) -> None:
    with pytest.raises(QueryTypeError, match=f"{name} is a function that Spark has"):
        front.function(name, "sample_functions:median", "holistic", ("double",), "double")


def test_a_version_means_one_function(front: FrontEnd) -> None:
    with pytest.raises(QueryTypeError, match="my_median@1 of sample_functions:median is registered already"):
        front.function("My_Median", "sample_functions:exact", "holistic", ("double",), "double")


def test_a_newer_version_is_meant_by_texts_that_follow(spark: SparkSession, folder: Path) -> None:
    door = FrontEnd(spark)
    door.declare(Stream("tx", COLUMNS, Source("parquet", (("path", str(folder)),))), EventTime("ts", "10 seconds"))
    text = f"SELECT newer(amount) AS m {FROM}"
    found = []
    for version, returns in (("1", "double"), ("2", "double"), ("3", "bigint"), ("1", "double")):
        door.function("newer", "sample_functions:median", "holistic", ("double",), returns, version=version)
        found.append(door.query_from_sql(f"q{len(found)}", text).aggregates[0])
    chosen = [(one.function, one.type) for one in found]
    assert chosen == [("user:newer@1", "double"), ("user:newer@2", "double"), ("user:newer@3", "bigint"), chosen[0]]


def test_it_is_not_known_to_the_users_session(front: FrontEnd, spark: SparkSession) -> None:
    assert not spark.catalog.functionExists("my_median")


def test_a_function_of_the_session_does_not_take_its_place(front: FrontEnd, spark: SparkSession) -> None:
    spark.udf.register("my_median", lambda value: "mine", "string")
    try:
        assert planned(front, "my_median(amount) AS m").aggregates == (median(),)
    finally:
        spark.sql("DROP TEMPORARY FUNCTION my_median")


@pytest.mark.parametrize(("change", "error", "what"), [
    ({"module": "nowhere:f"}, UserFunctionError, "No module named 'nowhere'"),
    ({"kind": "mergeable"}, UserFunctionError, "is no mergeable function"),
    ({"returns": "array<double>"}, QueryTypeError, "the type 'array<double>'"),
    ({"deadline": "soon"}, QueryTypeError, "'deadline' of the function another is 'soon'"),
    ({"deadline": "1 month"}, QueryTypeError, "counts months"),
    ({"memory": "much"}, QueryTypeError, "'much' is no size of memory"),
])  # fmt: skip
def test_what_cannot_be_registered(
    front: FrontEnd, change: dict[str, str], error: type[MillpondError], what: str
) -> None:
    given = {"module": "sample_functions:median", "kind": "holistic", "takes": ("double",), "returns": "double"}
    with pytest.raises(error) as caught:
        front.function("another", **{**given, **change})  # type: ignore[arg-type]
    assert what in str(caught.value)
