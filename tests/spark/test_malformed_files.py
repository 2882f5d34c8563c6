"""Records of files that mode DROPMALFORMED leaves out: the same ones as in Spark, and counted for every query."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from tests.spark.test_incomplete import millpond

from kit.judges.interpreted import interpreted_rows
from millpond import Pond
from millpond.control.commands.run import INCOMPLETE
from millpond.control.pond.event_totals import EventCounts
from millpond.spark.catalyst.private_names import analysed
from millpond.spark.sources.count_malformed_rows import MalformedRows, MalformedTables

pytestmark = [pytest.mark.spark, pytest.mark.slow]

COLUMNS = "ts TIMESTAMP, k STRING, v BIGINT, d DATE, p STRUCT<x: INT, y: ARRAY<INT>>"
JSON = [
    '{"ts": "2024-01-01T00:00:01Z", "k": "a", "v": 1, "d": "2024-01-01", "p": {"x": 1, "y": [1]}}',
    '{"ts": "2024-01-01T00:00:02Z", "k": "a", "v": "many"}',
    '{"ts": "2024-01-01T00:00:03Z", "k": "a", "v": 2, "d": "no date"}',  # only a column that no query reads is wrong
    '{"ts": "2024-01-01T00:00:04Z", "k": "a", "v": 4, "p": {"x": "wrong", "y": [1, 2]}}',
    '{"ts": "2024-01-01T00:00:05Z", "k": "b"}',
    '{"k": "a", "ts": "2024-01-01T00:00:06Z", "v": 8',
    '[{"ts": "2024-01-01T00:00:07Z", "k": "b", "v": 16}, {"ts": "2024-01-01T00:00:08Z", "k": "b", "v": 32}]',
    "",
    "   ",
    "7",
    "{}",
    '{"ts": "2024-01-01T00:00:09Z", "k": "b", "v": 64, "more": [1, {"z": 2}]}',
]
CSV_COLUMNS = "ts TIMESTAMP, k STRING, v BIGINT, d DATE"
CSV = [
    "2024-01-01T00:00:01Z,a,1,2024-01-01",
    "2024-01-01T00:00:02Z,a,many,2024-01-01",
    "2024-01-01T00:00:03Z,a,2",  # a token too few
    "2024-01-01T00:00:04Z,a,4,2024-01-01,more",  # and too many
    "2024-01-01T00:00:05Z,a,8,no date",
    "2024-01-01T00:00:06Z,,16,",
    '2024-01-01T00:00:07Z,"b ""c"", d",32,2024-01-02',
    '2024-01-01T00:00:08Z,"b,64,2024-01-01',  # an open quote
    "",
    "#2024-01-01T00:00:09Z,a,128,2024-01-01",
    "2024-01-01T00:00:10Z,a,9223372036854775808,2024-01-01",
]
CASES = {
    "json": ("json", COLUMNS, JSON, {}),
    "corrupt": ("json", f"{COLUMNS}, _corrupt_record STRING", JSON, {}),
    "named": ("json", f"{COLUMNS}, odd STRING", JSON, {"columnNameOfCorruptRecord": "odd"}),
    "whole": ("json", COLUMNS, [JSON[0]], {"multiLine": "true"}),
    "broken": ("json", COLUMNS, [JSON[1], JSON[0]], {"multiLine": "true"}),
    "csv": ("csv", CSV_COLUMNS, CSV, {}),
    "comments": ("csv", CSV_COLUMNS, CSV, {"comment": "#", "header": "true", "maxColumns": "5"}),
    "lines": ("csv", CSV_COLUMNS, CSV, {"multiLine": "true"}),
}
SUM = """
    SELECT k, window(ts, '1 hour') AS w, sum(v) AS total, count(*) AS n
    FROM STREAM tx WATERMARK ts DELAY OF INTERVAL 1 HOUR GROUP BY ALL
"""
DROPPED = {"mode": "dropMalformed"}


@pytest.fixture(scope="module")
def pond(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pond]:
    """A pond that has read the files of all cases, which are in folders beside it."""
    base = tmp_path_factory.mktemp("malformed")
    with Pond(spark, base / "pond") as pond:
        for name, (form, columns, lines, options) in CASES.items():
            folder = base / name
            folder.mkdir()
            (folder / "1").write_text("\n".join(lines) + "\n")
            (folder / "2").write_text("\n".join(reversed(lines)) + "\n")
            clause = ", ".join(f"{option} '{value}'" for option, value in (DROPPED | options).items())
            pond.load(f"CREATE TABLE tx_{name} ({columns}) USING {form} OPTIONS (path '{folder}', {clause});")
            both = "SELECT v FROM STREAM tx UNION ALL SELECT v + 1 AS v FROM STREAM tx"
            for query, text in {"plain": "SELECT ts, k, v FROM STREAM tx", "totals": SUM, "both": both}.items():
                pond.add(f"{query}_{name}", text.replace("STREAM tx", f"STREAM tx_{name}"))
        pond.run(drain=True)
        yield pond


@pytest.mark.parametrize("name", CASES)
def test_the_same_records_are_left_out_as_in_spark_and_they_are_counted(
    spark: SparkSession, pond: Pond, name: str
) -> None:
    form, columns, _, options = CASES[name]
    plain, totals, both = queries = tuple(f"{query}_{name}" for query in ("plain", "totals", "both"))

    def read(**given: str) -> list[Any]:
        # All columns are read, because Spark takes a record for malformed only by the columns that are read.
        folder = str(Path(str(pond.address)).with_name(name))
        return interpreted_rows(spark.read.schema(columns).options(**given).format(form).load(folder))

    batch, every = read(**DROPPED, **options), read(**options)
    kept = [row for row in batch if row["ts"] is not None]
    rows, counts = pond.table(plain).to_pylist(), pond.counts()
    sums = {row["k"]: (row["total"], row["n"]) for row in pond.table(totals).to_pylist()}
    assert len(pond.table(both)) == 2 * len(batch)
    failures = [one.failure for one in pond.problems() if one.about.endswith(f"_{name}")]
    lost = {(one.read, one.dead) for one in (counts[query].whole for query in queries) if one.dead}
    assert failures == [True] * len(lost), "one for queries that read and lost equally many"
    assert sorted(map(repr, ((row["k"], row["v"]) for row in rows))) == sorted(
        repr((row["k"], row["v"])) for row in batch
    )
    assert sums == {
        key: (sum(found) if (found := [v for k, v in values if v is not None]) else None, len(values))
        for key in {row["k"] for row in kept}
        for values in [[(row["k"], row["v"]) for row in kept if row["k"] == key]]
    }
    dead = len(every) - len(batch)
    assert counts[plain].whole == EventCounts(len(every), len(batch), 0, dead, 0)
    assert counts[totals].whole == EventCounts(len(every), len(kept), 0, dead + len(batch) - len(kept), 0)
    assert counts[both].whole == EventCounts(2 * len(batch) + dead, 2 * len(batch), 0, dead, 0)


def test_a_run_reports_them_and_a_backfill_leaves_out_the_same(spark: SparkSession, tmp_path: Path) -> None:
    folder = tmp_path / "in" / "k=a"
    folder.mkdir(parents=True)
    (folder / "1").write_text("\n".join(CSV) + "\n")
    table = (
        "CREATE TABLE tx (ts TIMESTAMP, odd STRING, v BIGINT, d DATE, k STRING) USING csv "
        f"OPTIONS (path '{tmp_path}/in', mode 'DROPMALFORMED');"
    )
    file, text = tmp_path / "pond.sql", "SELECT k, odd, v FROM STREAM tx"
    file.write_text(f"{table}\nCREATE STREAMING TABLE q USING json TBLPROPERTIES ('path' = '{tmp_path}/q') AS {text};")
    status, lines = millpond("run", file, "--once", "--drain", "--checkpoint", tmp_path / "of the command")
    good, every = spark.read.schema("ts TIMESTAMP, odd STRING, v BIGINT, d DATE, k STRING"), len(CSV) - 1
    rows = good.option("mode", "DROPMALFORMED").csv(str(tmp_path / "in")).collect()
    assert status == INCOMPLETE, lines
    loss = f"[MP-INCOMPLETE] Query q did not count {every - len(rows)} of the {every} events it read"
    assert lines[-1].startswith(loss), lines
    with Pond(spark, tmp_path / "pond") as pond:
        pond.load(table)
        pond.add("q", SUM)
        pond.run()
        assert pond.counts()["q"].whole.dead == every - len(rows)
        pond.add("later", SUM, backfill=True)
        pond.run()
        assert pond.drain() is None
        assert pond.table("later").to_pylist() == pond.table("q").to_pylist()
        assert pond.table("q").to_pylist()[0]["n"] == len(rows)


TABLES = {
    "json": ("json", ['{"k": "a", "v": 1}', '{"k": "b", "v": "many"}', '{"k": "c", "v": 3}'], {}),
    "csv": ("csv", ["k,v", "a,1", "b,many", "c,3"], {"header": "true"}),
    "named": ("json", ['{"k": "a", "v": 1}', '{"k": "b", "v": "many"}', '{"k": "c", "v": 3}'],
              {"columnNameOfCorruptRecord": "odd"}),
}  # fmt: skip


def test_malformed_rows_of_joined_tables_are_reported_whenever_their_files_change(
    spark: SparkSession, tmp_path: Path
) -> None:
    events = tmp_path / "in"
    events.mkdir()
    (events / "1").write_text("\n".join(f'{{"k": "{k}"}}' for k in "abc"))
    with Pond(spark, tmp_path / "pond") as pond:
        pond.load(f"CREATE TABLE tx (k STRING) USING json OPTIONS (path '{events}');")
        for name, (form, lines, options) in TABLES.items():
            table = tmp_path / name
            table.mkdir()
            (table / "1").write_text("\n".join(lines) + "\n")
            given = {"path": table, "mode": "DropMalformed", "refresh": "1 microsecond"} | options
            clause = ", ".join(f"{option} '{value}'" for option, value in given.items())
            pond.load(f"CREATE TEMPORARY VIEW {name} (k STRING, v BIGINT) USING {form} OPTIONS ({clause});")
            pond.add(f"with_{name}", f"SELECT tx.k, {name}.v FROM STREAM tx JOIN {name} ON tx.k = {name}.k")
        pond.run()
        shown = {f"table {form} {tmp_path / name}" for name, (form, _, _) in TABLES.items()}
        first = {problem.about: problem for problem in pond.problems()}
        assert {*first} == shown and all(problem.failure for problem in first.values())
        for about, problem in first.items():
            assert str(problem).startswith(f"[MP-INCOMPLETE] 1 of the 3 rows of the {about} do not parse.")
        for name, (form, lines, _) in TABLES.items():
            head = lines[:1] if form == "csv" else []
            (tmp_path / name / "2").write_text("\n".join([*head, *(lines[-1:] * 97)]) + "\n")
        (events / "2").write_text('{"k": "d"}')
        pond.run()
        second = {problem.about: problem for problem in pond.problems()}
        assert {*second} == shown and not any(problem.failure for problem in second.values())
        assert all(problem.text.startswith("1 of the 100 rows ") for problem in second.values())
        for name in TABLES:
            assert {(row["k"], row["v"]) for row in pond.table(f"with_{name}").to_pylist()} == {("a", 1), ("c", 3)}


def test_tables_of_one_folder_with_other_columns_are_counted_each(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "1").write_text('{"k": "a", "v": 1}\n{"k": "b", "v": "many"}\n{"k": 1, "v": "few"}\n')
    reader, found = spark.read.format("json").option("mode", "DROPMALFORMED"), list[MalformedRows]()
    frames = [reader.schema(columns).load(str(tmp_path)) for columns in ("k STRING", "k STRING, v BIGINT")]
    MalformedTables(spark, [analysed(frame) for frame in (*frames, frames[1])], found.append).look()
    assert found == [MalformedRows(f"json {tmp_path} (k, v)", 3, 2)]


def test_a_table_of_other_modes_is_not_read_twice(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "dim").mkdir()
    (tmp_path / "in").mkdir()
    (tmp_path / "dim" / "1").write_text('{"k": "a", "v": 1}\n{"k": "b", "v": "many"}\n')
    (tmp_path / "in" / "1").write_text('{"k": "a"}\n{"k": "b"}\n')
    with Pond(spark, tmp_path / "pond") as pond:
        pond.load(f"CREATE TABLE tx (k STRING) USING json OPTIONS (path '{tmp_path}/in');")
        pond.load(f"CREATE TEMPORARY VIEW dim (k STRING, v BIGINT) USING json OPTIONS (path '{tmp_path}/dim');")
        pond.add("q", "SELECT tx.k, dim.v FROM STREAM tx JOIN dim ON tx.k = dim.k")
        pond.run()
        assert pond.problems() == []
        assert {(row["k"], row["v"]) for row in pond.table("q").to_pylist()} == {("a", 1), ("b", None)}
