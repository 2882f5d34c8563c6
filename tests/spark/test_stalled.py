"""What hangs ends with a code: a step that begins a pond under `run`, and an epoch with a new query under `serve`."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.spark.test_serve import JOINED, running, until

from kit.programs.shared_java import joining
from millpond.service.api.client import Client

pytestmark = [pytest.mark.spark, pytest.mark.slow]

POND = """
CREATE TABLE ev (k STRING, n BIGINT, p STRING) USING json OPTIONS (path '{0}/in');
CREATE STREAMING TABLE plain USING json TBLPROPERTIES ('path' = '{0}/out') AS
SELECT n, reverse(k) AS k FROM STREAM ev;
"""
LIMIT = "20"


JAVA_OF_ITS_OWN = """
import subprocess, sys
from joined_session import joined_session
from millpond.cli import main
from millpond.spark.session import session
from millpond.spark.session.java import Gateway

java = subprocess.Popen(["sleep", "600"])
session._gateways.append(Gateway(0, "", java))
print("java", java.pid, flush=True)
joined_session()
main()
"""
"""The command in a joined session, with another process in the place of the Java machine that it has started."""


@contextmanager
def millpond(
    folder: Path, name: str, *words: str, spark: SparkSession | None = None, program: Path = JOINED
) -> Iterator[subprocess.Popen[bytes]]:  # fmt: skip
    """A process of the command `millpond`, whose output goes to a file of that name; it joins Java of `spark`.

    `program`: what starts the command in the joined session.
    """
    options = ["--master", "local[2]", "--memory", "700m", "--stalled-after", LIMIT]
    start, java = (["-m", "millpond"], {}) if spark is None else ([str(program)], joining(spark))
    with running(folder / f"{name}.log", *start, *words, *options, **java) as process:
        yield process


def output(folder: Path, name: str) -> str:
    return (folder / f"{name}.log").read_text()


def events(folder: Path, name: str, first: int, **values: str) -> None:
    lines = (json.dumps({"k": "abc", "n": n, "p": "b"} | values) for n in range(first, first + 20))
    (folder / "draft").write_text("\n".join(lines))
    (folder / "draft").rename(folder / "in" / name)


def rows(folder: Path) -> list[tuple[int, str]]:
    lines = (line for part in (folder / "out").glob("part-*") for line in part.read_text().splitlines())
    return sorted((row["n"], row["k"]) for row in map(json.loads, lines))


def test_a_run_ends_with_its_java_if_the_check_of_its_input_never_does(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    os.mkfifo(tmp_path / "in" / "1.parquet")  # whoever opens it waits for a writer
    file = tmp_path / "pond.sql"
    file.write_text(POND.format(tmp_path).replace("json OPTIONS", "parquet OPTIONS"))
    program = tmp_path / "java_of_its_own.py"
    program.write_text(JAVA_OF_ITS_OWN)
    with millpond(tmp_path, "run", "run", str(file), "--once", spark=spark, program=program) as process:
        status = process.wait(180)
    first, *_, last = output(tmp_path, "run").splitlines()
    with pytest.raises(ProcessLookupError):
        os.kill(int(first.removeprefix("java ")), 0)
    assert (status, last.partition(" (")[0].partition(", in ")[0]) == (
        1, f"[MP-STALLED] The check of the input has not ended after {LIMIT} s"
    )  # fmt: skip
    assert "millpond.spark.reading.file_schemas." in last and "--stalled-after" in last


@pytest.mark.timeout(600)
def test_a_new_query_that_blocks_an_epoch_is_quarantined_and_the_standby_continues(
    spark: SparkSession, tmp_path: Path
) -> None:
    (tmp_path / "in").mkdir()
    file, pond = tmp_path / "pond.sql", tmp_path / "pond.pond"
    file.write_text(POND.format(tmp_path))
    events(tmp_path, "1.json", 0)
    with millpond(tmp_path, "first", "serve", str(file)) as first:
        until(lambda: len(rows(tmp_path)) == 20, lambda: output(tmp_path, "first"))
        with millpond(tmp_path, "second", "serve", str(file), spark=spark):
            until(lambda: "Standing by" in output(tmp_path, "second"), lambda: output(tmp_path, "second"))
            Client.of(pond).add("greedy", "SELECT n, k RLIKE p AS x FROM STREAM ev", sink="json")
            # as many steps as there are ways to choose 25 of 200
            events(tmp_path, "2.json", 20, k="a" * 200, p="(.*a){25}b")
            assert first.wait(240) == 1, output(tmp_path, "first")
            last = output(tmp_path, "first").splitlines()[-1]
            what = f"[MP-STALLED] An epoch has made no progress for {LIMIT} s; Spark was evaluating greedy."
            assert last.startswith(what), last
            until(lambda: len(rows(tmp_path)) == 40, lambda: output(tmp_path, "second"))
            events(tmp_path, "3.json", 40)
            until(lambda: len(rows(tmp_path)) == 60, lambda: output(tmp_path, "second"))
            status = Client.of(pond).status()
    assert rows(tmp_path) == [(n, "a" * 200 if 20 <= n < 40 else "cba") for n in range(60)]
    assert len(status.problems) == 1 and status.problems[0].startswith("[MP-STALLED] Query greedy is quarantined")
