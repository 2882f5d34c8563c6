"""A pond that an earlier release left unfinished is opened by this one, and ends with the right rows.

After the first epoch of this release it no longer needs Spark's checkpoint.
"""

from __future__ import annotations

import csv
import json
import os
import shutil
from pathlib import Path

import duckdb
import pytest
from pyspark.sql import SparkSession

from millpond import Pond
from millpond.errors import ChangeRefused, OffsetGapError
from millpond.spark.analysis import below_aggregation, result_expressions

PONDS = sorted(path.parent for path in (Path(__file__).parents[1] / "golden" / "ponds").glob("*/pond.sql"))


def copied(golden: Path, here: Path) -> None:
    """A copy in the current folder, with the paths of that folder and files in the order of their names."""
    shutil.copytree(golden, here, dirs_exist_ok=True)
    for number, path in enumerate(sorted((here / "in").iterdir())):
        os.utime(path, (1_767_614_400 + 60 * number,) * 2)
    for path in (here / "pond.pond" / "spark").glob("*/sources/*/*"):
        path.write_text(path.read_text().replace("file:///POND/", f"{here.as_uri()}/"))


def rows_of(folder: Path) -> list[str]:
    """The rows of a sink, as text, sorted."""
    parts = sorted(folder.glob("part-*"))
    match parts[0].suffix:
        case ".parquet":
            found = duckdb.read_parquet([str(part) for part in parts]).fetchall()
            return sorted(map(str, found))
        case ".json":
            return sorted(str(json.loads(line)) for part in parts for line in part.read_text().splitlines())
        case _:
            with_ends = [line for part in parts for line in part.read_text().splitlines(keepends=True)]
            assert all(len(row) == 3 for row in csv.reader(with_ends))
            return sorted(with_ends)


@pytest.mark.parametrize("golden", PONDS, ids=lambda path: path.name)
def test_a_pond_of_an_earlier_release_continues(spark: SparkSession, here: Path, golden: Path) -> None:
    copied(golden, here)
    expected = json.loads((golden / "expected.json").read_text())
    text, newest = (here / "pond.sql").read_text(), max((here / "in").iterdir())
    newest.rename(here / newest.name)
    with Pond(spark, "pond.pond", instances=2) as pond:
        pond.load(text)
        pond.run(once=True)  # writes the lists of files to the log
    shutil.rmtree(here / "pond.pond" / "spark")  # so that it goes on without, as on another host
    (here / newest.name).rename(newest)
    with Pond(spark, "pond.pond", instances=2) as pond:
        before = here / "pond.pond" / "log"
        records = len(list(before.iterdir()))
        pond.load(text)
        pond.run(once=True, drain=True)
        assert pond.lookup("spend", "card1").document["row"]["n"] == 1  # the view is made again from the log
        assert len(list(before.iterdir())) > records
    found = {name: rows_of(here / "out" / name) for name in expected}
    assert {name: len(rows) for name, rows in found.items()} == {name: len(rows) for name, rows in expected.items()}
    assert found == expected


def test_the_lists_of_files_of_an_earlier_release_are_only_in_its_checkpoint(spark: SparkSession, here: Path) -> None:
    copied(PONDS[-1], here)
    shutil.rmtree(here / "pond.pond" / "spark")
    with Pond(spark, "pond.pond", instances=2) as pond:
        pond.load((here / "pond.sql").read_text())
        with pytest.raises(OffsetGapError, match=r"does not have what \w+ read, because .* before 0\.3 wrote it"):
            pond.open()


EVENTS = "".join(
    f"CREATE TABLE {name} (k STRING, n INT, ts TIMESTAMP) USING json OPTIONS (path 'in');" for name in ("a", "b")
)
WINDOWED = "FROM a WATERMARK ts DELAY OF INTERVAL 0 SECONDS GROUP BY k, window(ts, '1 minute')"
PAIR = "named_struct('a', {}, 'a', {}) AS pair"
NO_LONGER = {
    "plain": f"SELECT {PAIR.format('upper(k)', 'n')} FROM a",
    "united": f"SELECT k, {PAIR.format('k', 'k')} FROM (SELECT * FROM a UNION ALL SELECT * FROM b)",
    "windowed": f"SELECT {PAIR.format('count(*)', 'k')} {WINDOWED}",
    "read": f"SELECT k, window.start AS s, count(*) AS m, {PAIR.format('min(n)', 'max(n)')} {WINDOWED}",
}
STEP = """(SELECT window(ts, '5 seconds') AS w, reverse(k) AS r, count(*) AS c
  FROM a WATERMARK ts DELAY OF INTERVAL 0 SECONDS GROUP BY window(ts, '5 seconds'), reverse(k))"""
NO_LONGER["above"] = f"SELECT r, {PAIR.format('max(r)', 'sum(c)')} FROM {STEP} GROUP BY window(w, '1 minute'), r"
STILL = {
    "step": f"SELECT r, sum(c) AS c FROM {STEP} GROUP BY window(w, '1 minute'), r",
    "each": "SELECT k, substring(k, 1, 1) AS first FROM a",
    "reader": "SELECT m + 1 AS m FROM read",
    "both": "SELECT k, n FROM (SELECT * FROM a UNION ALL SELECT * FROM b)",
}


def test_queries_that_are_no_longer_supported_are_quarantined_and_the_others_continue(
    spark: SparkSession, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (here / "in").mkdir()
    (here / "in" / "1.json").write_text('{"k": "xyz", "n": 1, "ts": "2023-11-14T22:13:20Z"}\n')
    with monkeypatch.context() as patch, Pond(spark, "pond", instances=1) as pond:
        for module in (result_expressions, below_aggregation):
            patch.setattr(module, "is_storable", lambda _type: True)  # the check did not exist yet
        pond.load(EVENTS)
        for name, text in (NO_LONGER | STILL).items():
            pond.add(name, text)
        pond.open()
    for _ in range(2):
        with Pond(spark, "pond") as pond:
            pond.run()
            assert pond.table("each").to_pylist() == [{"k": "xyz", "first": "x"}]
            assert pond.table("both").num_rows == 2
            reasons = {problem.about.removeprefix("query "): str(problem) for problem in pond.problems()}
            assert reasons.keys() == {*NO_LONGER, "reader"}
            assert "[MP-UNSUPPORTED]" in reasons["plain"] and "struct<a:string,a:int>" in reasons["plain"]
            assert "stored read" in reasons["reader"]
    with Pond(spark, "pond") as pond:
        for name in ("reader", *NO_LONGER):
            pond.drop(name)
        pond.add("united", NO_LONGER["united"].replace("'a', k)", "'b', k)"))
        (here / "in" / "2.json").write_text('{"k": "uvw", "n": 2, "ts": "2023-11-14T22:14:20Z"}\n')
        pond.run()
        assert [row["pair"] for row in pond.table("united").to_pylist()] == [{"a": "uvw", "b": "uvw"}] * 2
        assert pond.table("both").num_rows == 4
    with Pond(spark, "pond") as pond:
        pond.open()
        assert {query.name for query in pond.queries} == {*STILL, "united"} - {"reader"}


def test_a_pond_whose_view_is_missing_is_not_opened(spark: SparkSession, here: Path) -> None:
    (here / "in").mkdir()
    (here / "in" / "1.json").write_text('{"k": "xyz", "n": 1, "ts": "2023-11-14T22:13:20Z"}\n')
    other = spark.newSession()
    other.sql("SELECT * FROM VALUES ('xyz') AS t(k)").createOrReplaceTempView("mine")
    with Pond(other, "pond", instances=1) as pond:
        pond.load(EVENTS)
        pond.add("joined", "SELECT a.k FROM a JOIN mine ON a.k = mine.k")
        pond.open()
    with Pond(spark, "pond") as pond, pytest.raises(ChangeRefused, match=r"no stream mine .* views and tables"):
        pond.open()
    with Pond(other, "pond") as pond:
        pond.run()
        assert pond.table("joined").to_pylist() == [{"k": "xyz"}]
