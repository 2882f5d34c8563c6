"""A query with which the JVM runs out of memory, or an epoch never ends, is quarantined by name; the pond goes on."""

from __future__ import annotations

import json
from pathlib import Path

import duckdb
import pytest

from kit.programs.forked_program import run_forked

PROGRAM = Path(__file__).with_name("memory_program.py")
MANY = "array(" + ",".join(map(str, range(32))) + ")"
POND = """
CREATE TABLE ev (k STRING, n BIGINT, p STRING) USING json OPTIONS (path '{0}/in');
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
def test_a_query_that_kills_the_jvm_or_blocks_an_epoch_is_quarantined_and_the_pond_continues(tmp_path: Path) -> None:
    def more(name: str, first: int, **values: str) -> None:
        lines = (json.dumps({"k": "abc", "n": n, "p": "b"} | values) for n in range(first, first + 20))
        (tmp_path / name).write_text("\n".join(lines))

    (tmp_path / "in").mkdir()
    (tmp_path / "pond.sql").write_text(POND.format(tmp_path))
    more("in/1.json", 0)
    more("more.json", 20, k="def")
    text = f"SELECT n, length(aggregate({MANY}, 'xxxxxxxx', (a, e) -> concat(a, a))) AS x FROM STREAM ev"
    error, halted = run(tmp_path, "greedy", text)
    assert error.startswith("[MP-MEMORY] The JVM has no memory left") and "Spark was evaluating greedy" in error
    assert {*halted} == {"greedy"} and "Quarantined: greedy" in halted["greedy"]

    more("more.json", 40, k="a" * 200, p="(.*a){25}b")  # as many steps as there are ways to choose 25 of 200
    error, halted = run(tmp_path, "endless", "SELECT n, k RLIKE p AS x FROM STREAM ev", "15")
    assert error.startswith("[MP-STALLED] An epoch has made no progress for 15 s; Spark was evaluating endless.")
    assert {*halted} == {"greedy", "endless"} and "Quarantined: endless" in halted["endless"]

    error, halted = run(tmp_path)  # with as little memory, which greedy would exhaust again
    assert error == "" and {*halted} == {"greedy", "endless"}
    rows = duckdb.sql(f"SELECT n, k FROM read_parquet('{tmp_path}/out/**/*.parquet') ORDER BY n").fetchall()
    assert rows == [(n, ("cba", "fed", "a" * 200)[n // 20]) for n in range(60)]
