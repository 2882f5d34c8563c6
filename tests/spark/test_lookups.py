"""Tables that streams are joined with: what an epoch sees of changing files, with and without a refresh."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from millpond import LatestRows, Pond
from millpond.errors import ForeignPondError, MillpondError, QueryTypeError, SourceError, StoreError, UnsupportedQuery
from millpond.spark.driver_classes.loading import load_class
from millpond.spark.session.session import reading_session

TX = "CREATE TABLE tx (k BIGINT, ts TIMESTAMP) USING parquet OPTIONS (path '{folder}/tx', maxFilesPerTrigger 1);"
KEYS = (1, 2)


def write_epochs(folder: Path, count: int) -> None:
    """One file, and so one epoch, a second."""
    (folder / "tx").mkdir()
    for second in range(1, count + 1):
        times = pa.array([second * 10**6] * len(KEYS), pa.timestamp("us", "UTC"))
        path = folder / "tx" / f"{second}.parquet"
        pq.write_table(pa.table({"k": pa.array(KEYS, pa.int64()), "ts": times}), path)
        os.utime(path, (second, second))


def write_table(folder: Path, name: str, keys: Sequence[int], label: str) -> None:
    folder.mkdir(exist_ok=True)
    rows = pa.table({"k": pa.array(keys, pa.int64()), "label": [label] * len(keys)})
    pq.write_table(rows, folder / f"{name}.parquet")
    os.utime(folder / f"{name}.parquet", (1, 1))  # a table of a file that is this old stays broadcast


def write_text(folder: Path, name: str, keys: Sequence[int], label: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.csv").write_text("".join(f"{key},{label}\n" for key in keys))
    os.utime(folder / f"{name}.csv", (1, 1))


class Steps:
    """Runs an action after a number of committed epochs."""

    def __init__(self, does: Mapping[int, Callable[[], object]]) -> None:
        self._does, self._seen = does, 0

    def __call__(self, _: object) -> None:
        self._seen += 1
        self._does.get(self._seen, lambda: None)()


def labels(pond: Pond, query: str) -> dict[int, list[str | None]]:
    """By second, and so by epoch: the labels of the keys in order; the join is a left one."""
    found: dict[int, list[str | None]] = {}
    for row in sorted(pond.table(query).to_pylist(), key=lambda row: (row["ts"], row["k"])):
        found.setdefault(int(row["ts"].timestamp()), []).append(row["label"])
    return found


def select(table: str) -> str:
    return f"SELECT tx.k, ts, label FROM STREAM tx LEFT JOIN {table} ON tx.k = {table}.k"


def test_which_files_an_epoch_sees(spark: SparkSession, tmp_path: Path) -> None:
    """Without a refresh the list is that of the query's making; with one, that of the last moment when it was time."""
    write_epochs(tmp_path, 5)
    names = ("fixed", "often", "seldom", "frame", "text")
    tables = {name: tmp_path / name for name in names}
    for name, folder in tables.items():
        (write_text if name == "text" else write_table)(folder, "a", [1], "old")

    def add() -> None:
        for name, folder in tables.items():
            (write_text if name == "text" else write_table)(folder, "b", [2], "new")

    def replace() -> None:
        for name in ("often", "frame", "text"):
            for file in tables[name].iterdir():
                file.unlink()
            (write_text if name == "text" else write_table)(tables[name], "c", KEYS, "newest of all")

    pond = Pond(spark, tmp_path / "pond", instances=2, store="memory", on_epoch=Steps({2: add, 4: replace}))
    pond.load(
        TX.format(folder=tmp_path)
        + f"CREATE TEMPORARY VIEW fixed USING parquet OPTIONS (path '{tables['fixed']}');"
        + f"CREATE TEMPORARY VIEW often USING parquet OPTIONS (path '{tables['often']}', refresh '1 microsecond');"
        + f"CREATE TEMPORARY VIEW seldom USING parquet OPTIONS (path '{tables['seldom']}', refresh '1 hour');"
        + "CREATE TEMPORARY VIEW text (k BIGINT, label STRING) USING csv "
        + f"OPTIONS (path '{tables['text']}', refresh '1 microsecond');"
    )
    frame = spark.read.parquet(str(tables["frame"]))
    frame.createOrReplaceTempView("frame")
    pond.refresh(frame, "1 microsecond")
    try:
        for name in names:
            pond.add(name, select(name))
        pond.add("known", "SELECT k, ts FROM STREAM tx WHERE k IN (SELECT k FROM often)")
        pond.add("unknown", "SELECT k, ts, (SELECT max(label) FROM often) AS m FROM STREAM tx LEFT ANTI JOIN often "
                 "USING (k)")  # fmt: skip
        pond.run(once=True)
        known, unknown = pond.table("known").to_pylist(), pond.table("unknown").to_pylist()
        assert sorted((row["ts"].second, row["k"]) for row in known) == [
            (1, 1), (2, 1), *((second, key) for second in (3, 4, 5) for key in KEYS)
        ]  # fmt: skip
        assert sorted((row["ts"].second, row["k"], row["m"]) for row in unknown) == [(1, 2, "old"), (2, 2, "old")]
        old, new, newest = ["old", None], ["old", "new"], ["newest of all"] * 2
        stays = dict.fromkeys(range(1, 6), old)
        assert {name: labels(pond, name) for name in ("fixed", "seldom")} == {"fixed": stays, "seldom": stays}
        for name in ("often", "frame", "text"):
            assert labels(pond, name) == {1: old, 2: old, 3: new, 4: new, 5: newest}, name
    finally:
        pond.close()
        spark.catalog.dropTempView("frame")


def test_a_table_is_read_again_when_its_file_has_changed(spark: SparkSession, tmp_path: Path) -> None:
    """Its file is recognised by size and time, unless it is so young that its time may not show the next change."""
    write_epochs(tmp_path, 7)
    file = tmp_path / "dim" / "a.csv"
    write_text(tmp_path / "dim", "a", [1], "old")
    later = (1 << 32, 1 << 32)
    query = "SELECT tx.k, ts, label, EXISTS (SELECT 1 FROM dim WHERE dim.k = tx.k) AS known FROM STREAM tx {0} dim {1}"
    does: dict[int, Callable[[], object]] = {
        2: lambda: write_text(tmp_path / "dim", "a", [1], "new"),
        3: lambda: os.utime(file, (2, 2)),
        4: lambda: (file.write_text("1,now\n"), os.utime(file, later)),
        5: lambda: (file.write_text("1,end\n"), os.utime(file, later)),
        6: file.unlink,
    }
    table = spark.read.schema("k BIGINT, label STRING").csv(f"{tmp_path}/dim")
    table.select("k", F.udf(lambda label: label)("label").alias("label")).createOrReplaceTempView("computed")
    with Pond(spark, tmp_path / "pond", instances=2, store="memory", on_epoch=Steps(does)) as pond:
        pond.load(
            TX.format(folder=tmp_path)
            + f"CREATE TEMPORARY VIEW dim (k BIGINT, label STRING) USING csv OPTIONS (path '{tmp_path}/dim');"
        )
        pond.add("equal", query.format("LEFT JOIN", "ON tx.k = dim.k"))
        pond.add("longer", query.format("LEFT JOIN", "ON tx.k < dim.k + length(label) - 2"))
        pond.add("computed", select("computed"))
        with pytest.raises(SourceError, match=r"a\.csv"):
            pond.run(once=True)

        def expected(*of_epochs: str) -> dict[int, list[str | None]]:
            return {second: [label, None] for second, label in enumerate(of_epochs, 1)}

        assert labels(pond, "equal") == labels(pond, "longer") == expected(*["old"] * 3, "new", "now", "end")
        anew = expected("old", "old", "new", "new", "now", "end")
        assert labels(pond, "computed") == anew, "a function may read anything, so its table is computed in each epoch"
        assert {(row["k"], row["known"]) for row in pond.table("equal").to_pylist()} == {(1, True), (2, False)}
    spark.catalog.dropTempView("computed")


def test_which_broadcasts_are_kept(spark: SparkSession, tmp_path: Path) -> None:
    """Those of tables that Spark's own operators and functions compute from files that it must read completely."""
    session, jvm = reading_session(spark), spark._jvm
    assert jvm is not None and load_class(spark, "millpond.TableBroadcasts")
    write_table(tmp_path / "dim", "a", KEYS, "old")
    files = session.read.parquet(f"{tmp_path}/dim")
    events = session.range(3)

    def count(table: DataFrame) -> int:
        """How many broadcasts the next batch could use again."""
        tables = jvm.millpond.TableBroadcasts()
        tables.plan(events.join(F.broadcast(table), F.expr("id = k"), "left")._jdf)
        return tables.size()

    session.udf.register("python_plus", lambda k: k + 1, "bigint")
    ranked = files.selectExpr("k", "label", "rank() OVER (PARTITION BY k ORDER BY label) AS n").where("k > 0")
    grouped = ranked.repartition(1).groupBy("k").agg(F.max("label").alias("label"), F.collect_set("n"))
    kept = [
        files, files.union(files).orderBy("label").limit(2), grouped.join(files.withColumnRenamed("k", "j"), "label"),
        files.selectExpr("k", "explode(split(label, 'l'))").coalesce(1),
    ]  # fmt: skip
    assert [count(table) for table in kept] == [1] * len(kept)
    read_anew = [
        files.selectExpr("python_plus(k) AS k"), files.where("python_plus(k) > 1").limit(2), files.sample(0.5),
        files.mapInArrow(lambda batches: batches, "k bigint, label string"), files.where("rand() > 0"),
        *(session.read.option(name, "true").parquet(f"{tmp_path}/dim")
          for name in ("ignoreMissingFiles", "IGNORECORRUPTFILES")),
    ]  # fmt: skip
    assert [count(table) for table in read_anew] == [0] * len(read_anew)
    for name in ("ignoreMissingFiles", "ignoreCorruptFiles"):
        session.conf.set(f"spark.sql.files.{name}", "true")
        assert count(files) == 0, name
        session.conf.unset(f"spark.sql.files.{name}")
    assert count(files) == 1


def test_a_table_of_a_database_is_read_again_in_every_epoch(spark: SparkSession, tmp_path: Path) -> None:
    """Apache Derby, which comes with Spark."""
    write_epochs(tmp_path, 3)
    jvm, url = spark._jvm, f"jdbc:derby:{tmp_path}/db"
    assert jvm is not None
    jvm.System.setProperty("derby.stream.error.file", f"{tmp_path}/derby.log")

    def write(label: str, keys: Sequence[int]) -> None:
        rows = spark.createDataFrame([(key, label) for key in keys], "k bigint, label string")
        rows.write.mode("overwrite").option("truncate", "true").jdbc(f"{url};create=true", "dim")

    write("old", [1])
    pond = Pond(
        spark, tmp_path / "pond", instances=2, store="memory", on_epoch=Steps({2: lambda: write("new", [1, 2])})
    )
    with pond:
        pond.load(
            TX.format(folder=tmp_path)
            + f"CREATE TEMPORARY VIEW dim USING jdbc OPTIONS (url '{url}', dbtable 'dim');"
            + "CREATE TEMPORARY VIEW filtered USING jdbc "
            + f'OPTIONS (url \'{url}\', query \'SELECT "k", "label" FROM dim WHERE "k" > 1\');'
        )
        for name in ("dim", "filtered"):
            pond.add(name, select(name))
        pond.run(once=True)
        assert labels(pond, "dim") == {1: ["old", None], 2: ["old", None], 3: ["new", "new"]}
        assert labels(pond, "filtered") == {1: [None, None], 2: [None, None], 3: [None, "new"]}


def test_a_table_that_is_gone_ends_the_run_and_the_next_continues(spark: SparkSession, tmp_path: Path) -> None:
    """Spark would list it as one without rows. Committed results are not affected; a run begins with a new list."""
    write_epochs(tmp_path, 4)
    table = tmp_path / "dim"
    write_table(table, "a", [1], "old")

    def pond(does: Mapping[int, Callable[[], object]]) -> Pond:
        made = Pond(spark, tmp_path / "pond", instances=1, store="memory", on_epoch=Steps(does))
        made.load(
            TX.format(folder=tmp_path)
            + f"CREATE TEMPORARY VIEW dim USING parquet OPTIONS (path '{table}', refresh '1 microsecond');"
            + f"CREATE STREAMING TABLE out USING json TBLPROPERTIES ('path' = '{tmp_path}/out') AS {select('dim')};"
        )
        return made

    gone = pytest.raises(SourceError, match=r"The table dim no longer exists")
    with pond({2: lambda: shutil.rmtree(table)}) as first, gone:
        first.run(once=True)
    write_table(table, "b", [2], "new")
    with pond({}) as second:
        write_table(table, "c", [1], "late")
        second.run(once=True)
    rows = spark.read.json(f"{tmp_path}/out").selectExpr("k", "unix_seconds(to_timestamp(ts)) AS s", "label").collect()
    found = sorted((row.s, row.k, row.label) for row in rows)
    assert found == [
        (1, 1, "old"), (1, 2, None), (2, 1, "old"), (2, 2, None),
        (3, 1, "late"), (3, 2, "new"), (4, 1, "late"), (4, 2, "new"),
    ]  # fmt: skip


def test_what_cannot_be_listed_again_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    write_table(tmp_path / "dim", "a", [1], "old")
    view = "CREATE TEMPORARY VIEW dim USING parquet OPTIONS (path '{path}', refresh '{every}');"
    for path, every, said in (
        (tmp_path / "dim", "soon", "is 'soon'"),
        (tmp_path / "dim", "0 seconds", "no time at all"),
        (tmp_path / "dim", "1 month", "counts months"),
        (tmp_path / "d*m", "1 minute", "is a pattern"),
    ):
        with Pond(spark, tmp_path / "pond") as pond, pytest.raises(QueryTypeError, match=said):
            pond.load(view.format(path=path, every=every))
    with Pond(spark, tmp_path / "pond") as pond:
        with pytest.raises(QueryTypeError, match="There is no table nosuch"):
            pond.refresh("nosuch", "1 minute")
        with pytest.raises(QueryTypeError, match="no list of files"):
            pond.refresh(spark.range(3), "1 minute")
        with pytest.raises(QueryTypeError, match="is a pattern"):
            pond.refresh(spark.read.parquet(f"{tmp_path}/d*m"), "1 minute")


SPEND = """
CREATE TABLE pay (card STRING, amount DOUBLE, ts TIMESTAMP) USING parquet OPTIONS (path '{folder}/pay');
CREATE STREAMING TABLE spend USING noop TBLPROPERTIES ('serve' = 'true') AS
  SELECT card, window.end AS until, sum(amount) AS total, listagg(DISTINCT amount) AS l,
    histogram_numeric(amount, 9) AS h
  FROM STREAM pay WATERMARK ts DELAY OF INTERVAL 0 SECONDS GROUP BY card, window(ts, '10 seconds');
CREATE STREAMING TABLE hidden USING noop AS SELECT card FROM STREAM pay;
"""


def pay(folder: Path, name: str, rows: Sequence[tuple[str, float, int]]) -> None:
    (folder / "pay").mkdir(exist_ok=True)
    cards, amounts, seconds = zip(*rows, strict=True)
    times = pa.array([second * 10**6 for second in seconds], pa.timestamp("us", "UTC"))
    table = pa.table({"card": cards, "amount": pa.array(amounts, pa.float64()), "ts": times})
    pq.write_table(table, folder / "pay" / f"{name}.parquet")


def spending(spark: SparkSession, folder: Path) -> None:
    """One more run of the pond that serves `spend`."""
    with Pond(spark, folder / "first", instances=2) as pond:
        pond.load(SPEND.format(folder=folder))
        pond.run(once=True)


def test_the_latest_rows_of_another_pond_are_read_again_in_every_epoch(spark: SparkSession, tmp_path: Path) -> None:
    pay(tmp_path, "a", [("c1", 5.0, 1), ("c1", 2.0, 2), ("c2", 7.0, 3), ("c1", 1.0, 12), ("c9", 9.0, 21)])
    spending(spark, tmp_path)

    def more() -> None:
        pay(tmp_path, "b", [("c2", 30.0, 22), ("c2", 40.0, 31), ("c9", 0.0, 41)])
        spending(spark, tmp_path)

    write_epochs(tmp_path, 4)
    file = TX.format(folder=tmp_path) + (
        f"CREATE TEMPORARY VIEW latest USING millpond OPTIONS (path '{tmp_path}/first', query 'spend');"
        "CREATE STREAMING TABLE outside USING parquet TBLPROPERTIES ('path' = '{0}/left') AS SELECT tx.k, ts, total, "
        "until, latest._epoch AS as_of FROM STREAM tx LEFT JOIN latest ON concat('c', tx.k) = latest.card;"
        "CREATE STREAMING TABLE inside USING parquet TBLPROPERTIES ('path' = '{0}/inner') AS "
        "SELECT card, max(total) AS total, count(*) AS n FROM STREAM tx WATERMARK ts DELAY OF INTERVAL 0 SECONDS "
        "JOIN latest ON concat('c', tx.k) = latest.card GROUP BY card, window(ts, '2 seconds');"
    ).replace("{0}", str(tmp_path))
    with Pond(spark, tmp_path / "second", instances=2, on_epoch=Steps({2: more})) as pond:
        pond.load(file)
        pond.run(once=True, drain=True)
    with Pond(spark, tmp_path / "second", instances=2) as again:
        again.load(file)
        again.run(once=True)
    rows = sorted(spark.read.parquet(f"{tmp_path}/left").collect(), key=lambda row: (row.ts, row.k))
    assert [(row.k, row.total, row.until.timestamp()) for row in rows] == [
        *[(1, 1.0, 20.0), (2, 7.0, 10.0)] * 2, *[(1, 1.0, 20.0), (2, 40.0, 40.0)] * 2,
    ]  # fmt: skip
    asof = [row.as_of for row in rows]
    assert asof[0] == asof[3] < asof[4] == asof[7], "all as of one record, each epoch"
    inner = sorted((row.card, row.total, row.n) for row in spark.read.parquet(f"{tmp_path}/inner").collect())
    assert [row for row in inner if row[0] == "c2"] == [("c2", 7.0, 1), ("c2", 40.0, 1), ("c2", 40.0, 2)]

    spark.dataSource.register(LatestRows)
    reader = spark.read.format("millpond").option("path", f"{tmp_path}/first").option("query", "spend")
    table = reader.option("numPartitions", 3).load()
    assert table.rdd.getNumPartitions() == 3
    assert table.dtypes[3:] == [("l", "string"), ("h", "array<struct<x:double,y:double>>"), ("_epoch", "bigint")]
    found = {row.card: (row.total, row.l, [tuple(bin_) for bin_ in row.h]) for row in table.collect()}
    assert found == {
        "c1": (1.0, "1.0", [(1.0, 1.0)]), "c2": (40.0, "40.0", [(40.0, 1.0)]), "c9": (9.0, "9.0", [(9.0, 1.0)]),
    }  # fmt: skip


def test_tables_over_rows_that_are_not_served_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    pay(tmp_path, "a", [("c1", 5.0, 1)])
    spending(spark, tmp_path)
    path = f"path '{tmp_path}/first'"
    wrong: list[tuple[str, type[MillpondError], str]] = [
        (f"path '{tmp_path}/nowhere', query 'spend'", ForeignPondError, "nowhere holds no pond"),
        (f"{path}, query 'nosuch'", QueryTypeError, "no query 'nosuch'. Use one of spend"),
        (f"{path}, query 'hidden'", QueryTypeError, "'hidden' is not served.*Use one of spend"),
        (f"{path}, query 'spend', store 'memory'", StoreError, "The store memory has no rows of spend"),
        (f"{path}, query 'spend', store 'lmdb:{tmp_path}/x'", StoreError, "The store .*/x has no rows of spend"),
        (f"{path}, query 'spend', numPartitions 0", QueryTypeError, "'numPartitions' is '0'"),
        (f"{path}, query 'spend', refresh '1 minute'", QueryTypeError, "no list of files"),
        (f"{path}, query 'spend', table 'x'", QueryTypeError, "`table` is not an option"),
        (path, QueryTypeError, "has no query"),
        ("query 'spend'", QueryTypeError, "has no path"),
    ]
    for options, error, said in wrong:
        with Pond(spark, tmp_path / "pond") as pond, pytest.raises(error, match=said):
            pond.load(f"CREATE TEMPORARY VIEW latest USING millpond OPTIONS ({options});")
    with Pond(spark, tmp_path / "pond") as pond, pytest.raises(QueryTypeError, match="lists columns"):
        pond.load(f"CREATE TEMPORARY VIEW latest (a INT) USING millpond OPTIONS ({path}, query 'spend');")
    with Pond(spark, tmp_path / "pond") as pond, pytest.raises(UnsupportedQuery, match="TEMPORARY VIEW latest"):
        pond.load(f"CREATE TABLE latest USING millpond OPTIONS ({path}, query 'spend');")
