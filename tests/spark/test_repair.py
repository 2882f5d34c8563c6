"""Rows are right whatever of log, checkpoint and folder was lost or is older; `millpond repair` rewinds sinks first.

All ponds run in one session; each case begins with a copy of one that has read half of its input.
"""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import duckdb
import pytest
from pyspark.sql import SparkSession

from millpond import Pond
from millpond.errors import AheadError, UnreachableError
from millpond.plan.explain import amounts
from millpond.reconfigure.probation import Probation

FILES, ROWS, KEYS = 4, 60, 7
START = 1704067200


def statements(base: Path) -> str:
    return f"""
        CREATE TABLE ev (k STRING, n BIGINT, ts TIMESTAMP) USING json
        OPTIONS (path '{base}/in', maxFilesPerTrigger '1');
        CREATE STREAMING TABLE w USING parquet TBLPROPERTIES ('path' = '{base}/out/w', 'serve' = 'true') AS
        SELECT k, window(ts, '30 seconds') AS w, count(*) AS c, sum(n) AS s
        FROM STREAM ev WATERMARK ts DELAY OF INTERVAL 5 SECONDS GROUP BY k, window(ts, '30 seconds');
        CREATE STREAMING TABLE third USING parquet TBLPROPERTIES ('path' = '{base}/out/third') AS
        SELECT k, n FROM STREAM ev WHERE n % 3 = 0;
    """


def feed(base: Path, first: int, end: int) -> None:
    (base / "in").mkdir(parents=True, exist_ok=True)
    for file in range(first, end):
        lines = [
            json.dumps({"k": f"k{n % KEYS}", "n": n, "ts": f"2024-01-01T00:{n // 60:02}:{n % 60:02}Z"})
            for n in range(file * ROWS, (file + 1) * ROWS)
        ]
        path = base / "in" / f"{file:03}.json"
        path.write_text("\n".join(lines) + "\n")
        os.utime(path, (START + file, START + file))  # Spark reads the oldest first


def made(spark: SparkSession, base: Path) -> Pond:
    pond = Pond(spark, base / "pond", instances=2, cache=base / "cache")
    pond.load(statements(base))
    return pond


def ran(spark: SparkSession, base: Path, *, drain: bool = True) -> None:
    with made(spark, base) as pond:
        pond.run(once=True, drain=drain)


def repaired(spark: SparkSession, base: Path) -> list[str]:
    with made(spark, base) as pond:
        return pond.repair()


def check_right(base: Path, files: int = FILES) -> None:
    """Compare all rows with DuckDB's results over the input; each exists once."""
    counts = {
        name: Counter(duckdb.sql(f"SELECT {columns} FROM read_parquet('{base}/out/{name}/part-*.parquet')").fetchall())
        for name, columns in (("w", "k, epoch(w.start)::BIGINT, c, s"), ("third", "k, n"))
    }
    events = [(f"k{n % KEYS}", n) for n in range(files * ROWS)]
    windows: dict[tuple[str, int], list[int]] = {}
    for k, n in events:
        windows.setdefault((k, START + n // 30 * 30), []).append(n)
    assert counts["third"] == Counter((k, n) for k, n in events if n % 3 == 0)
    assert counts["w"] == Counter((k, at, len(of), sum(of)) for (k, at), of in windows.items())


@pytest.fixture(scope="module")
def half(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A pond that has read two of four files, in an epoch each, by two drivers; its paths are those of `case`."""
    base = tmp_path_factory.mktemp("repair") / "case"
    feed(base, 0, 1)
    ran(spark, base, drain=False)
    shutil.copytree(base / "pond", base.parent / "older")
    feed(base, 1, 2)
    ran(spark, base, drain=False)
    shutil.copytree(base, base.parent / "half")
    return base.parent / "half"


@pytest.fixture
def base(half: Path) -> Path:
    """That pond, as it was, with more to read."""
    base = half.parent / "case"
    shutil.rmtree(base)
    shutil.copytree(half, base)
    feed(base, 2, FILES)
    return base


def log_of(base: Path) -> list[Path]:
    return sorted((base / "pond" / "log").glob("0*"))


def test_the_newest_records_are_lost(
    spark: SparkSession, base: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    newest = log_of(base)[-1]
    newest.unlink()
    n = int(newest.name)
    before = log_of(base)
    message = rf"The sink of (w|third) has the rows of record {n}, .* record {n - 1}.*millpond repair"
    with pytest.raises(AheadError, match=message):
        ran(spark, base)
    assert log_of(base) == before, "nothing was claimed"
    monkeypatch.setattr(amounts, "PROGRESS_EVERY_US", 0)
    with caplog.at_level(logging.INFO, "millpond.pond"):
        actions = " ".join(repaired(spark, base))
    assert re.search(r"1 of 2 queries are analysed, about \d+ seconds? left", caplog.text)
    assert re.search(r"1 of \d sinks are checked, about \d+ seconds? left", caplog.text)
    assert f"The sink of w was set back to record {n - 1}" in actions and "The sink of third was set back" in actions
    ran(spark, base)
    check_right(base)
    with made(spark, base) as pond:
        pond.open()
        pond.settle()
        assert pond.lookup("w", "k1").document is not None


def test_all_records_but_the_first_are_lost(spark: SparkSession, base: Path) -> None:
    for record in log_of(base)[1:]:
        record.unlink()
    with pytest.raises(AheadError, match="the log ends at record 0"):
        ran(spark, base)
    repaired(spark, base)
    ran(spark, base)
    check_right(base)


def test_the_whole_folder_is_restored_from_an_older_copy(spark: SparkSession, base: Path, half: Path) -> None:
    shutil.rmtree(base / "pond")
    shutil.copytree(half.parent / "older", base / "pond")
    with pytest.raises(AheadError, match="restored from an older copy"):
        ran(spark, base)
    repaired(spark, base)
    ran(spark, base)
    check_right(base)


def test_a_log_that_is_older_than_the_checkpoint_alone_continues(spark: SparkSession, base: Path) -> None:
    newest = log_of(base)[-1]
    for left in (newest, *(base / "out").glob(f"*/part-{newest.name}*"), *(base / "out").glob("*/_millpond_cursor")):
        left.unlink()
    ran(spark, base)
    check_right(base)


def missing(path: Path) -> None:
    path.unlink()


def empty(path: Path) -> None:
    path.write_bytes(b"")


def halved(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def one_bit(path: Path) -> None:
    """Flip a bit in the file's first line, which names the version."""
    data = bytearray(path.read_bytes())
    data[0] ^= 16
    path.write_bytes(data)


def one_bit_inside(path: Path) -> None:
    """Flip a bit so that the file keeps its form: for a list of files, in the name of a file that was read."""
    data = bytearray(path.read_bytes())
    at = data.index(b".json") - 1 if b".json" in data else data.index(b'"') + 1
    data[at] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("damage", [missing, empty, halved, one_bit, one_bit_inside])
def test_a_damaged_checkpoint_is_recreated(spark: SparkSession, base: Path, damage: Callable[[Path], None]) -> None:
    files = [path for path in (base / "pond" / "spark").rglob("*") if path.is_file()]
    assert {path.parent.name for path in files} >= {"offsets", "commits", "ev"}
    for path in files:
        if path.stat().st_size and not path.name.startswith("."):
            damage(path)
    feed(base, FILES, FILES + 1)
    ran(spark, base)
    check_right(base, FILES + 1)


def test_another_host_continues_with_the_log_alone(spark: SparkSession, base: Path) -> None:
    """At each step, a host opens the pond that has nothing but what the log needs."""
    for files in range(FILES, FILES + 3):
        for derived in ("pond/spark", "cache", "pond/view", *(("pond/manifest",) if files % 2 else ())):
            shutil.rmtree(base / derived, ignore_errors=True)
        feed(base, files, files + 1)
        ran(spark, base, drain=files == FILES + 2)
    check_right(base, FILES + 3)


def test_a_pond_that_fails_after_its_claim_can_be_opened_again(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    feed(tmp_path, 0, 1)
    failures = [UnreachableError("The log does not answer.")]

    def began(self: Probation, *_: object) -> None:
        if failures:
            raise failures.pop()

    monkeypatch.setattr(Probation, "began", began)
    with made(spark, tmp_path) as pond:
        with pytest.raises(UnreachableError, match="does not answer"):
            pond.open()
        pond.open()  # the store of served rows is not left open
