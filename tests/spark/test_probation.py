"""A query with which the JVM runs out of memory is quarantined by name; the pond restarts without it."""

from __future__ import annotations

import json
from pathlib import Path

import duckdb
import pytest

from kit.programs.forked_program import run_forked

PROGRAM = Path(__file__).with_name("memory_program.py")
MANY = "array(" + ",".join(map(str, range(32))) + ")"
POND = """
CREATE TABLE ev (k STRING, n BIGINT) USING json OPTIONS (path '{0}/in');
CREATE STREAMING TABLE plain USING parquet TBLPROPERTIES ('path' = '{0}/out') AS
SELECT n, reverse(k) AS k FROM STREAM ev;
"""


def run(folder: Path, *text: str) -> tuple[str, dict[str, str]]:
    done = run_forked([PROGRAM, folder, *text], text=True, timeout=240)
    lines = [line for line in done.stdout.splitlines() if line.startswith("[")]
    assert lines, done.stderr[-2000:]
    error, halted, _ = json.loads(lines[-1])
    return error, halted


@pytest.mark.timeout(600)
def test_a_query_that_ends_the_jvm_is_quarantined_and_the_pond_goes_on(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "pond.sql").write_text(POND.format(tmp_path))
    (tmp_path / "in" / "1.json").write_text("\n".join(json.dumps({"k": "abc", "n": n}) for n in range(20)))
    (tmp_path / "more.json").write_text("\n".join(json.dumps({"k": "def", "n": n}) for n in range(20, 40)))
    error, halted = run(
        tmp_path, f"SELECT n, length(aggregate({MANY}, 'xxxxxxxx', (a, e) -> concat(a, a))) AS x FROM STREAM ev"
    )
    assert error.startswith("[MP-MEMORY] The JVM has no memory left") and "Spark was evaluating greedy" in error
    assert {*halted} == {"greedy"} and "Quarantined: greedy" in halted["greedy"]
    error, halted = run(tmp_path)
    assert error == "" and {*halted} == {"greedy"}
    rows = duckdb.sql(f"SELECT n, k FROM read_parquet('{tmp_path}/out/**/*.parquet') ORDER BY n").fetchall()
    assert rows == [(n, "cba" if n < 20 else "fed") for n in range(40)]


@pytest.mark.timeout(600)
def test_a_query_with_which_an_epoch_never_ends_is_quarantined_and_the_pond_goes_on(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "pond.sql").write_text(POND.format(tmp_path).replace("n BIGINT", "n BIGINT, p STRING"))
    (tmp_path / "in" / "1.json").write_text("\n".join(json.dumps({"k": "abc", "n": n, "p": "b"}) for n in range(20)))
    hanging = {"k": "a" * 200, "n": 20, "p": "(.*a){25}b"}  # as many steps as there are ways to choose 25 of 200
    (tmp_path / "more.json").write_text("\n".join(json.dumps(hanging | {"n": n}) for n in range(20, 40)))
    error, halted = run(tmp_path, "SELECT n, k RLIKE p AS x FROM STREAM ev", "15")
    assert error.startswith("[MP-STALLED] An epoch has made no progress for 15 s; Spark was evaluating greedy.")
    assert {*halted} == {"greedy"} and "Quarantined: greedy" in halted["greedy"]
    error, halted = run(tmp_path)
    assert error == "" and {*halted} == {"greedy"}
    rows = duckdb.sql(f"SELECT n, k FROM read_parquet('{tmp_path}/out/**/*.parquet') ORDER BY n").fetchall()
    assert rows == [(n, "cba" if n < 20 else "a" * 200) for n in range(40)]
