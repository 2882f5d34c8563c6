"""The benchmark of shared state: its results against a slow computation, and its smallest run."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import shared_state
from bank import KINDS, SIZE_US, SLIDE_US, START_US, Size, excluded, transactions
from kept import digest_of, main
from pyspark.sql import SparkSession


def slow_digest(source: Path, patterns: int) -> tuple[int, int]:
    """Number and digest of the answers, window by window."""
    rows = [row for path in sorted(source.glob("*.parquet")) for row in pq.read_table(path).to_pylist()]
    for row in rows:
        row["us"] = pa.scalar(row["ts"]).cast(pa.timestamp("us")).value
    newest = max(row["us"] for row in rows)
    count, digest = 0, 0
    first = START_US // SLIDE_US * SLIDE_US - SIZE_US
    for pattern in range(patterns):
        for start in range(first, newest - SIZE_US + 1, SLIDE_US):
            of: dict[str, list[str]] = {}
            for row in rows:
                if start <= row["us"] < start + SIZE_US and row["kind"] != excluded(pattern):
                    of.setdefault(row["customer"], []).append(row["event"])
            for customer, texts in of.items():
                text = min(texts, key=lambda text: (-texts.count(text), text))
                count, digest = count + 1, digest ^ digest_of(pattern, start + SIZE_US, customer, text.encode())
    return count, digest


@pytest.mark.parametrize("kind", ["heap", "memory", "lmdb"])
def test_copies_and_references_give_the_same_answers(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = transactions(tmp_path / "in", Size(600, 6, 3))
    main(kind, 3, source, str(tmp_path / "store"))
    found = json.loads(capsys.readouterr().out)
    assert (found["results"], found["digest"]) == slow_digest(source, 3)
    assert found["results"] > 3 * 3
    assert (found["stored"] > 0) == (kind == "lmdb")


def test_each_kind_is_as_frequent_and_some_events_come_twice(tmp_path: Path) -> None:
    events = pq.read_table(min(transactions(tmp_path / "in", Size(1200, 1, 3)).iterdir())).to_pylist()
    counts = {kind: sum(row["kind"] == kind for row in events) for kind in KINDS}
    assert set(counts.values()) == {100}
    assert 50 <= len(events) - len({row["event"] for row in events}) <= 60
    assert 200 < sum(len(row["event"]) for row in events) / len(events) < 400
    assert all(row["event"].split(",")[0] == row["kind"] for row in events)


def test_spark_reads_the_files_in_order(tmp_path: Path) -> None:
    parts = sorted(transactions(tmp_path / "in", Size(48, 24, 3)).iterdir())
    times = [part.stat().st_mtime_ns // 1_000_000 for part in parts]  # what Spark's file source looks at
    assert times == sorted(set(times)) and len(times) == 24


@pytest.mark.slow
@pytest.mark.timeout(580)
def test_every_place_is_measured(spark: SparkSession, redis_installed: None, tmp_path: Path) -> None:
    figures = shared_state.main(shared_state.SMALL, tmp_path)
    assert len(figures) == 4 * len(shared_state.BACKENDS)
    assert all(value > 0 for name, value in figures.items() if name.endswith("_step_s_2"))
    assert figures["pond_growth_2"] < 1.3 < figures["rocksdb_growth_2"]
    assert (tmp_path / "shared_state.svg").stat().st_size > 1000
