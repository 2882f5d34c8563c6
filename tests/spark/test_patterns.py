"""MATCH_RECOGNIZE from SQL, pond files and DataFrames, compared with Python's regular expressions."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from kit.inputs.one_stream import front_end
from millpond import Pond, match_recognize
from millpond.errors import MillpondError, QueryRefused, QuerySyntaxError, QueryTypeError, UnsupportedQuery
from millpond.model.aggregates import Aggregate
from millpond.model.expressions import Column, call, literal
from millpond.model.patterns.variables import PREVIOUS, Variable, matched
from millpond.model.query import Query
from millpond.model.windows import Pattern
from millpond.plan.explain.plan_text import explain
from millpond.plan.options.live_parameters import parameters_in
from millpond.spark.frontend.frontend import FrontEnd

SCHEMA = "id bigint, card string, kind string, amount double, ts timestamp"
MINUTE = 60_000_000
AMOUNT, KIND = Column("amount", "double"), Column("kind", "string")
FRAUD = """SELECT card, n, total + 1 AS total, last FROM STREAM tx WATERMARK ts DELAY OF INTERVAL 30 SECONDS
MATCH_RECOGNIZE (
  PARTITION BY card
  ORDER BY ts
  MEASURES COUNT(*) AS n, SUM(B.amount) AS total, -- of the large ones
    LAST(A.ts) AS last, B.kind AS kind
  ONE ROW PER MATCH
  AFTER MATCH SKIP TO NEXT ROW
  PATTERN (A B{2,} C?) WITHIN INTERVAL '10' MINUTE
  DEFINE A AS A.amount < 5 AND kind = 'MATCH_RECOGNIZE (', B AS amount > 2 * PREV(amount)
) AS m WHERE total > 100"""


@pytest.fixture(scope="module")
def front(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> FrontEnd:
    return front_end(spark, SCHEMA, tmp_path_factory.mktemp("tx"))


def test_a_pattern_from_text(front: FrontEnd) -> None:
    query = front.query_from_sql("q", FRAUD)
    assert isinstance(query, Query)
    twice = call("multiply", (literal(2.0, "double"), Column(f"{PREVIOUS}0", "double")), "double")
    small = call("lt", (AMOUNT, literal(5.0, "double")), "boolean")
    named = call("eq", (KIND, literal("MATCH_RECOGNIZE (", "string")), "boolean")
    assert query.window == Pattern(
        "A B{2,} C?", 10 * MINUTE,
        (Variable("A", call("and", (small, named), "boolean")),
         Variable("B", call("lt", (twice, AMOUNT), "boolean"))),
        True, (AMOUNT,),
    )  # fmt: skip
    assert (query.delay_us, query.keys, query.text) == (30_000_000, (Column("card", "string"),), FRAUD)
    assert query.aggregates == (
        Aggregate("count", None, None, "bigint"),
        Aggregate("sum", AMOUNT, matched("B"), "double"),
        Aggregate("last", Column("ts", "timestamp"), matched("A"), "timestamp"),
        Aggregate("last", KIND, matched("B"), "string"),
    )
    assert [item.name for item in query.output] == ["card", "n", "total", "last"]
    assert query.having == call("gt", (Column("agg:1", "double"), literal(100.0, "double")), "boolean")


CLAUSE = (
    "SELECT * FROM tx MATCH_RECOGNIZE (PARTITION BY card ORDER BY ts MEASURES COUNT(*) AS n "
    "PATTERN (A B+) WITHIN '1 hour' DEFINE A AS amount < 5, B AS amount > 5)"
)
LARGER = CLAUSE.replace("B AS amount > 5", "B AS amount > A.amount AND upper(kind) <> FIRST(kind)")
REFUSED = [
    ("WITHIN '1 hour'", "", UnsupportedQuery, "no WITHIN"),
    ("WITHIN '1 hour'", "WITHIN INTERVAL 1 MONTH", QueryTypeError, "counts months"),
    ("WITHIN '1 hour'", "WITHIN soon", QueryTypeError, "no interval"),
    ("PATTERN (A B+)", "PATTERN (A B+ ^)", QueryTypeError, "does not parse at `\\^`"),
    ("PATTERN (A B+)", "PATTERN (A* B*)", QueryTypeError, "can match no event"),
    ("PATTERN (A B+)", "ALL ROWS PER MATCH PATTERN (A B+)", UnsupportedQuery, "ALL ROWS PER MATCH"),
    ("PATTERN (A B+)", "AFTER MATCH SKIP TO LAST B PATTERN (A B+)", UnsupportedQuery, "SKIP TO LAST B"),
    ("A AS amount < 5", "A AS amount < B.amount", UnsupportedQuery, "A reads other .* line 1, column 140"),
    ("B AS amount > 5", "B AS amount > PREV(A.amount)", UnsupportedQuery, "another event inside"),
    ("B AS amount > 5", "B AS amount > AVG(B.amount)", UnsupportedQuery, "B reads other events"),
    ("B AS amount > 5", "B AS amount > PREV(amount, 2)", UnsupportedQuery, "further away"),
    ("B AS amount > 5", "B AS format_number(PREV(amount), 2) = '1'", UnsupportedQuery, "another event inside"),
    ("B AS amount > 5", "C AS amount > 5", QueryTypeError, "C, which is no variable"),
    ("B AS amount > 5", "B AS amuont > 5", QueryTypeError, "amuont"),
    ("COUNT(*) AS n", "COUNT(*)", QuerySyntaxError, "without a name"),
    ("COUNT(*) AS n", "SUM(A.amount + B.amount) AS n", UnsupportedQuery, "A and B"),
    ("COUNT(*) AS n", "LAST(A.amount, 1) AS n", UnsupportedQuery, r"offset: LAST\(A\.amount\)\."),
    ("COUNT(*) AS n", "MATCH_NUMBER() AS n", UnsupportedQuery, "MATCH_NUMBER"),
    ("ORDER BY ts", "ORDER BY ts DESC", UnsupportedQuery, "ordered by ts DESC"),
    ("ORDER BY ts", "ORDER BY card", UnsupportedQuery, "one column of type timestamp"),
    ("FROM tx MATCH", "FROM tx, tx AS b MATCH", QuerySyntaxError, "does not follow FROM and one relation"),
]


@pytest.mark.parametrize(("old", "new", "kind", "what"), REFUSED)
def test_other_patterns_are_refused_by_name(
    front: FrontEnd, old: str, new: str, kind: type[MillpondError], what: str
) -> None:
    with pytest.raises(kind, match=what):
        front.query_from_sql("q", CLAUSE.replace(old, new))


def test_a_text_that_reads_files_stays_refused(front: FrontEnd) -> None:
    for part in ("MEASURES MAX(java_method('a', 'b')) AS n", "MEASURES COUNT(*) AS n), parquet.`/etc` AS (SELECT 1"):
        with pytest.raises((QueryRefused, QuerySyntaxError)):
            front.query_from_sql("q", CLAUSE.replace("MEASURES COUNT(*) AS n", part))


def test_a_condition_reads_the_first_event_of_the_match(front: FrontEnd) -> None:
    query = front.query_from_sql("q", LARGER)
    assert isinstance(query, Query) and isinstance(query.window, Pattern)
    assert (query.window.previous, query.window.first) == ((), (AMOUNT, KIND))
    with pytest.raises(UnsupportedQuery, match="B reads other events"):
        front.query_from_sql("q", LARGER.replace("(A B+)", "(A+ B)"))


def test_a_condition_may_have_a_live_parameter(front: FrontEnd) -> None:
    front.parameters["floor"] = literal(5.0, "double")
    query = front.query_from_sql("q", CLAUSE.replace("amount > 5", "amount > :floor"))
    assert parameters_in(query) == {"floor"}
    with pytest.raises(UnsupportedQuery, match="live parameter and reads another event"):
        front.query_from_sql("q", CLAUSE.replace("amount > 5", "amount > :floor + PREV(amount)"))


def test_a_pattern_without_keys(front: FrontEnd) -> None:
    query = front.query_from_sql("q", CLAUSE.replace("PARTITION BY card ", ""))
    assert isinstance(query, Query)
    assert (query.keys, [item.name for item in query.output]) == ((), ["n"])


def test_only_the_clause_makes_patterns(front: FrontEnd) -> None:
    for note in ("abc", "7b7d"):
        hidden = f"CASE WHEN raise_error('only a pond answers match_recognize {note}') IS NULL THEN ts END"
        with pytest.raises(UnsupportedQuery, match="window"):
            front.query_from_sql("q", f"SELECT count(*) AS n FROM tx GROUP BY window({hidden}, '1 day')")
    with pytest.raises(UnsupportedQuery, match="unknown way"):
        front.query_from_sql("q", "SELECT count(*) FILTER (WHERE ts = timestamp_micros(-61940000000000000L)) AS n "
                             "FROM tx GROUP BY window(ts, '1 day')")  # fmt: skip


@pytest.fixture(scope="module")
def pond(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pond]:
    """A pond that has answered the same pattern from a file, a text and a DataFrame; `out` has the rows of the file."""
    folder = tmp_path_factory.mktemp("made")
    rows = spark.range(0, 240, 1, 3).selectExpr(
        "id", "concat('c', id * id % 3) AS card", "substring('aabbbc', cast(id * 7 % 11 % 6 AS int) + 1, 1) AS kind",
        "cast(id AS double) AS amount", "timestamp_seconds(1700000000 + id * 10) AS ts",
    )  # fmt: skip
    rows.write.parquet(str(folder / "tx"))
    (folder / "later").mkdir()
    *_, last = sorted((folder / "tx").glob("part-*"))
    last.rename(folder / "later" / last.name)
    clause = (
        "MATCH_RECOGNIZE (PARTITION BY card ORDER BY ts MEASURES FIRST(A.id) AS first, LAST(B.id) AS last,\n"
        "COUNT(*) AS n, SUM(B.amount) AS total, COUNT(A.*) AS heads PATTERN (A+ B{1,2} C??) WITHIN INTERVAL 1 DAY\n"
        "DEFINE A AS kind = 'a', B AS kind RLIKE '^b' AND (PREV(id) < id OR PREV(id) IS NULL), C AS kind = 'c')"
    )
    with Pond(spark, folder / "pond") as pond:
        pond.load(
            f"CREATE TABLE tx_s ({SCHEMA}) USING parquet OPTIONS (path '{folder / 'tx'}', maxFilesPerTrigger 1);"
            "CREATE TEMPORARY VIEW tx AS SELECT * FROM STREAM tx_s WATERMARK ts DELAY OF INTERVAL 3 HOURS;"
            f"CREATE STREAMING TABLE filed USING json TBLPROPERTIES ('path' = '{folder / 'out'}') AS "
            f"SELECT card, first, last, n, total, heads FROM tx {clause};"
        )
        pond.add("text", f"SELECT upper(card) AS card, n FROM tx {clause} WHERE heads > 1")
        timed = clause.replace("MEASURES", "MEASURES LAST(ts) AS at,")
        pond.add("counted", f"SELECT window(at, '10 minutes').start AS w, count(*) AS n FROM tx {timed} GROUP BY ALL")
        stream = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(folder / "tx"))
        frame = match_recognize(
            stream.withWatermark("ts", "3 hours"), partition_by=["card"], order_by="ts", pattern="A+ B{1,2} C??",
            within="1 day", define={"A": "kind = 'a'", "B": "kind = 'b' AND id > FIRST(id)", "C": "kind = 'c'"},
            measures={"first": "FIRST(A.id)", "n": "COUNT(*)"},
        )  # fmt: skip
        pond.add("framed", frame, serve=True)
        pond.run(once=True)
    *_, last = sorted((folder / "later").iterdir())
    last.rename(folder / "tx" / last.name)
    with Pond(spark, folder / "pond") as pond:  # it knows the queries from its log, and the state of the first run
        pond.run(once=True, drain=True)
        spark.read.json(str(folder / "out" / "part-*.json")).createOrReplaceTempView("filed_rows")
        yield pond


def test_matches_are_those_of_regular_expressions(spark: SparkSession, pond: Pond) -> None:
    expected, ends = [], Counter[int]()
    for card in ("c0", "c1"):
        ids = [i for i in range(240) if f"c{i * i % 3}" == card]
        kinds = "".join("aabbbc"[i * 7 % 11 % 6] for i in ids)
        for match in re.finditer(r"(a+)b{1,2}(?:c??)", kinds):
            events = ids[match.start() : match.end()]
            lasts = events[len(match[1]) :]
            ends[(1_700_000_000 + 10 * events[-1]) // 600 * 600] += 1
            row = {"card": card, "first": events[0], "last": lasts[-1], "n": len(events), "total": float(sum(lasts))}
            expected.append(row | {"heads": len(match[1])})
    assert len(expected) > 20
    filed = spark.sql("SELECT card, first, last, n, total, heads FROM filed_rows").toArrow().to_pylist()
    assert sorted(map(repr, filed)) == sorted(map(repr, expected))
    assert sorted(pond.table("framed").select(["card", "first", "n"]).to_pylist(), key=repr) == sorted(
        ({name: row[name] for name in ("card", "first", "n")} for row in expected), key=repr
    )
    assert {int(row["w"].timestamp()): row["n"] for row in pond.table("counted").to_pylist()} == ends
    several = [{"card": str(row["card"]).upper(), "n": row["n"]} for row in expected if row["heads"] > 1]
    assert sorted(map(repr, pond.table("text").to_pylist())) == sorted(map(repr, several))


def test_a_pattern_is_altered_and_dropped(pond: Pond) -> None:
    before = pond.table("text").num_rows
    pond.alter("text", pond.plan.of_query("text")[1].query.text.replace("C??", "C?"))
    pond.drop("framed")
    assert {query.name for query in pond.plan.all_queries} >= {"filed", "text", "counted"}
    assert "framed" not in {query.name for query in pond.queries}
    assert pond.table("text").num_rows == before


def test_words_for_people(pond: Pond) -> None:
    said = explain(pond.plan, pond.streams)
    assert "matches of A+ B{1,2} C?? within 1 day" in said and "the longest pattern and its delay" in said
    assert pond.why("filed").causes
