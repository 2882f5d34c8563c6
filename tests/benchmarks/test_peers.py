"""The computations of the comparisons with other engines, without the engines."""

from __future__ import annotations

import sys
from pathlib import Path

import compared
import install
import meter
import pond_child
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import queries
import spark_child
import workload
from pyspark.sql import SparkSession
from workload import Size

ROWS = pa.table(
    {"customer": ["b", "a", "a"], "end": [20, 20, 10], "n": [1, 2, 3], "s": [0.1, 0.3, 9.0], "m": [0.1, 0.2, 4.0]}
)


def test_rows_have_one_digest_whatever_their_order_files_and_last_bits(tmp_path: Path) -> None:
    (tmp_path / "one" / "0").mkdir(parents=True)
    (tmp_path / "other" / "0" / "_spark_metadata").mkdir(parents=True)
    pq.write_table(ROWS, tmp_path / "one" / "0" / "rows.parquet")
    lines = ["a,10,3,9.000000000000002,4.0\nb,20,1,0.1,0.1\n", "a,20,2,0.30000000000000004,0.2\nz,30,1,1.0,1.0\n"]
    for number, text in enumerate(lines):
        (tmp_path / "other" / "0" / f"part-{number}").write_text(text)
    (tmp_path / "other" / "0" / ".part-2.inprogress").write_text("a,10,")
    (tmp_path / "other" / "0" / "_spark_metadata" / "0").write_text("v1")
    found = compared.digest(tmp_path / "one", 1, 20)
    assert found == compared.digest(tmp_path / "other", 1, 20)
    assert found[0] == 3
    assert found != compared.digest(tmp_path / "other", 1, 30)


def test_dealt_files_are_in_order_of_time_and_have_all_events_of_a_customer(tmp_path: Path) -> None:
    source = tmp_path / "events"
    source.mkdir()
    for number in range(2):
        times = pa.array(range(5 * number, 5 * number + 5), pa.timestamp("us", "UTC"))
        names = [f"customer-{time % 4}" for time in range(5 * number, 5 * number + 5)]
        pq.write_table(pa.table({"ts": times, "customer": names}), source / f"{number}.parquet")
    folder = compared.dealt(source)
    parts = [[value.value for value in pq.read_table(path)["ts"]] for path in sorted(folder.glob("*.parquet"))]
    assert parts == [[0, 2, 4, 6, 8], [1, 3, 5, 7, 9]]
    assert compared.dealt(source) == folder


def test_windows_of_all_counts_are_different_and_flink_can_express_them() -> None:
    windows = compared.multiples(100)
    assert len(set(windows)) == 100
    assert all(size % slide == 0 for size, slide in windows)
    spec = queries.flink_sql("/in", windows[:4], 9.0, None)
    assert len(spec["inserts"]) == 4
    assert "HOP(TABLE events, DESCRIPTOR(et), INTERVAL '10' SECOND(4), INTERVAL '60' SECOND(4))" in spec["inserts"][0]
    assert "TUMBLE(TABLE events, DESCRIPTOR(et), INTERVAL '30' SECOND(4))" in spec["inserts"][3]
    assert "'blackhole'" in spec["tables"][1]
    assert "file:///out/0" in queries.flink_sql("/in", windows[:1], 9.0, "/out")["tables"][1]


CHILD = """
import subprocess, sys
print("hello")
print('@{"mark": "begin"}', flush=True)
kept = bytearray(64_000_000)
subprocess.run([sys.executable, "-c", "import time; sum(range(10**6)); time.sleep(1)"])
print('@{"mark": "end", "events": 7}', flush=True)
"""


def test_a_program_is_measured_with_what_it_starts() -> None:
    found = meter.measured([sys.executable, "-c", CHILD], {}, patience=60)
    assert [one["events"] for one in found.ends] == [7]
    assert found.peak_mb > 60
    assert 0 < found.seconds < found.whole


LINGERS = """
import subprocess, sys
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print('@{"mark": "begin"}', flush=True)
import time; time.sleep(3)
print('@{"mark": "end"}', flush=True)
"""


def test_what_a_program_leaves_behind_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meter, "LAST_SECONDS", 1.0)
    found = meter.measured([sys.executable, "-c", LINGERS], {}, patience=60)
    assert 0.5 < found.seconds < found.whole < 300  # a mark is timed when it is read, which may be late for the first


def test_a_program_that_fails_says_what_it_printed() -> None:
    with pytest.raises(meter.Failed, match=r"(?s)hello.*broken"):
        meter.measured([sys.executable, "-c", "print('hello'); raise SystemExit('broken')"], {}, patience=60)


def test_cells_become_a_table_and_figures() -> None:
    cells = [
        queries.Cell("millpond", 8, 600_000.0, 1.0, 2.5, 1500.0, 40.0, 20.0),
        queries.Cell("flink-heap", 8, 20_000.0, 0.25, 90.0, 3000.0, float("nan"), 40.0),
    ]
    lines = queries.table(cells).splitlines()
    assert lines[2] == "| 8 | millpond | 600.0 k | 1.0 x | 100% | 2.5 | 1,500 | 40.0 | 20 |"
    assert lines[3] == "| 8 | flink-heap | 20.0 k | 30.0 x | 25% | 90.0 | 3,000 |  | 40 |"
    assert queries.figures(cells)["vs_flink_8"] == 30.0
    slow = queries.Cell("spark-memory", 8, 0.0, 0.0, 0.0, 900.0, 1.0, 40.0)
    assert "no events yet" in queries.table([*cells, slow])
    assert "vs_spark_memory_8" not in queries.figures([*cells, slow])
    assert queries.panels(cells)[0].series == {"millpond": [600_000.0], "flink-heap": [20_000.0]}


def test_other_versions_are_other_environments() -> None:
    assert install.folder_of("flink", ["a==1"]) != install.folder_of("flink", ["a==2"])
    assert install.environment("spark").python == Path(sys.executable)


@pytest.mark.slow
def test_pond_and_plain_spark_answer_alike(spark: SparkSession, tmp_path: Path) -> None:
    source = tmp_path / "events"
    source.mkdir()
    for number, table in enumerate(workload._tables(Size(2_000, 2, 50))):
        pq.write_table(table, source / f"{number}.parquet")
    found = []
    for child in (pond_child, spark_child):
        folder = tmp_path / child.__name__
        spec = {"source": str(source), "windows": compared.multiples(2), "seconds": 200, "out": str(folder / "rows")}
        child.run(spark, folder / "work", spec, False)
        found.append(compared.digest(folder / "rows", 2, compared.newest_second(source)))
    assert found[0] == found[1] and found[0][0] > 1_000
