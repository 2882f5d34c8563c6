"""A pond file declares live parameters with their types and first values; later values keep these types."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from millpond import Pond
from millpond.control.commands.run import Run, given_parameters, repair_file
from millpond.control.pond.compile import compile_text
from millpond.errors import ChangeRefused, QueryRefused, QuerySyntaxError, QueryTypeError, UnsupportedQuery
from millpond.model.expressions import plain_of
from millpond.service.api.serve_options import Options
from millpond.service.server.serve_process import Web, serve
from millpond.spark.frontend.statements import parse_file

pytestmark = pytest.mark.spark

SECOND = 1_000_000


def add_file(folder: Path, k: int) -> None:
    """Ten events in ten seconds, with amounts 0, 50, … 450."""
    folder.mkdir(exist_ok=True)
    times = pa.array([(10 * k + i) * SECOND for i in range(10)], pa.timestamp("us", "UTC"))
    amounts = pa.array([50.0 * i for i in range(10)], pa.float64())
    pq.write_table(pa.table({"ts": times, "amount": amounts, "n": pa.array(range(10), pa.int64())}), folder / f"{k}.pq")


def file(folder: Path, *statements: str, query: str = "WHERE amount > :limit") -> str:
    return ";\n".join([
        *statements,
        f"CREATE TABLE tx (ts TIMESTAMP, amount DOUBLE, n BIGINT) USING parquet OPTIONS (path '{folder / 'in'}')",
        f"CREATE STREAMING TABLE fraud USING json TBLPROPERTIES ('path' = '{folder / 'out'}') AS"
        " SELECT window(ts, '10 seconds') AS w, count(*) AS n FROM STREAM tx"
        f" WATERMARK ts DELAY OF INTERVAL 0 SECONDS {query} GROUP BY ALL",
    ])  # fmt: skip


def counts(folder: Path) -> list[int]:
    """What the rows count, in the order in which they were written."""
    parts = sorted(folder.glob("part-*"))
    return [json.loads(line)["n"] for part in parts for line in part.read_text().splitlines()]


@pytest.mark.parametrize(
    ("statement", "kind", "value"),
    [
        ("DECLARE VARIABLE x DOUBLE DEFAULT 150.0", "double", 150.0),
        ("DECLARE x DOUBLE = 150", "double", 150.0),
        ("DECLARE VARIABLE x FLOAT DEFAULT -1.5e3", "double", -1500.0),
        ("DECLARE VARIABLE x INT DEFAULT -5", "bigint", -5),
        ("DECLARE VARIABLE x DEFAULT 7", "bigint", 7),
        ("DECLARE VARIABLE x STRING DEFAULT 'it''s'", "string", "it's"),
        ("DECLARE VARIABLE x ARRAY<STRING> DEFAULT array('b', 'a')", "array<string>", ["a", "b"]),
        ("DECLARE VARIABLE x ARRAY<DOUBLE> DEFAULT array(2, 1.5)", "array<double>", [2.0, 1.5]),
    ],
)
def test_a_variable_has_a_type_and_a_first_value(statement: str, kind: str, value: object, spark: SparkSession) -> None:
    (found,) = parse_file(spark, statement).variables
    assert (found.name, found.value.type, plain_of(found.value)) == ("x", kind, value)


@pytest.mark.parametrize(
    ("statement", "error", "message"),
    [
        ("DECLARE VARIABLE x INT", QueryRefused, "x has no DEFAULT"),
        ("DECLARE VARIABLE x, y INT DEFAULT 1", QueryRefused, "x, y cannot be declared as one"),
        ("DECLARE VARIABLE a.x INT DEFAULT 1", QueryRefused, "a.x cannot"),
        ("DECLARE VARIABLE x INT DEFAULT 1 + 1", QueryRefused, "no plain value"),
        ("DECLARE VARIABLE x ARRAY<INT> DEFAULT array(array(1), 2)", QueryRefused, "an array of arrays"),
        ("DECLARE VARIABLE x TIMESTAMP DEFAULT '2026-01-01'", QueryTypeError, "type timestamp"),
        ("DECLARE VARIABLE x DECIMAL(9,2) DEFAULT 1.5", QueryTypeError, "decimal"),
        ("DECLARE VARIABLE x BOOLEAN DEFAULT true", QueryTypeError, "boolean"),
        ("DECLARE VARIABLE x DEFAULT 1.5", QueryTypeError, "value 1.5"),
        ("DECLARE VARIABLE x BIGINT DEFAULT 1.5", QueryTypeError, "1.5, which is no bigint"),
        ("DECLARE VARIABLE x BIGINT DEFAULT 'a'", QueryTypeError, "'a', not of type bigint"),
        ("DECLARE VARIABLE x INT DEFAULT 1; DECLARE VARIABLE x INT DEFAULT 2", QueryTypeError, "created twice"),
        ("SET VAR x = 1", QueryRefused, "millpond param set"),
    ],
)
def test_a_variable_that_would_mean_something_else_is_refused(
    statement: str, error: type[Exception], message: str, spark: SparkSession
) -> None:
    with pytest.raises(error, match=message):
        parse_file(spark, statement)


def test_a_declared_parameter_keeps_its_type_and_its_value_in_force(spark: SparkSession, tmp_path: Path) -> None:
    declared = "DECLARE VARIABLE limit DOUBLE DEFAULT 150.0"
    add_file(tmp_path / "in", 0)
    with Pond(spark, tmp_path / "pond", instances=1) as pond:
        pond.load(file(tmp_path, declared))
        pond.run()
        assert pond.params() == {"limit": 150.0}
        pond.param("limit", 200)
        assert repr(pond.params()["limit"]) == "200.0"
        pond.param("limit", 250.5)
        pond.drain()
        assert counts(tmp_path / "out") == [6]  # judged by the value of the epoch that read them
    add_file(tmp_path / "in", 1)
    with Pond(spark, tmp_path / "pond", instances=1) as pond:
        # what was set before is in force, not the default; what is declared or given since is recorded
        pond.param("given", 3)
        pond.load(file(tmp_path, declared, "DECLARE VARIABLE rest STRING DEFAULT 'a'"))
        pond.run(drain=True)
        assert pond.params() == {"given": 3, "limit": 250.5, "rest": "a"}
        assert counts(tmp_path / "out") == [6, 4]
        pond.add("by_rest", "SELECT amount FROM STREAM tx WHERE amount > :limit AND n < :given")
    with Pond(spark, tmp_path / "other", instances=1) as pond:
        pond.param("limit", 100)  # as --param does
        pond.load(file(tmp_path, declared).replace("/out'", "/out/other'"))
        pond.run(drain=True)
        assert repr(pond.params()["limit"]) == "100.0"
        assert counts(tmp_path / "out" / "other") == [7, 7]
    with Pond(spark, tmp_path / "third", instances=1) as pond:
        pond.param("limit", "many")
        with pytest.raises(ChangeRefused, match="'many', not of type double"):
            pond.load(file(tmp_path, declared))


def test_a_number_that_is_compared_with_a_double_takes_a_fraction_later(spark: SparkSession, tmp_path: Path) -> None:
    add_file(tmp_path / "in", 0)
    text = file(tmp_path, query="WHERE amount > :limit AND amount * :rate > 0 AND n < :most")
    with Pond(spark, tmp_path / "pond", instances=1) as pond:
        for name, value in (("limit", 200), ("rate", 1), ("most", 9)):
            pond.param(name, value)
        pond.load(text)
        pond.open()
        pond.param("limit", 250.5)
        pond.param("rate", 0.5)
        with pytest.raises(ChangeRefused, match="most would be of type double, not of type bigint"):
            pond.param("most", 8.5)
        pond.run(drain=True)
        assert counts(tmp_path / "out") == [3]  # 300, 350, 400
        pond.param("limit", 300)
        assert pond.params() == {"limit": 300.0, "most": 9, "rate": 0.5}
    add_file(tmp_path / "in", 1)
    with Pond(spark, tmp_path / "pond", instances=1) as pond:  # the same program again: analysed as at first
        for name, value in (("limit", 200), ("rate", 1), ("most", 9)):
            pond.param(name, value)
        pond.load(text)
        pond.run(drain=True)
        assert counts(tmp_path / "out") == [3, 2]
    with Pond(spark, tmp_path / "pond", instances=1) as pond:  # or by what is in force alone
        pond.load(text.rpartition(";")[0])
        pond.open()
        assert pond.params()["limit"] == 300.0


def test_a_file_with_parameters_is_not_compiled(spark: SparkSession, tmp_path: Path) -> None:
    add_file(tmp_path / "in", 0)
    with pytest.raises(UnsupportedQuery, match=r"fraud cannot be compiled: it names live parameters \(limit\)"):
        compile_text(spark, file(tmp_path, "DECLARE VARIABLE limit DOUBLE DEFAULT 150.0"))


def test_a_service_that_cannot_start_publishes_no_address(spark: SparkSession, tmp_path: Path) -> None:
    add_file(tmp_path / "in", 0)
    said: list[str] = []
    options = Options(file(tmp_path), tmp_path / "tx.pond", "local[2]", "700m", "lmdb", None, None, 10.0)
    with pytest.raises(ChangeRefused, match=":limit has no value") as error:
        serve(options, Web(), said.append)
    assert "DECLARE VARIABLE limit" in error.value.cure and "--param limit=" in error.value.cure
    assert not [line for line in said if "http" in line]
    assert not (tmp_path / "tx.pond").exists()
    (tmp_path / "tx.pond").mkdir()
    (tmp_path / "tx.pond" / ".keep").touch()
    with pytest.raises(ChangeRefused):
        serve(options, Web(), said.append)
    assert (tmp_path / "tx.pond" / ".keep").exists(), "what was there stays"
    with Pond(spark, tmp_path / "begun", instances=1) as pond:
        pond.param("limit", 1.0)
        pond.load(file(tmp_path))
        pond.run()
    before = sorted(path.name for path in (tmp_path / "begun" / "log").iterdir())
    with pytest.raises(QuerySyntaxError):
        serve(options._replace(folder=tmp_path / "begun", text="CREATE TABLE"), Web(), said.append)
    assert sorted(path.name for path in (tmp_path / "begun" / "log").iterdir()) == before


def test_a_pond_that_has_begun_keeps_the_types_of_its_parameters(spark: SparkSession, tmp_path: Path) -> None:
    add_file(tmp_path / "in", 0)
    folder, text = tmp_path / "pond", file(tmp_path)
    for given in ([("limit", 150)], [], [("limit", 50.5)], [("limit", "none")]):
        with Pond(spark, folder, instances=1) as pond:
            given_parameters(pond, folder, given)
            pond.load(text)
            pond.open()
            assert pond.params() == {"limit": 150}
    repair_file(Run(text, folder, "local[2]", "lmdb", None, "700m"))
    with Pond(spark, folder, instances=1) as pond, pytest.raises(ChangeRefused, match=":limit has no value"):
        pond.load(text)
