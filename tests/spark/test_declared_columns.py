"""Columns as they are declared: defaults, CHAR and VARCHAR, names in backticks; clauses without an effect."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.conf import RuntimeConfig

from kit.judges.interpreted import interpreted_rows
from millpond import Pond
from millpond.errors import QueryError, QueryRefused, QueryTypeError
from millpond.model.endpoints import stream_names
from millpond.model.stream import Field
from millpond.spark.catalyst.data_types import columns_type, schema_of, sql_type, table_schema
from millpond.spark.catalyst.private_names import analysed
from millpond.spark.frontend.create_clauses import SOURCES_WITH_DEFAULTS
from millpond.spark.frontend.frontend import FrontEnd
from millpond.spark.frontend.statements import parse_file
from millpond.spark.sources.value_formats import check_format
from millpond.testing import Trial

COLUMNS = """ts TIMESTAMP, k VARCHAR(3), v INT DEFAULT 3 + 4, c CHAR(4) DEFAULT 'z', d DECIMAL(5,2) DEFAULT 1.5,
t TIMESTAMP DEFAULT TIMESTAMP '2024-01-01 00:00:00', n STRUCT<a: CHAR(3)>, l ARRAY<CHAR(3)>, m MAP<STRING, CHAR(3)>"""
RECORDS = [
    '{"ts": "2024-01-01T00:00:01Z", "k": "abcdef"}',
    '{"ts": "2024-01-01T00:00:02Z", "k": "b", "v": null, "c": null}',
    '{"ts": "2024-01-01T00:00:03Z", "k": "c", "v": 3, "c": "ab", "n": {"a": "x"}, "l": ["a", "bbbb"], "m": {"p": "q"}}',
    '{"ts": "2024-01-01T00:00:04Z", "k": "d", "c": "abcdef", "d": 2.25, "t": "2024-02-02T00:00:00Z", "n": null}',
]
ANSWER = "SELECT k, v, c, length(c) AS s, c = 'ab' AS e, d, t, n, l, m['p'] AS p FROM"
NAMES = """h STRUCT<`content-type`: STRING>, a ARRAY<STRUCT<`x y`: INT>>, m MAP<STRING, STRUCT<`+1`: INT>>,
n STRUCT<`a.b`: STRUCT<`c``d`: CHAR(3), `😀`: INT, `größe`: STRING COLLATE UTF8_LCASE>, `select`: INT>"""


def _json(frame: DataFrame) -> list[str]:
    return sorted(row[0] for row in interpreted_rows(frame.select(F.to_json(F.struct("*")))))


def _plain(lines: list[str]) -> list[dict[str, object]]:
    """Rows without the columns that are NULL, which may be left out."""
    return [json.loads(line, object_hook=lambda row: {k: v for k, v in row.items() if v is not None}) for line in lines]


def _rows(folder: Path) -> list[str]:
    return sorted(line for part in folder.glob("part-*") for line in part.read_text().splitlines())


def test_a_pond_answers_as_a_table_of_spark_with_the_same_columns(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "json").mkdir()
    (tmp_path / "json" / "a.json").write_text("\n".join(RECORDS))
    (tmp_path / "csv").mkdir()
    (tmp_path / "csv" / "a.csv").write_text(
        "2024-01-01T00:00:01Z,a\n2024-01-01T00:00:02Z,b,\n2024-01-01T00:00:03Z,c,3,ab\n2024-01-01T00:00:04Z,d,4,abcdef\n"
    )
    (tmp_path / "odd").mkdir()
    (tmp_path / "odd" / "a.json").write_text(
        '{"ts": "2024-01-01T00:00:01Z", "h": {"content-type": "json"}, "a": [{"x y": 1}], "m": {"k": {"+1": 2}},'
        ' "n": {"a.b": {"c`d": "q", "😀": 5, "größe": "L"}, "select": 6}}'
    )
    spark.sql("SELECT timestamp '2024-01-01 00:00:01' AS ts, 'a' AS k").write.parquet(f"{tmp_path}/parquet")
    narrow = "ts TIMESTAMP, k STRING, v INT DEFAULT 7, c CHAR(4) DEFAULT 'z'"
    spark.sql("SELECT timestamp '2024-01-01 00:00:02' AS ts, 'b' AS k, CAST(NULL AS INT) AS v, 'ab' AS c").write.mode(
        "append"
    ).parquet(f"{tmp_path}/parquet")
    tables = {"json": COLUMNS, "csv": narrow, "parquet": narrow}
    brief = "SELECT k, v, c, length(c) AS s, c = 'ab' AS e FROM"
    odd = "SELECT h, h.`content-type` AS t, a[0].`x y` AS x, m['k'].`+1` AS o, n, n.`a.b`.`c``d` AS q FROM"
    names = NAMES.replace(" COLLATE UTF8_LCASE", "")
    statements, expected = [f"CREATE TABLE odd (ts TIMESTAMP, {names}) USING json OPTIONS (path '{tmp_path}/odd')"], {}
    try:
        for form, columns in tables.items():
            spark.sql(f"CREATE TABLE batch_{form} ({columns}) USING {form} LOCATION '{tmp_path}/{form}'")
            answer = ANSWER if form == "json" else brief
            expected[form] = _json(spark.sql(f"{answer} batch_{form}"))
            statements.append(f"CREATE TABLE {form} ({columns}) USING {form} OPTIONS (path '{tmp_path}/{form}')")
            statements.append(_written(tmp_path, form, f"{answer} STREAM {form}"))
        # with CHAR(3) in such a struct Spark cannot read a table of its own
        spark.sql(f"CREATE TABLE batch_odd ({names.replace('CHAR(3)', 'STRING')}) USING json LOCATION '{tmp_path}/odd'")
        expected["o"] = [line.replace(':"q"', ':"q  "') for line in _json(spark.sql(f"{odd} batch_odd"))]
        statements.append(_written(tmp_path, "o", f"{odd} STREAM odd"))
        statements.append(_written(tmp_path, "sums", "SELECT c, sum(v) AS n FROM STREAM json WATERMARK ts DELAY OF "
            "INTERVAL 1 SECOND WHERE v = 7 OR c <> 'ab' GROUP BY window(ts, '1 hour'), c"))  # fmt: skip
        statements.append(_written(tmp_path, "shown", "SELECT c, n FROM STREAM sums"))
        with Pond(spark, tmp_path / "pond") as pond:
            pond.load(";\n".join(statements))
            pond.run(once=True, drain=True)
    finally:
        for name in [*tables, "odd"]:
            spark.sql(f"DROP TABLE IF EXISTS batch_{name}")
    for name, rows in expected.items():
        assert _plain(_rows(tmp_path / "out" / name)) == _plain(rows)
    assert _rows(tmp_path / "out" / "shown") == ['{"c":"abcdef","n":7}', '{"c":"z   ","n":7}']
    with Pond(spark, tmp_path / "pond") as again:  # the spec says all of it
        again.open()
        declared = {stream.name: stream.columns for stream in again.streams}
        assert declared["json"][2:4] == (Field("v", "int", "7"), Field("c", "string", "'z'", "char(4)"))


def _written(folder: Path, name: str, text: str) -> str:
    name = f"{name}_out" if name in stream_names() else name
    path = f"{folder}/out/{name.removesuffix('_out')}"
    return f"CREATE STREAMING TABLE {name} USING json TBLPROPERTIES ('path' = '{path}') AS {text}"


def test_a_type_is_a_value_that_its_text_gives_back(spark: SparkSession) -> None:
    columns = table_schema(NAMES)
    fields = [Field(field.name, sql_type(field.dataType)) for field in columns.fields]
    assert schema_of(fields).simpleString() == columns.simpleString()
    assert fields[3].type == (
        "struct<`a.b`:struct<`c``d`:string,`😀`:int,`größe`:string collate UTF8_LCASE>,select:int>"
    )
    assert columns_type([("a`b", fields[0].type)]).fields[0].name == "a`b"
    assert columns_type([]).fields == []


def test_functions_of_batches_and_tables_have_such_columns_too(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "t.json").write_text('{"k": "a", "h": {"x-y": "1"}}')
    pond = parse_file(spark, "CREATE TEMPORARY VIEW t (k CHAR(2), h STRUCT<`x-y`: VARCHAR(3)>) USING json OPTIONS "
                             f"(path '{tmp_path}/t.json')")  # fmt: skip
    assert pond.views[0].table is not None
    frame = FrontEnd(spark).table("t", pond.views[0].table, pond.views[0].schema)
    assert json.loads(_json(frame)[0]) == {"k": "a ", "h": {"x-y": "1"}}


CLAUSES = [
    ("v STRING GENERATED ALWAYS AS (reflect('java.lang.System', 'getProperty', 'user.home'))", "", "reflect"),
    ("v BIGINT GENERATED ALWAYS AS IDENTITY", "", "IDENTITY"),
    ("v BIGINT GENERATED BY DEFAULT AS IDENTITY (START WITH 3)", "", "IDENTITY"),
    ("v INT NOT NULL", "", "NOT NULL"),
    ("v STRUCT<a: INT NOT NULL>", "", "NOT NULL"),
    ("v ARRAY<STRUCT<a: INT NOT NULL>>", "", "NOT NULL"),
    ("v MAP<STRING, STRUCT<a: INT NOT NULL>>", "", "NOT NULL"),
    ("v INT CHECK (v > 1)", "", "CHECK"),
    ("v INT, CONSTRAINT c CHECK (v > 100)", "", "CHECK"),
    ("v INT PRIMARY KEY", "", "PRIMARY KEY"),
    ("v INT, PRIMARY KEY (v)", "", "PRIMARY KEY"),
    ("v INT UNIQUE", "", "UNIQUE"),
    ("v INT REFERENCES other (v)", "", "FOREIGN KEY"),
    ("v INT, FOREIGN KEY (v) REFERENCES other (v)", "", "FOREIGN KEY"),
    ("v INT", "PARTITIONED BY (u)", "PARTITIONED BY u"),
    ("v INT", "PARTITIONED BY (days(ts))", "PARTITIONED BY"),
    ("v INT", "CLUSTERED BY (v) INTO 4 BUCKETS", "CLUSTER BY"),
    ("v INT", "CLUSTERED BY (v) SORTED BY (k) INTO 4 BUCKETS", "CLUSTER BY"),
    ("v INT", "CLUSTER BY (v)", "CLUSTER BY"),
    ("v INT", "DEFAULT COLLATION UTF8_LCASE", "DEFAULT COLLATION UTF8_LCASE"),
    ("v INT", "TBLPROPERTIES ('max_ahed' = '1 hour')", "max_ahed"),
    ("v INT DEFAULT 'abc'", "", "DEFAULT 'abc' of the column v"),
    ("v TINYINT DEFAULT 300", "", "DEFAULT 300"),
    ("v TIMESTAMP DEFAULT current_timestamp()", "", "current_timestamp"),
    ("v TIMESTAMP DEFAULT CAST('now' AS TIMESTAMP)", "", "'now'"),
    ("v STRING DEFAULT reflect('java.lang.System', 'getProperty', 'user.home')", "", "reflect"),
    ("v INT DEFAULT (SELECT 1)", "", "DEFAULT (SELECT 1)"),
    ("v INT DEFAULT k", "", "DEFAULT k"),
]


@pytest.mark.parametrize(("column", "clause", "named"), CLAUSES)
def test_a_clause_of_a_stream_without_an_effect_is_refused(
    spark: SparkSession, column: str, clause: str, named: str
) -> None:
    text = f"CREATE TABLE s (ts TIMESTAMP, k INT, {column}) USING json OPTIONS (path 'in') {clause}"
    with pytest.raises(QueryError, match=r"line 1") as refused:
        FrontEnd(spark).load_file(text, lambda source: source)
    assert named in str(refused.value) and refused.value.cure


@pytest.mark.parametrize("sql", [
    "rand()", "current_timestamp()", "k + nothing", "sum(k)", "explode(array(k))", "row_number() OVER (ORDER BY k)",
    "w", "(SELECT 1)", "array(k)",
])  # fmt: skip
def test_what_a_column_cannot_be_generated_from_is_refused(spark: SparkSession, tmp_path: Path, sql: str) -> None:
    text = f"""CREATE TABLE s (ts TIMESTAMP, v INT GENERATED ALWAYS AS ({sql}), k INT, w INT GENERATED ALWAYS AS (k))
    USING json OPTIONS (path '{tmp_path}')"""
    with pytest.raises(QueryError) as refused:
        FrontEnd(spark).load_file(text)
    assert sql.split("(")[0] in str(refused.value) and refused.value.cure


def test_generated_columns_of_a_zone_leave_the_session_alone(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    front, changed = FrontEnd(spark.newSession()), list[tuple[object, str]]()
    change = RuntimeConfig.set
    monkeypatch.setattr(
        RuntimeConfig, "set", lambda conf, name, to: (changed.append((conf._jconf, name)), change(conf, name, to))
    )
    frame = front.declare(parse_file(spark, f"""SET TIME ZONE 'Asia/Tokyo';
    CREATE TABLE s (ts TIMESTAMP, h INT GENERATED ALWAYS AS (hour(ts))) USING json OPTIONS (path '{tmp_path}')
    """).streams[0])  # fmt: skip
    zoned = [conf for conf, name in changed if name == "spark.sql.session.timeZone"]
    assert zoned and frame.sparkSession.conf._jconf not in zoned
    assert "Asia/Tokyo" in str(analysed(frame).toString())


def test_generated_columns_are_in_their_place_with_their_type(spark: SparkSession, tmp_path: Path) -> None:
    pond = parse_file(spark, f"""CREATE TABLE s (ts TIMESTAMP, v DOUBLE GENERATED ALWAYS AS (`k` * 2), k INT,
    t TIMESTAMP GENERATED ALWAYS AS (timestamp_seconds(k))) USING json OPTIONS (path '{tmp_path}')""")  # fmt: skip
    assert [field.name for field in pond.streams[0].columns] == ["ts", "k"]
    frame = FrontEnd(spark).declare(pond.streams[0])
    assert frame.schema.simpleString() == "struct<ts:timestamp,v:double,k:int,t:timestamp>"


@pytest.mark.parametrize(
    ("statement", "named"),
    [
        ("CREATE EXTERNAL TABLE s (ts TIMESTAMP) USING json OPTIONS (path 'in')", "EXTERNAL"),
        ("CREATE TABLE s (ts TIMESTAMP) STORED AS PARQUET", "STORED AS"),
        ("CREATE TABLE s (ts TIMESTAMP) ROW FORMAT DELIMITED FIELDS TERMINATED BY ','", "ROW FORMAT"),
        ("CREATE TABLE s (ts TIMESTAMP, v INT DEFAULT 1) USING avro OPTIONS (path 'in')", "DEFAULT"),
        ("CREATE TABLE s (a INT) USING rate", "other columns"),
        ("CREATE STREAMING TABLE s PARTITIONED BY (k) AS SELECT 1 AS k", "PARTITIONED BY"),
        ("CREATE STREAMING TABLE s CLUSTER BY (k) AS SELECT 1 AS k", "CLUSTER BY"),
        ("CREATE STREAMING TABLE s DEFAULT COLLATION UTF8_LCASE AS SELECT 1 AS k", "DEFAULT COLLATION"),
        ("CREATE STREAMING TABLE s (k INT NOT NULL) AS SELECT 1 AS k", "lists columns"),
        ("CREATE TEMPORARY VIEW s DEFAULT COLLATION UTF8_LCASE AS SELECT 1 AS k", "DEFAULT COLLATION"),
        ("CREATE TEMPORARY VIEW s (k COMMENT 'x') AS SELECT 1", "lists columns"),
        ("CREATE TEMPORARY VIEW s (a INT NOT NULL) USING json OPTIONS (path 'in')", "NOT NULL"),
        ("CREATE TEMPORARY VIEW s (a STRUCT<b: INT NOT NULL>) USING json OPTIONS (path 'in')", "NOT NULL"),
    ],
)
def test_a_clause_of_other_statements_is_refused(spark: SparkSession, statement: str, named: str) -> None:
    with pytest.raises(QueryError, match=named):
        parse_file(spark, statement)


def test_clauses_that_promise_nothing_or_are_honoured(spark: SparkSession) -> None:
    pond = parse_file(spark, """
        CREATE TABLE IF NOT EXISTS s (ts TIMESTAMP COMMENT 'when', v INT DEFAULT NULL, w STRING COLLATE UTF8_LCASE)
        USING json COMMENT 'events' LOCATION '/in';
        CREATE STREAMING TABLE IF NOT EXISTS o COMMENT 'rows' AS SELECT v FROM STREAM s;
        CREATE OR REPLACE TEMPORARY VIEW v COMMENT 'a view' AS SELECT v FROM STREAM s""")  # fmt: skip
    assert pond.streams[0].source is not None and dict(pond.streams[0].source.options) == {"path": "/in"}
    columns = (Field("v", "int", "CAST(NULL AS INT)"), Field("w", "string collate UTF8_LCASE"))
    assert pond.streams[0].columns[1:] == columns


NAMED = {"avro": {"schema": "f"}, "protobuf": {"schema": "f", "message": "m"}}


@pytest.mark.parametrize("form", ["csv", "avro", "protobuf", "raw"])
def test_values_of_kafka_without_defaults_say_so(form: str) -> None:
    with pytest.raises(QueryRefused, match=f"DEFAULT, which {form} values do not take"):
        check_format("s", {"format": form} | NAMED.get(form, {}), (Field("v", "string", "'a'"),))
    assert "kafka" in SOURCES_WITH_DEFAULTS


def test_a_trial_pads_and_asks_for_what_spark_fills_in(spark: SparkSession, tmp_path: Path) -> None:
    front = FrontEnd(spark)
    queries = front.load_file(
        f"CREATE TABLE s (ts TIMESTAMP, v INT DEFAULT 7, c CHAR(4)) USING json OPTIONS (path '{tmp_path}');"
        "CREATE STREAMING TABLE o AS SELECT v, c FROM STREAM s"
    )
    with Trial.of(front.streams.values(), queries) as trial:
        trial.feed("s", [{"ts": "2024-01-01", "v": None, "c": "ab"}, {"ts": "2024-01-01", "v": 1, "c": "abcdef"}])
        assert trial.rows("o") == [{"v": None, "c": "ab  "}, {"v": 1, "c": "abcdef"}]
        with pytest.raises(QueryTypeError, match="DEFAULT 7"):
            trial.feed("s", [{"ts": "2024-01-01", "c": "ab"}])
