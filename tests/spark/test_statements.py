"""Pond files: what Spark parses becomes streams and queries; everything else is refused with its cure."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from millpond import Pond
from millpond.errors import MillpondError, QueryRefused, QuerySyntaxError, QueryTypeError, UnsupportedQuery
from millpond.model.endpoints import Sink, Source
from millpond.model.stream import Field, Order, Retention, Stream
from millpond.spark.frontend.frontend import FrontEnd
from millpond.spark.frontend.statements import parse_file, split

TX = (
    "CREATE TABLE tx (id BIGINT, amount DOUBLE, ts TIMESTAMP) USING parquet "
    "OPTIONS (path 'data/tx', maxFilesPerTrigger 1)"
)
SELECT = """SELECT id, window(ts, '1 hour', '1 minute') AS w, sum(amount) AS s -- the sum; of all
FROM STREAM tx WATERMARK ts DELAY OF INTERVAL 10 SECONDS WHERE id <> 3 GROUP BY ALL"""


def test_a_file(spark: SparkSession) -> None:
    text = f"""-- money; in motion
{TX};
/* a beat; /* nested; */ */
CREATE TABLE beat USING rate OPTIONS (rowsPerSecond 5);
CREATE STREAMING TABLE spend USING parquet TBLPROPERTIES ('path' = 'out/spend', 'serve' = 'true') AS
{SELECT};
CREATE STREAMING TABLE quiet AS {SELECT}
"""
    pond = parse_file(spark, text)
    columns = (Field("id", "bigint"), Field("amount", "double"), Field("ts", "timestamp"))
    assert pond.streams == (
        Stream("tx", columns, Source("parquet", (("maxFilesPerTrigger", "1"), ("path", "data/tx")))),
        Stream(
            "beat",
            (Field("timestamp", "timestamp"), Field("value", "bigint")),
            Source("rate", (("rowsPerSecond", "5"),)),
        ),
    )
    spend, quiet = pond.queries
    assert (spend.name, spend.text, spend.declared.serve, spend.line) == ("spend", SELECT, True, 5)
    sinks = (spend.declared.sink, quiet.declared.sink, quiet.declared.serve)
    assert sinks == (Sink("parquet", "out/spend"), Sink("noop"), False)


ORDERED = """CREATE TABLE log (part INT, off BIGINT, seen TIMESTAMP) USING json OPTIONS (path 'log')
TBLPROPERTIES ('order.partition' = 'part', 'order.offset' = 'off', 'order.partitions' = '0, 1',
               'Idle_After' = '30 seconds', 'max_ahead' = 'INTERVAL 2 HOURS')"""


def test_a_stream_states_its_order_and_a_query_where_late_rows_go(spark: SparkSession) -> None:
    text = f"""{ORDERED};
{TX} TBLPROPERTIES ('max_ahead' = 'none');
CREATE STREAMING TABLE a USING json TBLPROPERTIES ('path' = 'out/a', 'late.path' = 'out/late') AS {SELECT};
CREATE STREAMING TABLE b TBLPROPERTIES ('late.format' = 'parquet', 'late.path' = 'out/b') AS {SELECT};
CREATE STREAMING TABLE c TBLPROPERTIES ('late.format' = 'console') AS {SELECT};
CREATE STREAMING TABLE e USING json TBLPROPERTIES ('late.format' = 'csv') AS {SELECT};
CREATE STREAMING TABLE d AS {SELECT};
CREATE STREAMING TABLE f USING delta TBLPROPERTIES ('path' = 'out/f', 'late.path' = 'out/f-late') AS {SELECT};
CREATE STREAMING TABLE g TBLPROPERTIES ('late.path' = 'out/g') AS {SELECT}"""
    pond = parse_file(spark, text)
    log, tx = pond.streams
    assert log.order == Order("part", "off", ("0", "1"), 30_000_000)
    assert log.max_ahead_us == 7_200_000_000
    assert (tx.order, tx.max_ahead_us) == (None, None)
    lates = [query.declared.late for query in pond.queries]
    assert lates[:5] == [Sink("json", "out/late"), Sink("parquet", "out/b"), Sink("console"), Sink("csv"), None]
    assert lates[5:] == [Sink("parquet", "out/f-late"), Sink("parquet", "out/g")], "no folder of files: Parquet"
    formats = [query.declared.sink.format for query in pond.queries]
    assert formats == ["json", "noop", "noop", "json", "noop", "delta", "noop"]


def test_a_stream_states_what_it_retains(spark: SparkSession) -> None:
    kept = "'retain.slices' = '7 days', 'retain.events' = '1 hour', 'retain.columns' = 'id', 'grain' = '1 second'"
    (tx,) = parse_file(spark, f"{TX} TBLPROPERTIES ({kept}); CREATE STREAMING TABLE a AS {SELECT}").streams
    day = 86_400_000_000
    assert tx.retain == Retention(7 * day, day // 24, 1_000_000, ("id",))


def test_a_sink_takes_its_own_properties(spark: SparkSession) -> None:
    text = f"""{TX};
CREATE STREAMING TABLE a USING postgres TBLPROPERTIES ('table' = 's.t', 'key' = 'id', 'connection' = 'db') AS {SELECT};
CREATE STREAMING TABLE b USING webhook TBLPROPERTIES ('Rows' = '10') AS {SELECT};
CREATE STREAMING TABLE c USING delta TBLPROPERTIES ('path' = 'out/c') AS {SELECT}"""
    assert [query.declared.sink for query in parse_file(spark, text).queries] == [
        Sink("postgres", None, (("connection", "db"), ("key", "id"), ("table", "s.t"))),
        Sink("webhook", None, (("rows", "10"),)),
        Sink("delta", "out/c"),
    ]


def test_a_file_becomes_queries(spark: SparkSession, tmp_path: object) -> None:
    door = FrontEnd(spark)
    queries = door.load_file(f"{TX.replace('data/tx', str(tmp_path))}; CREATE STREAMING TABLE a AS {SELECT};")
    assert [(query.name, query.stream, query.text) for query in queries] == [("a", "tx", SELECT)]
    assert list(door.streams) == ["tx"]


def test_a_wrong_query_is_reported_with_name_and_line(spark: SparkSession, tmp_path: object) -> None:
    text = f"{TX.replace('data/tx', str(tmp_path))};\n\nCREATE STREAMING TABLE a AS SELECT nosuch FROM tx;"
    with pytest.raises(QueryTypeError, match=r"In a \(line 3 of the file\): .*nosuch"):
        FrontEnd(spark).load_file(text)


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("", []),
        (" ;; -- nothing\n /* at; all */ ;", []),
        ("a;b", ["a", "b"]),
        ("a;b;", ["a", "b"]),
        ("a ';' b; c", ["a ';' b", "c"]),
        ('a ";" b; c', ['a ";" b', "c"]),
        ("a `;` b; c", ["a `;` b", "c"]),
        (r"a 'it\';' b; c", [r"a 'it\';' b", "c"]),
        ("a 'it'';' b; c", ["a 'it'';' b", "c"]),
        (r"a r'\'; c", [r"a r'\'", "c"]),
        (r"bar'\';' b; c", [r"bar'\';' b", "c"]),
        ("a -- ; '\n b; c", ["a -- ; '\n b", "c"]),
        ("a -- one \\\n ; still\n b; c", ["a -- one \\\n ; still\n b", "c"]),
        ("a /* ; ' */ b; c", ["a /* ; ' */ b", "c"]),
        ("a /* x /* ; */ ; */ b; c", ["a /* x /* ; */ ; */ b", "c"]),
        ("a '--' b; c", ["a '--' b", "c"]),
        ("a '/*' b; c", ["a '/*' b", "c"]),
        ("a $$ ; $$ b; c", ["a $$ ; $$ b", "c"]),
        ("a - - b; c", ["a - - b", "c"]),
    ],
)
def test_split(text: str, pieces: list[str]) -> None:
    assert [statement.text for statement in split(text)] == pieces


def test_split_counts_lines() -> None:
    assert [statement.line for statement in split("\n a;\n\n-- x\nb;c")] == [2, 4, 5]


@pytest.mark.parametrize("text", ["a 'b; c", 'a "b; c', "a `b", "a /* b; c", "a /* /* */ b"])
def test_what_is_opened_must_be_closed(text: str) -> None:
    with pytest.raises(QuerySyntaxError, match="never closed"):
        split(text)


def test_views_stand_for_selects_and_tables(spark: SparkSession, tmp_path: Path) -> None:
    spark.range(3).write.parquet(str(tmp_path / "names"))
    text = f"""{TX.replace("data/tx", str(tmp_path))};
CREATE TEMPORARY VIEW names USING parquet OPTIONS (path '{tmp_path / "names"}');
CREATE TEMPORARY VIEW big AS SELECT * FROM STREAM tx WATERMARK ts DELAY OF INTERVAL 5 SECONDS WHERE amount > 10;
CREATE STREAMING TABLE a AS SELECT count(*) AS n FROM big JOIN names USING (id) GROUP BY window(ts, '1 hour')"""
    views = parse_file(spark, text).views
    assert [(view.name, view.text is None, view.line) for view in views] == [("names", True, 2), ("big", False, 3)]
    [query] = FrontEnd(spark).load_file(text)
    assert (query.delay_us, query.stream[:3]) == (5_000_000, "tx_")
    assert not spark.catalog.tableExists("big")


WRONG_VIEWS = [
    ("CREATE TEMPORARY VIEW v AS SELECT java_method('a', 'b') FROM tx", QueryRefused, "java_method"),
    ("CREATE TEMPORARY VIEW v AS SELECT * FROM text.`/etc/passwd`", QueryRefused, "the relation text"),
    ("CREATE TEMPORARY VIEW v AS SELECT * FROM nosuch", QueryTypeError, "no stream nosuch"),
    ("CREATE TEMPORARY VIEW v AS SELECT window(ts, '1 hour') AS w FROM tx", UnsupportedQuery, "has a window"),
    ("CREATE TEMPORARY VIEW v AS SELECT nosuch FROM tx", QueryTypeError, "nosuch"),
    ("CREATE TEMPORARY VIEW v USING csv OPTIONS (path '/no/where/at/all')", QueryTypeError, "/no/where"),
]


@pytest.mark.parametrize(("text", "error", "what"), WRONG_VIEWS)
def test_a_view_is_judged_like_a_query(
    spark: SparkSession, tmp_path: Path, text: str, error: type[MillpondError], what: str
) -> None:
    with pytest.raises(error, match=rf"In v \(line 2 of the file\): .*{what}"):
        FrontEnd(spark).load_file(f"{TX.replace('data/tx', str(tmp_path))};\n{text}")


INTO_A = f"INSERT INTO a {SELECT}"
INTO = "CREATE STREAMING TABLE a USING json TBLPROPERTIES ('path' = 'o')"
REFUSED = [
    ("CREATE VIEW v AS SELECT 1", QueryRefused, "may not have CREATE VIEW"),
    ("CREATE GLOBAL TEMPORARY VIEW v AS SELECT 1", QueryRefused, "outlive"),
    ("CREATE GLOBAL TEMPORARY VIEW v USING csv OPTIONS (path 'x')", QueryRefused, "outlive"),
    ("CREATE TEMPORARY VIEW v (a) AS SELECT 1", QueryRefused, "lists columns"),
    ("CREATE TEMPORARY VIEW v USING text OPTIONS (path '/etc/passwd')", UnsupportedQuery, "USING text"),
    ("CREATE TEMPORARY VIEW v USING jdbc OPTIONS (sessionInitStatement 'DROP TABLE a')", QueryTypeError, "sessionInit"),
    (f"{TX}; CREATE TEMPORARY VIEW TX USING csv OPTIONS (path 'x')", QueryTypeError, "TX is created twice"),
    (f"{TX}; {TX}", QueryTypeError, "tx is created twice"),
    (f"{TX}; CREATE STREAMING TABLE TX AS {SELECT}", QueryTypeError, "TX is created twice"),
    ("CREATE TABLE a (b INT) USING kinesis OPTIONS (x 1)", UnsupportedQuery, "the source kinesis"),
    ("CREATE TABLE a (b INT) USING kafka OPTIONS (x 1)", QueryTypeError, "`x` is not an option of kafka"),
    (
        "CREATE TABLE a (b INT) USING kafka OPTIONS (subscribe 't', format 'json', `kafka.bootstrap.servers` 'h:1')",
        QueryRefused, "the option kafka.bootstrap.servers of a Kafka client",
    ),
    (
        "CREATE TABLE a (b INT) USING kafka OPTIONS (subscribe 't', format 'json', minPartitions 9)",
        QueryRefused, "lose their order",
    ),
    ("CREATE TABLE a (b INT) USING kafka OPTIONS (subscribe 't')", UnsupportedQuery, "has no format"),
    ("CREATE TABLE a (b INT)", UnsupportedQuery, "no USING clause"),
    ("CREATE TABLE a (b INT) USING parquet", QueryTypeError, "has no path"),
    ("CREATE TABLE a USING parquet OPTIONS (path 'x')", QueryTypeError, "declares no columns"),
    ("CREATE TABLE a (b INT) USING parquet OPTIONS (pth 'x')", QueryTypeError, "`pth` is not an option.*path"),
    ("CREATE TABLE a (b INT) USING json OPTIONS (path 'x', sep ',')", QueryTypeError, "`sep` is not an option"),
    ("CREATE TABLE a (b INT) USING rate", QueryTypeError, "other columns"),
    ("CREATE TABLE a (b INT) USING csv OPTIONS (path 'x') PARTITIONED BY (c)", QueryTypeError, "PARTITIONED BY c"),
    ("CREATE TABLE a (b INT) USING csv LOCATION 'x' CLUSTERED BY (b) INTO 2 BUCKETS", QueryRefused, "PARTITIONED BY"),
    ("CREATE TABLE a.b (b INT) USING csv OPTIONS (path 'x')", QueryRefused, "several parts"),
    ("CREATE TABLE a (b INT) USING csv OPTIONS (path '${env:HOME}')", QueryRefused, r"\$\{"),
    ("CREATE TABLE a USING parquet AS SELECT 1", QueryRefused, "may not have CREATE TABLE AS SELECT"),
    ("DROP TABLE a", QueryRefused, "may not have DROP TABLE"),
    ("SELECT 1", QueryRefused, "may not have a SELECT on its own"),
    ("CREATE TABLE a (b INT USING parquet", QuerySyntaxError, "line 1"),
    (f"CREATE STREAMING TABLE a TBLPROPERTIES ('path'='x') AS {SELECT}", QueryTypeError, "noop is not a folder"),
    (f"CREATE STREAMING TABLE a USING parquet TBLPROPERTIES ('path'='') AS {SELECT}", QueryTypeError, "is empty"),
    (f"CREATE STREAMING TABLE a USING iceberg AS {SELECT}", UnsupportedQuery, "written as iceberg"),
    (f"CREATE STREAMING TABLE a USING foreach AS {SELECT}", UnsupportedQuery, "written as foreach"),
    (f"CREATE STREAMING TABLE a USING webhook TBLPROPERTIES ('table'='t') AS {SELECT}", QueryTypeError, "has a table"),
    (f"CREATE STREAMING TABLE a USING postgres TBLPROPERTIES ('url'='h') AS {SELECT}", QueryTypeError, "`url` is not"),
    (f"CREATE STREAMING TABLE a TBLPROPERTIES ('sreve'='true') AS {SELECT}", QueryTypeError, "sreve.*serve"),
    (f"CREATE STREAMING TABLE a TBLPROPERTIES ('serve'='yes') AS {SELECT}", QueryTypeError, "'serve' of a is yes"),
    (f"CREATE STREAMING TABLE a TBLPROPERTIES ('late.path'='') AS {SELECT}", QueryTypeError, "late.path of a is empty"),
    (f"CREATE STREAMING TABLE a TBLPROPERTIES ('late.format'='noop') AS {SELECT}", UnsupportedQuery, "written as noop"),
    (f"CREATE STREAMING TABLE a TBLPROPERTIES ('emti'='x') AS {SELECT}", QueryTypeError, "`emti` is not.*emit"),
    (f"{TX} TBLPROPERTIES ('serve'='true')", QueryTypeError, "line 1: `serve` is not a property of a stream"),
    (f"{TX} TBLPROPERTIES ('order.offset'='id')", QueryTypeError, "'order.offset' without 'order.partition'"),
    (f"{TX} TBLPROPERTIES ('idle_after'='1 second')", QueryTypeError, "'idle_after' of the stream tx needs an order"),
    (f"{TX} TBLPROPERTIES ('max_ahead'='soon')", QueryTypeError, "'max_ahead' of the stream tx is 'soon'"),
    (f"{TX} TBLPROPERTIES ('max_ahead'='1 month')", QueryTypeError, "counts months"),
    (f"{TX} TBLPROPERTIES ('max_ahead'='-1 hour')", QueryTypeError, "negative"),
    (f"{TX} TBLPROPERTIES ('retain.slices'='-1 day')", QueryTypeError, "slices of the stream tx cannot be retained"),
    (f"{TX} TBLPROPERTIES ('retain.columns'='id')", QueryTypeError, "cannot retain id"),
    (f"{TX} TBLPROPERTIES ('retain.events'='1 day', 'retain.columns'='x')", QueryTypeError, "cannot retain x"),
    (ORDERED.replace("30 sec", "0 sec"), QueryTypeError, "idle_after of the stream log is not above zero"),
    (ORDERED.replace("'part'", "'prt'"), QueryTypeError, "no column prt for the partition"),
    (ORDERED.replace("'off'", "'seen'"), QueryTypeError, "seen of log is timestamp, which cannot be the offset"),
    ("CREATE STREAMING TABLE a (b INT)", QueryTypeError, "a has no SELECT"),
    (f"INSERT INTO a {SELECT}", QueryTypeError, "no statement before it declares this sink"),
    (f"{INTO}; INSERT INTO a {SELECT}; INSERT INTO a {SELECT}", QueryTypeError, "line 2: a has a SELECT already"),
    (f"{INTO}; INSERT OVERWRITE a {SELECT}", QueryRefused, "INSERT OVERWRITE"),
    (f"{INTO}; INSERT INTO a (b) {SELECT}", QueryRefused, "lists columns"),
    (f"{INTO}; INSERT INTO a PARTITION (dt = 1) {SELECT}", QueryRefused, "names a partition"),
    (f"{INTO}; INSERT INTO a VALUES (1)", QueryRefused, "without a SELECT"),
    (f"CREATE TABLE a (b INT DEFAULT 1) USING json LOCATION 'o'; {INTO_A}", QueryRefused, "has a DEFAULT"),
    (f"CREATE TABLE a (b INT); INSERT INTO a {SELECT}", UnsupportedQuery, "no USING clause"),
    ("SHOW TABLES", QueryRefused, "may not have SHOW TABLES"),
    ("SHOW CREATE TABLE a", QueryRefused, "may not have SHOW"),
    ("-- x\nDESCRIBE EXTENDED a", QueryRefused, "may not have DESCRIBE"),
    ("EXPLAIN SELECT 1", QueryRefused, "may not have EXPLAIN"),
    ("ALTER TABLE a ADD COLUMNS (b INT)", QueryRefused, "may not have ALTER"),
    ("UPDATE a SET b = 1", QueryRefused, "may not have UPDATE"),
    ("SELECT a FROM t ORDER BY a", QueryRefused, "may not have a SELECT on its own"),
    ("SET TIME ZONE 'Europe/Belin'", QueryTypeError, "'Europe/Belin' is not a time zone.*Did you mean: Europe/Berlin"),
    ("SET TIME ZONE LOCAL", QueryRefused, "depends on the host"),
    ("SET spark.sql.shuffle.partitions = 5", QueryRefused, "SET spark.sql.shuffle.partitions.*--instances"),
    ("SET 'table.local-time-zone' = 'UTC'", QueryRefused, "Write SET TIME ZONE"),
    ("SET", QueryRefused, "SET without a value"),
    (f"CREATE STREAMING TABLE a TBLPROPERTIES ('time.zone' = 'Mars') AS {SELECT}", QueryTypeError, "'Mars' is not"),
    ("SET TIME ZONE 'UTC'; CREATE TABLE a (t TIMESTAMP DEFAULT TIMESTAMP '2026-01-01') USING json OPTIONS (path 'x')",
     QueryRefused, "after SET TIME ZONE"),
    ("BEGIN SELECT 1; END", QuerySyntaxError, "line 1"),
    (f"CREATE STREAMING TABLE a CLUSTER BY (id) AS {SELECT}", QueryRefused, "CLUSTER BY"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "error", "what"), REFUSED)
def test_refusals(spark: SparkSession, text: str, error: type[MillpondError], what: str) -> None:
    with pytest.raises(error, match=what) as caught:
        parse_file(spark, text)
    assert caught.value.cure


def test_a_location_is_a_path(spark: SparkSession) -> None:
    pond = parse_file(spark, f"{TX.split(' OPTIONS')[0]} LOCATION '/data/tx'")
    assert pond.streams[0].source == Source("parquet", (("path", "/data/tx"),))


def test_insert_into_makes_the_query_of_the_sink_that_it_names(spark: SparkSession) -> None:
    text = f"""CREATE STREAMING TABLE a USING parquet TBLPROPERTIES ('path' = 'out/a', 'serve' = 'true');
{TX};
CREATE TABLE b (id BIGINT, w STRUCT<start: TIMESTAMP, end: TIMESTAMP>, s DOUBLE) USING json
OPTIONS (path 'out/b') TBLPROPERTIES ('emit' = 'update');
INSERT /* ; */ INTO TABLE `A` -- to a (b)
{SELECT};
INSERT INTO b BY NAME (SELECT 1)"""
    pond = parse_file(spark, text)
    assert [stream.name for stream in pond.streams] == ["tx"]
    first, second = pond.queries
    assert (first.name, first.text, first.line, first.by_name) == ("a", SELECT, 5, False)
    assert text[first.start :].startswith(SELECT)
    assert (first.declared.sink, first.declared.serve) == (Sink("parquet", "out/a"), True)
    assert (second.name, second.text, second.by_name) == ("b", "(SELECT 1)", True)
    assert (second.declared.sink, second.declared.mode.emit) == (Sink("json", "out/b"), "update")
    assert [column.name for column in second.declared.columns] == ["id", "w", "s"]


@pytest.mark.parametrize(
    ("columns", "by", "what"),
    [
        ("one BIGINT, w STRUCT<start: TIMESTAMP, end: TIMESTAMP>, total DOUBLE", "", "one w total"),
        ("s DOUBLE, w STRUCT<start: TIMESTAMP, end: TIMESTAMP>, ID BIGINT", "BY NAME", "s w ID"),
        ("s DOUBLE, w STRUCT<start: TIMESTAMP, end: TIMESTAMP>, id BIGINT", "", r"s of the sink a is double.*bigint"),
        ("id BIGINT, s DOUBLE", "", "has the columns id, s, and its SELECT has id, w, s"),
        ("id BIGINT, w STRUCT<start: TIMESTAMP, end: TIMESTAMP>, t DOUBLE", "BY NAME", "its SELECT has id, w, s"),
    ],
)
def test_the_columns_of_a_sink_name_those_of_the_select(
    spark: SparkSession, tmp_path: Path, columns: str, by: str, what: str
) -> None:
    text = f"{TX.replace('data/tx', str(tmp_path))}; CREATE TABLE a ({columns}) USING json LOCATION 'o'; "
    door = FrontEnd(spark)
    if what.split()[0] in columns and " of " not in what and "has" not in what:
        (query,) = door.load_file(f"{text} INSERT INTO a {by} {SELECT}")
        assert " ".join(column.name for column in query.output) == what
    else:
        with pytest.raises(QueryTypeError, match=what):
            door.load_file(f"{text} INSERT INTO a {by} {SELECT}")


def test_or_replace_changes_nothing(spark: SparkSession) -> None:
    text = f"""CREATE OR REPLACE {TX.removeprefix("CREATE ")};
CREATE OR REPLACE TEMPORARY VIEW v AS SELECT 1;
-- a query
CREATE OR
 REFRESH STREAMING TABLE a AS {SELECT};
CREATE OR REPLACE STREAMING TABLE b AS {SELECT};
DECLARE OR REPLACE VARIABLE p DOUBLE DEFAULT 1.5;"""
    pond = parse_file(spark, text)
    assert parse_file(spark, TX).streams == pond.streams
    assert [query.text for query in pond.queries] == [SELECT, SELECT]
    assert ([view.name for view in pond.views], [one.name for one in pond.variables]) == (["v"], ["p"])


@pytest.mark.parametrize(
    "columns", ["b INT, dt STRING) USING json PARTITIONED BY (dt", "b INT) USING json PARTITIONED BY (dt STRING"]
)
def test_columns_in_the_names_of_folders_are_columns(spark: SparkSession, columns: str) -> None:
    (stream,) = parse_file(spark, f"CREATE TABLE a ({columns}) OPTIONS (path 'x')").streams
    assert stream.columns == (Field("b", "int"), Field("dt", "string"))
    assert not stream.partitioned


STATEMENTS = """
CREATE OR REPLACE TABLE tx (id BIGINT, ts TIMESTAMP) USING json OPTIONS (path '{folder}/tx') PARTITIONED BY (dt DATE);
CREATE TABLE days (day DATE, w STRUCT<start: TIMESTAMP, end: TIMESTAMP>, events BIGINT)
  USING json OPTIONS (path '{folder}/days');
CREATE STREAMING TABLE ids USING json TBLPROPERTIES ('path' = '{folder}/ids');
INSERT INTO days SELECT dt, window(ts, '1 hour'), count(*)
  FROM STREAM tx WATERMARK ts DELAY OF INTERVAL 0 SECONDS GROUP BY ALL;
INSERT INTO ids SELECT id, dt FROM STREAM tx;
"""


@pytest.mark.slow
def test_statements_of_a_spark_user_make_queries_that_continue(spark: SparkSession, tmp_path: Path) -> None:
    """Partition columns come from the folders' names; a second run has the same queries."""
    for day in (1, 2):
        folder = tmp_path / "tx" / f"dt=2026-01-0{day}"
        folder.mkdir(parents=True)
        rows = [f'{{"id": {day * 10 + i}, "ts": "2026-01-0{day}T00:0{i}:00Z"}}' for i in range(3)]
        (folder / "a.json").write_text("\n".join(rows))
        with Pond(spark, tmp_path / "pond") as pond:
            pond.load(STATEMENTS.format(folder=tmp_path))
            pond.run(once=True)
    ids = spark.read.json(str(tmp_path / "ids")).orderBy("id").collect()
    assert [(row.id, row.dt) for row in ids] == [
        (10, "2026-01-01"), (11, "2026-01-01"), (12, "2026-01-01"),
        (20, "2026-01-02"), (21, "2026-01-02"), (22, "2026-01-02"),
    ]  # fmt: skip
    (row,) = spark.read.json(str(tmp_path / "days")).collect()
    assert (row.day, row.events) == ("2026-01-01", 3)


ZONES = """
SET spark.sql.ansi.enabled = true;
CREATE TABLE early (k STRING, t STRING, ts TIMESTAMP) USING json OPTIONS (path '{folder}/in');
CREATE STREAMING TABLE usual USING json TBLPROPERTIES ('path' = '{folder}/usual') AS
  SELECT k, hour(ts) AS h, CAST(ts AS STRING) AS s, to_timestamp(t) AS p, date_trunc('day', ts) AS d FROM STREAM early;
SET TIME ZONE 'Europe/Berlin';
CREATE TABLE late (k STRING, t STRING, ts TIMESTAMP, g INT GENERATED ALWAYS AS (hour(ts))) USING json
  OPTIONS (path '{folder}/in');
CREATE TEMPORARY VIEW v AS SELECT k, hour(ts) AS h FROM STREAM early;
SET TIME ZONE 'Asia/Tokyo';
CREATE STREAMING TABLE tokyo USING json TBLPROPERTIES ('path' = '{folder}/tokyo') AS
  SELECT k, hour(ts) AS h, CAST(ts AS STRING) AS s, to_timestamp(t) AS p, date_trunc('day', ts) AS d FROM STREAM early;
CREATE STREAMING TABLE berlin USING json TBLPROPERTIES ('path' = '{folder}/berlin', 'time.zone' = 'Europe/Berlin') AS
  SELECT k, hour(ts) AS h, CAST(ts AS STRING) AS s, to_timestamp(t) AS p, date_trunc('day', ts) AS d FROM STREAM early;
CREATE STREAMING TABLE seen USING json TBLPROPERTIES ('path' = '{folder}/seen') AS SELECT k, h FROM STREAM v;
CREATE STREAMING TABLE made USING json TBLPROPERTIES ('path' = '{folder}/made') AS
  SELECT k, g, hour(ts) AS h FROM STREAM late;
CREATE STREAMING TABLE days USING json TBLPROPERTIES ('path' = '{folder}/days') AS
  SELECT date_format(window.start, 'HH') AS h, count(*) AS n
  FROM STREAM early WATERMARK ts DELAY OF INTERVAL 0 SECONDS GROUP BY window(ts, '1 day');
"""


@pytest.mark.slow
def test_set_time_zone_applies_to_the_statements_after_it(spark: SparkSession, tmp_path: Path) -> None:
    """The judge is Spark's own batch in the same zone; a second run, and one without the file, go on."""
    (tmp_path / "in").mkdir()
    for run in (1, 2, 3):
        rows = [f'{{"k": "{run}", "t": "2026-07-0{run} 01:30:00", "ts": "2026-07-0{run} 20:30:00"}}']
        (tmp_path / "in" / f"{run}.json").write_text("\n".join(rows))
        with Pond(spark, tmp_path / "pond") as pond:
            if run < 3:
                pond.load(ZONES.format(folder=tmp_path))
            pond.run(once=True)
            if run == 3:
                assert pond.alter("tokyo", "SELECT k, 0 AS h, CAST(ts AS STRING) AS s, to_timestamp(t) AS p, "
                                  "date_trunc('day', ts) AS d FROM STREAM early").zone == "Asia/Tokyo"  # fmt: skip
    for name, zone in (("usual", "UTC"), ("tokyo", "Asia/Tokyo"), ("berlin", "Europe/Berlin")):
        session = spark.newSession()
        session.conf.set("spark.sql.session.timeZone", zone)
        # the stream is declared before SET TIME ZONE, so its own texts are read in UTC
        events = session.read.schema("k string, t string, ts timestamp").option("timeZone", "UTC")
        expected = events.json(str(tmp_path / "in")).selectExpr(
            "k", "hour(ts) AS h", "CAST(ts AS STRING) AS s", "to_timestamp(t) AS p", "date_trunc('day', ts) AS d"
        )
        given = session.read.schema(expected.schema).json(str(tmp_path / name))
        assert sorted(given.collect()) == sorted(expected.collect()), name
    assert {row.h for row in spark.read.json(str(tmp_path / "seen")).collect()} == {22}
    assert {(row.g, row.h) for row in spark.read.json(str(tmp_path / "made")).collect()} == {(20, 3)}
    assert {(row.h, row.n) for row in spark.read.json(str(tmp_path / "days")).collect()} == {("09", 1)}
