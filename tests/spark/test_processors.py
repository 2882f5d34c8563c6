"""A processor of the user's in query texts and DataFrames, and in a pond that restarts, is altered and scaled."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from millpond import Pond
from millpond.errors import QueryTypeError, UnsupportedQuery
from millpond.model.aggregates import Aggregate
from millpond.model.endpoints import Source
from millpond.model.expressions import Column, call, field_of, literal
from millpond.model.query import Query
from millpond.model.stream import Field, Stream
from millpond.model.windows import Processed
from millpond.plan.explain.plan_text import explain
from millpond.plan.groups.build import build_plan
from millpond.spark.frontend.frontend import FrontEnd
from millpond.spark.reading.read_frame import EventTime

pytestmark = pytest.mark.usefixtures("sample_functions")
COLUMNS = (
    Field("card", "string"), Field("amount", "double"), Field("approved", "boolean"), Field("ts", "timestamp"),
)  # fmt: skip
ROW = "struct<time:timestamp,what:string,declines:bigint,amounts:array<double>>"
SECOND = 1_000_000
Declared = tuple[FrontEnd, DataFrame, Callable[..., SparkColumn]]
SCHEMA = pa.schema([("ts", pa.timestamp("us", "UTC")), ("k", pa.string()), ("amount", pa.float64())])


@pytest.fixture(scope="module")
def declared(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Declared:
    """The front end, the stream and the processor, for DataFrames."""
    door, folder = FrontEnd(spark), str(tmp_path_factory.mktemp("tx"))
    stream = Stream("tx", COLUMNS, Source("parquet", (("path", folder),)))
    frame = door.declare(stream, EventTime("ts", "10 seconds"))
    streaks = door.function(
        "streaks", "sample_functions:Streaks", "stateful", {"approved": "boolean", "amount": "double"},
        {"what": "string", "declines": "bigint", "amounts": "array<double>"},
        state={"declines": "bigint", "amounts": "array<double>", "seen": "map<string,bigint>"},
        ttl="14 seconds", timers="10 seconds",
    )  # fmt: skip
    return door, frame, streaks


@pytest.fixture(scope="module")
def front(declared: Declared) -> FrontEnd:
    return declared[0]


def test_a_text_calls_it_with_inline(front: FrontEnd) -> None:
    text = (
        "SELECT card, time, upper(what) AS w, declines + 1 AS n FROM (SELECT card, inline(streaks(approved, amount)) "
        "FROM STREAM tx WHERE amount > 0 GROUP BY card) WHERE declines > 2"
    )
    query = front.query_from_sql("q", text)
    assert isinstance(query, Query)
    row = Column("agg:0", ROW)
    assert query.window == Processed(14 * SECOND) and query.delay_us == 10 * SECOND
    assert query.keys == (Column("card", "string"),)
    amount = Column("amount", "double")
    assert query.aggregates == (Aggregate("user:streaks@1", Column("approved", "boolean"), None, ROW, amount),)
    assert query.having == call("gt", (field_of(row, 2), literal(2, "bigint")), "boolean")
    assert [one.name for one in query.output] == ["card", "time", "w", "n"]
    assert [one.expression for one in query.output[:2]] == [
        Column("key:0", "string"), Column("window.time", "timestamp"),
    ]  # fmt: skip
    assert query.user_functions["user:streaks@1"].state.timer_after_us == 10 * SECOND
    assert msgspec.json.decode(msgspec.json.encode(query), type=Query) == query
    shown = explain(build_plan([query]), ())
    assert "the state of each key, for 14 seconds of event time" in shown and "streaks@1" in shown


def test_a_dataframe_calls_it_with_inline(declared: Declared) -> None:
    front, stream, streaks = declared
    made = streaks("approved", "amount").alias("made")
    query = front.query_from_dataframe("d", stream.groupBy("card").agg(made).select("card", F.inline("made")))
    text = "SELECT card, inline(streaks(approved, amount)) FROM STREAM tx GROUP BY card"
    assert isinstance(query, Query)
    same = front.query_from_sql("d", text)
    assert isinstance(same, Query) and msgspec.structs.replace(same, text="") == query
    with pytest.raises(UnsupportedQuery, match="grouping sets"):
        front.query_from_dataframe("d", stream.rollup("card").agg(made).select("card", F.inline("made")))
    with pytest.raises(UnsupportedQuery, match="served"):
        front.query_from_sql("d", text, serve=True)


MODULE = """
import pyarrow as pa

class Counter:
    def process(self, events, state):
        keys = events["key"].to_numpy()
        rows, counts = [], state["n"].to_pylist()
        for key, time in zip(keys.tolist(), events["time"].to_pylist()):
            counts[key] = (counts[key] or 0) + 1
            if counts[key] % 3 == 0:
                rows.append({"key": key, "time": time, "n": counts[key]})
        schema = pa.schema([("key", pa.int64()), ("time", pa.timestamp("us", "UTC")), ("n", pa.int64())])
        return pa.Table.from_pylist(rows, schema), pa.table({"n": pa.array(counts, pa.int64())})
"""
SELECT = "SELECT k, inline(counter(amount)) FROM STREAM tx WATERMARK ts DELAY OF INTERVAL 5 SECONDS GROUP BY k"


def opened(spark: SparkSession, folder: Path, name: str) -> Pond:
    pond = Pond(spark, folder / "pond", instances=2)
    pond.load(f"CREATE TABLE tx (ts TIMESTAMP, k STRING, amount DOUBLE) USING parquet OPTIONS (path '{folder / 'in'}')")
    pond.function("counter", f"{name}:Counter", kind="stateful", takes={"amount": "double"}, returns={"n": "bigint"},
                  state={"n": "bigint"})  # fmt: skip
    pond.add("thirds", SELECT)
    return pond


@pytest.mark.timeout(300)
def test_a_pond_continues_its_states_when_it_starts_again(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    name, begin = "processor_of_a_test", datetime(2026, 1, 1, tzinfo=timezone.utc)
    module = tmp_path / f"{name}.py"
    module.write_text(MODULE, encoding="utf-8")
    spark.sparkContext.addPyFile(str(module))
    found = []
    for i in range(2):
        times = [begin + timedelta(seconds=100 * i + j) for j in range(40)]
        rows = [{"ts": time, "k": "abcd"[j * j % 4], "amount": 1.0} for j, time in enumerate(times)]
        pq.write_table(pa.Table.from_pylist(rows, SCHEMA), tmp_path / "in" / f"{i}.parquet")
        with opened(spark, tmp_path, name) as pond:
            pond.run(drain=i == 1)
            found += pond.table("thirds").to_pylist()
    counts, right = dict[str, int](), []
    for i in range(80):
        k, j = "abcd"[(i % 40) ** 2 % 4], i % 40
        counts[k] = counts.get(k, 0) + 1
        if counts[k] % 3 == 0:
            right.append((k, begin + timedelta(seconds=100 * (i // 40) + j), counts[k]))
    assert sorted({(row["k"], row["time"], row["n"]) for row in found}) == sorted(right)


@pytest.mark.parametrize(("text", "says"), [
    ("SELECT card, streaks(approved, amount) AS r FROM STREAM tx GROUP BY card", "GROUP BY key"),
    ("SELECT card, count(*) AS n, inline(streaks(approved, amount)) FROM STREAM tx GROUP BY card", "another aggregate"),
    ("SELECT card, inline(streaks(approved, amount)) FROM STREAM tx GROUP BY card, window(ts, '1 minute')", "a window"),
    ("SELECT card, inline(slice(streaks(approved, amount), 1, 1)) FROM STREAM tx GROUP BY card", "changed before"),
    ("SELECT card, inline_outer(streaks(approved, amount)) FROM STREAM tx GROUP BY card", "something else"),
])  # fmt: skip
def test_other_uses_are_refused(front: FrontEnd, text: str, says: str) -> None:
    with pytest.raises(UnsupportedQuery, match="streaks") as refused:
        front.query_from_sql("q", text)
    assert says in str(refused.value)


def test_its_terms_are_checked(front: FrontEnd) -> None:
    terms = {"takes": {"x": "double"}, "returns": {"n": "int"}, "state": {"s": "int"}}
    for change, says in (
        ({"state": None}, "names for some"), ({"state": {}}, "keeps no state"),
        ({"takes": {"time": "int"}}, "called time"), ({"state": {"s": "interval"}}, "cannot be stored"),
        ({"ttl": "0 seconds"}, "forgotten after 0"), ({"kind": "holistic"}, "stateful"),
    ):  # fmt: skip
        given = {"kind": "stateful", **terms, **change}
        with pytest.raises(QueryTypeError, match=says):
            front.function("other", "sample_functions:Totals", **given)  # type: ignore[arg-type]
