"""A pond file names the sink of an installed package, examples/sqlite_sink, which gets the rows."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from kit.inputs.plugin_packages import install_plugin
from millpond import Pond
from millpond.control.diagnose.causes import explain_why
from millpond.control.diagnose.facts import find_facts
from millpond.control.wiring.pond_reader import read_truth
from millpond.errors import QueryTypeError, UnsupportedQuery
from millpond.model.endpoints import Sink
from millpond.spark.frontend.statements import parse_file

EXAMPLE = Path(__file__).parents[2] / "examples" / "sqlite_sink" / "sqlite_sink.py"
SELECT = (
    "SELECT k, count(*) AS n FROM STREAM tx WATERMARK ts DELAY OF INTERVAL 0 SECONDS GROUP BY k, window(ts, '1 hour')"
)
TEXT = """
CREATE TABLE tx (ts TIMESTAMP, k STRING) USING json OPTIONS (path '{base}/in');
CREATE STREAMING TABLE spend USING sqlite TBLPROPERTIES ('path' = '{base}/shop.db', 'table' = 'spend', 'key' = 'k')
AS {select}
"""


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    points = {"sqlite": "sqlite_sink:KIND"}
    install_plugin(tmp_path / "site", monkeypatch, "millpond.sinks", points, sqlite_sink=EXAMPLE.read_text())


def test_a_pond_writes_to_the_sink_of_a_package(installed: None, spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    times = {"a": "00:10", "b": "00:20", "c": "05:00"}
    lines = [json.dumps({"ts": f"2026-01-01T{time}:00Z", "k": key}) for key, time in times.items()]
    (tmp_path / "in" / "0.json").write_text("\n".join([*lines, lines[0]]))
    with Pond(spark, tmp_path / "pond") as pond:
        pond.load(TEXT.format(base=tmp_path, select=SELECT))
        (query,) = pond.queries
        path, options = str(tmp_path / "shop.db"), (("key", "k"), ("table", "spend"))
        assert query.sink == Sink("sqlite", path, options)
        pond.run()
    with closing(sqlite3.connect(tmp_path / "shop.db")) as database:
        assert database.execute("SELECT k, n FROM spend ORDER BY k").fetchall() == [("a", 2), ("b", 1)]
        ((n,),) = database.execute("SELECT n FROM cursors").fetchall()
    facts = find_facts(*read_truth(tmp_path / "pond"), "spend")
    assert facts.sink_n is None and facts.recent.last_rows_n is not None and facts.recent.last_rows_n <= n
    assert not [cause for cause in explain_why(facts).causes if cause.code in ("sink-behind", "in-memory", "no-sink")]


@pytest.mark.parametrize(("properties", "error", "words"), [
    ("'path' = 'x', 'topic' = 't'", QueryTypeError, "has a topic, but is written as sqlite"),
    ("'path' = 'x', 'tabel' = 't'", QueryTypeError, "`tabel` is not a property of a query.*table"),
    ("'path' = 'x', 'late.path' = 'y', 'late.format' = 'sqlite'", UnsupportedQuery, "late rows of a are to be written"),
])  # fmt: skip
def test_properties_that_the_sink_of_a_package_does_not_have(
    installed: None, spark: SparkSession, properties: str, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        parse_file(spark, f"CREATE STREAMING TABLE a USING sqlite TBLPROPERTIES ({properties}) AS {SELECT}")


def test_a_sink_of_no_package_is_refused_with_those_that_there_are(installed: None, spark: SparkSession) -> None:
    with pytest.raises(UnsupportedQuery, match=r"written as iceberg.*webhook, sqlite"):
        parse_file(spark, f"CREATE STREAMING TABLE a USING iceberg AS {SELECT}")
