"""Errors as a user meets them: a code, one line, a cure, and where it can be before any event is read.

Also those that arise inside Spark's workers: there a process is really out of room or memory.
"""

from __future__ import annotations

import errno
import os
import re
import resource
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from kit.programs.forked_program import run_forked
from kit.servers.process_tree import children
from millpond import Pond
from millpond.control.checks.input_files import check_files
from millpond.control.pond import lifetime
from millpond.errors import (
    DiskFullError,
    FencedError,
    ForeignPondError,
    LateSchemaError,
    MillpondError,
    NoMemoryError,
    PlaceError,
    QueryError,
    QueryRefused,
    QuerySyntaxError,
    QueryTypeError,
    SourceError,
    UnsupportedQuery,
)
from millpond.model.endpoints import Source
from millpond.model.stream import Field, Stream
from millpond.spark.frontend.frontend import FrontEnd
from millpond.spark.reading.columns_of_sources import ReadColumns
from millpond.spark.session import session

COLUMNS = "ts TIMESTAMP, c STRING, v BIGINT, day DATE, items ARRAY<INT>"
WM = "FROM STREAM tx WATERMARK ts DELAY OF INTERVAL 1 SECOND"
W = "window(ts, '10 seconds')"
QUERY = f"SELECT c, {W} AS w, count(*) AS n, sum(v) AS s {WM} GROUP BY ALL"

QUERIES: list[tuple[str, type[MillpondError], str]] = [
    (f"SELECT c,\n  sum(nosuch) AS s {WM} GROUP BY c, {W}", QueryTypeError, r"line 2, column 7 \(`nosuch`\)"),
    (f"SELECT c,\n  sum(items) AS s {WM} GROUP BY c, {W}", QueryTypeError, r"line 2, column 3 .*ARRAY<INT>"),
    (f"SELECT c, count(*) {WM}\n WHERE length(c, 1) > 0 GROUP BY c, {W}", QueryTypeError, "line 2, column 8"),
    (f"SELECT c,, count(*) {WM} GROUP BY c, {W}", QuerySyntaxError, "line 1, column 10"),
    (f"SELECT c {WM.replace('tx', 'tx AS t')}", QuerySyntaxError, "line 1, column 30.*SECONDS AS a"),
    (f"SELECT c,\n percentile(v, 0.5, 2) AS p {WM} GROUP BY c, {W}", UnsupportedQuery, "line 2, column 2.*percentile"),
    (f"SELECT c, corr(DISTINCT\n v, v) AS p {WM} GROUP BY c, {W}", UnsupportedQuery, "line 1, column 11.*DISTINCT"),
    (f"SELECT count(*) AS n {WM} GROUP BY {W}\n ORDER BY n", UnsupportedQuery, "line 2, column 2: .*ORDER BY"),
    (f"SELECT parse_json(max(c)) AS y {WM} GROUP BY {W}", UnsupportedQuery, "line 1, column 8.* the type variant"),
    # behind a hopping window, whose text is rewritten before Spark counts
    (
        "SELECT window(ts, '1 hour',\n '1 minute') AS w, sum(nosuch) AS s FROM STREAM tx WATERMARK ts DELAY OF "
        "INTERVAL 1 SECOND GROUP BY ALL",
        QueryTypeError, r"line 2, column 24 \(`nosuch`\)",
    ),
    (
        f"SELECT window(slideDuration => '1 minute', windowDuration => INTERVAL 1 HOUR, timeColumn => ts) AS w, "
        f"sum(x) {WM} GROUP BY ALL",
        QueryTypeError, r"line 1, column 107 \(`x`\)",
    ),
    (f"SELECT count(*) FROM STREAM tx\n GROUP BY {W}", QueryTypeError, "line 2, column 11.*no watermark"),
    (f"SELECT count(*) {WM} GROUP BY window(ts, '0 seconds')", QueryTypeError, r"line 1, column 81.*is empty"),
    (f"SELECT count(*) {WM} GROUP BY window(ts, '365 days', '1 microsecond')", QueryTypeError, "31,536,000,000,000"),
    (f"SELECT count(*) {WM} GROUP BY window(ts, '200000000 days')", QueryTypeError, "would never end"),
    (f"SELECT count(*) {WM.replace('INTERVAL 1', 'INTERVAL -1')} GROUP BY {W}", QueryError, "not be negative"),
    (f"SELECT c, count(*) {WM}\n GROUP BY c", UnsupportedQuery, "line 2, column 2.* does not group by a window"),
    (f"SELECT count(*) {WM} GROUP BY window(ts, '5 seconds', '0 seconds')", QueryTypeError, "line 1, column 81.*empty"),
    (f"SELECT v,\n count(*) {WM} GROUP BY c, {W}", QueryTypeError, r"line 1, column 8 \(`v`\)"),
    (f"SELECT count(*) AS n, sum(v) AS n {WM}\n GROUP BY {W}", QueryTypeError, "line 2, column 2: Two columns"),
    (
        f"SELECT count(*) {WM} AS a\n JOIN STREAM tx AS b ON a.c = b.c GROUP BY window(a.ts, '1 hour')",
        UnsupportedQuery, "line 2, column 2: .*join of two streams",
    ),
    (f"SELECT count(*) {WM} AS a\n FULL JOIN sites AS b ON a.c = b.c GROUP BY {W}", UnsupportedQuery, "line 2, column"),
    ("SELECT c, count(*)\n FROM sites GROUP BY c", QueryTypeError, "line 2, column 7: .* no stream"),
    (
        f"SELECT count(*) FROM (SELECT\n DISTINCT array(ts), ts {WM}) GROUP BY {W}",
        UnsupportedQuery, "line 1, column 23",
    ),
    (f"SELECT array(ts) AS k, {W} AS w, count(*) AS n {WM} GROUP BY ALL", UnsupportedQuery, "key `array"),
    (f"SELECT c, count(*) {WM} WHERE c = '${{env:HOME}}' GROUP BY c, {W}", QueryRefused, "line 1, column"),
]  # fmt: skip


def events(path: Path, start: int, count: int, v: Any = None) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    times = pa.array([(start + i % 9) * 1_000_000 for i in range(count)], pa.timestamp("us", "UTC"))
    values = pa.array(range(count), pa.int64()) if v is None else v
    pq.write_table(pa.table({"ts": times, "c": [f"key {i}" for i in range(count)], "v": values}), path)
    os.utime(path, (1_700_000_000 + start,) * 2)


def file_of(
    folder: Path, query: str = QUERY, source: str = "parquet", path: Path | None = None, options: str = ""
) -> str:
    options = f"path '{path or folder / 'in'}', maxFilesPerTrigger 1{options}"
    return f"CREATE TABLE tx ({COLUMNS}) USING {source} OPTIONS ({options});\nCREATE STREAMING TABLE q AS {query};\n"


@pytest.fixture(scope="module")
def front(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> FrontEnd:
    front = FrontEnd(spark)
    folder = tmp_path_factory.mktemp("tx")
    (folder / "in").mkdir()
    (folder / "sites.csv").write_text("a,1\n")
    table = f"CREATE TEMPORARY VIEW sites (c STRING, n INT) USING csv OPTIONS (path '{folder}/sites.csv');"
    front.load_file(file_of(folder) + table)
    return front


@pytest.mark.parametrize("given", [None, 7, ["SELECT"]])
def test_values_that_are_no_query_are_reported(front: FrontEnd, given: Any) -> None:
    with pytest.raises(QueryTypeError, match="q is neither SQL text nor a DataFrame, but a"):
        front.query_from_dataframe("q", given)


@pytest.mark.parametrize(("text", "error", "what"), QUERIES)
def test_a_wrong_query_is_reported_with_the_position_of_the_mistake(
    front: FrontEnd, capfd: pytest.CaptureFixture[str], text: str, error: type[MillpondError], what: str
) -> None:
    with pytest.raises(error, match=what) as caught:
        front.query_from_sql("q", text)
    assert caught.value.cure
    assert str(caught.value).startswith(f"[{caught.value.code}] In q: ")
    assert "\n" not in str(caught.value)
    assert capfd.readouterr().err == "", "PySpark logs each error as a page of JSON"


@pytest.mark.parametrize(("query", "what"), [
    (f"SELECT c,\n sum(nosuch) {WM} GROUP BY c, {W}", "line 3, column 6"),
    (f"SELECT c,\n corr(DISTINCT v, v) {WM} GROUP BY c, {W}", "line 3, column 2"),
    (f"SELECT c,\n java_method('a') {WM} GROUP BY c, {W}", "line 3, column 2"),
    (f"SELECT c,,\n v {WM} GROUP BY c, {W}", "line 2, column 38"),
])  # fmt: skip
def test_in_a_file_positions_are_the_files(spark: SparkSession, tmp_path: Path, query: str, what: str) -> None:
    (tmp_path / "in").mkdir()
    with pytest.raises(QueryError, match=what):
        FrontEnd(spark).load_file(file_of(tmp_path, query))


def test_a_missing_path_is_reported_before_anything_is_made(spark: SparkSession, tmp_path: Path) -> None:
    pond = Pond(spark, tmp_path / "pond")
    with pytest.raises(SourceError, match=r"PATH_NOT_FOUND.*nowhere\. Check"):
        pond.load(file_of(tmp_path, path=tmp_path / "nowhere"))
    assert not (tmp_path / "pond").exists()


def test_an_empty_folder_is_a_note(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "in" / "_hidden").mkdir(parents=True)
    (tmp_path / "in" / ".part").touch()
    pond = Pond(spark, tmp_path / "pond")
    pond.load(file_of(tmp_path))
    [note] = pond.notes()
    assert str(note).startswith("[MP-EMPTY] The stream tx has nothing to read: ")
    events(tmp_path / "in" / "0.parquet", 0, 1)
    assert pond.notes() == []


def run(spark: SparkSession, folder: Path, text: str, **options: Any) -> Pond:
    with Pond(spark, folder / "pond", **options) as pond:
        pond.load(text)
        pond.run(once=True, drain=True)
    return pond


def test_a_file_with_other_columns_is_reported_before_anything_is_made(spark: SparkSession, tmp_path: Path) -> None:
    events(tmp_path / "in" / "0.parquet", 0, 2)
    events(tmp_path / "in" / "1.parquet", 20, 2, v=["x", "y"])
    text = file_of(tmp_path)
    with pytest.raises(LateSchemaError, match=r"in/1\.parquet holds v as BYTE_ARRAY String, .* bigint .* tx declares"):
        run(spark, tmp_path, text)
    assert not (tmp_path / "pond").exists()
    counted = text.replace(QUERY, f"SELECT c, {W} AS w, count(*) AS n {WM} GROUP BY ALL")
    run(spark, tmp_path, counted)  # which does not read that column


def test_a_file_with_other_columns_that_comes_later_costs_only_its_epoch(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events(tmp_path / "in" / "0.parquet", 0, 2)
    events(tmp_path / "in" / "1.parquet", 20, 2, v=["x", "y"])
    text = file_of(tmp_path)
    monkeypatch.setattr(lifetime, "check_files", lambda _: [])
    with pytest.raises(LateSchemaError, match=r"1\.parquet does not fit its stream: .*\[v\].*bigint.*BINARY") as caught:
        run(spark, tmp_path, text)
    assert caught.value.cure
    (tmp_path / "in" / "1.parquet").unlink()
    events(tmp_path / "in" / "1.parquet", 20, 2)
    run(spark, tmp_path, text)


def test_columns_below_a_join_are_looked_at_too(spark: SparkSession, tmp_path: Path) -> None:
    events(tmp_path / "in" / "0.parquet", 0, 2, v=["x", "y"])
    pq.write_table(pa.table({"c": ["key 0"], "label": ["a"]}), tmp_path / "names.parquet")
    stream = "STREAM tx WATERMARK ts DELAY OF INTERVAL 1 SECOND"
    for column, fits in (("1", True), ("v + 1", False)):
        pond = Pond(spark, tmp_path / "pond")
        query = f"SELECT label, sum({column}) AS s FROM {stream} JOIN names USING (c) GROUP BY label, {W}"
        table = f"CREATE TEMPORARY VIEW names USING parquet OPTIONS (path '{tmp_path}/names.parquet')"
        pond.load(file_of(tmp_path, f"{query};\n{table}"))
        if fits:
            assert pond.notes() == []
        else:
            with pytest.raises(LateSchemaError, match="holds v as BYTE_ARRAY"):
                pond.notes()


STORED: dict[str, pa.Array] = {
    "bool": pa.array([True]), "byte": pa.array([1], pa.int8()), "int": pa.array([1], pa.int32()), "long": pa.array([1]),
    "uint": pa.array([1], pa.uint32()), "ulong": pa.array([1], pa.uint64()), "float": pa.array([1.0], pa.float32()),
    "real": pa.array([1.0]), "text": pa.array(["x"]), "bytes": pa.array([b"x"]), "few": pa.array([b"x"], pa.binary(1)),
    "date": pa.array([1], pa.date32()), "us": pa.array([1], pa.timestamp("us", "UTC")),
    "ms": pa.array([1], pa.timestamp("ms")), "ns": pa.array([1], pa.timestamp("ns")), "null": pa.array([None]),
}  # fmt: skip
DECLARED = (
    "boolean", "smallint", "int", "bigint", "float", "double", "string", "binary", "date", "timestamp", "timestamp_ntz",
)  # fmt: skip


@pytest.mark.slow
def test_what_is_refused_before_the_start_is_what_spark_cannot_read(spark: SparkSession, tmp_path: Path) -> None:
    paths = {stored: str(tmp_path / f"{stored}.parquet") for stored in STORED}
    for stored, path in paths.items():
        pq.write_table(pa.table({"v": STORED[stored]}), path)

    def is_refused(stored: str, kind: str) -> bool:
        stream = Stream("tx", (Field("v", kind),), Source("parquet", (("path", paths[stored]),)))
        try:
            check_files([ReadColumns(stream, frozenset({"v"}), frozenset())])
        except LateSchemaError:
            return True
        return False

    def fails(kind: str, *stored: str) -> bool:
        try:
            spark.read.schema(f"v {kind}").parquet(*[paths[one] for one in stored]).collect()
        except Exception:  # whatever Spark says
            return True
        return False

    for kind in DECLARED:
        refused = {stored for stored in STORED if is_refused(stored, kind)}
        assert {stored for stored in refused if fails(kind, stored)} == refused, f"Spark reads some as {kind}"
        # together: one that fails would fail all
        assert not fails(kind, *[stored for stored in STORED if stored not in refused]), f"one is not read as {kind}"


def test_a_file_that_is_none_is_named(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "0.parquet").write_bytes(b"no parquet at all" * 9)
    with pytest.raises(SourceError, match=r"0\.parquet cannot be read: .*not a Parquet file"):
        run(spark, tmp_path, file_of(tmp_path))


def test_an_unreadable_record_is_reported(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "0.json").write_text('{"ts": "2024-01-01T00:00:00Z", "v": "two"}\n')
    with pytest.raises(SourceError, match="cannot be read"):
        run(spark, tmp_path, file_of(tmp_path, source="json", options=", mode 'FAILFAST'"))


def test_folders_that_are_no_ponds(spark: SparkSession, tmp_path: Path) -> None:
    events(tmp_path / "in" / "0.parquet", 0, 1)
    (tmp_path / "file").write_text("no folder")
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "data.csv").touch()
    for name, error in (("file", PlaceError), ("foreign", ForeignPondError)):
        pond = Pond(spark, tmp_path / name)
        pond.load(file_of(tmp_path))
        with pytest.raises(error) as caught:
            pond.run()
        assert caught.value.cure


def test_of_two_drivers_the_older_one_stops(spark: SparkSession, tmp_path: Path) -> None:
    events(tmp_path / "in" / "0.parquet", 0, 1)
    with Pond(spark, tmp_path / "pond") as older, Pond(spark, tmp_path / "pond") as newer:
        for pond in (older, newer):
            pond.load(file_of(tmp_path))
            pond.open()
        with pytest.raises(FencedError) as caught:
            older.run()
        assert caught.value.cure


def _below(processes: list[int]) -> list[int]:
    """The children of `processes`."""
    return [child for process in processes for child in children(process)]


def _daemons() -> list[int]:
    """The processes that fork Python workers; they are the children of our JVM."""
    return _below([gateway.process.pid for gateway in session._gateways])


def _python_workers() -> list[int]:
    """The daemons and the workers."""
    return [*_daemons(), *_below(_daemons())]


def _limit(processes: list[int], limit: int, values: tuple[int, int]) -> None:
    for process in processes:
        with suppress(ProcessLookupError):  # idle workers may end at any time
            resource.prlimit(process, limit, values)


@contextmanager
def _limited(limit: int, size: int) -> Iterator[None]:
    """Soft limits of living processes; what they fork inherits them."""
    workers = _python_workers()
    assert workers, "no Python worker is alive"
    before = resource.prlimit(workers[0], limit)  # a daemon; workers inherit its limits
    _limit(workers, limit, (size, before[1]))
    try:
        yield
    finally:
        _limit([*workers, *_python_workers()], limit, before)


def _warm(spark: SparkSession) -> None:
    spark.range(1).mapInArrow(lambda batches: batches, "id bigint").toArrow()


def _end_workers(spark: SparkSession) -> None:
    """End all Python workers, but not the daemons that fork new ones.

    A worker that has run tasks holds memory that its next task uses without asking the system for more.
    """
    _warm(spark)
    workers = _below(_daemons())
    for worker in workers:
        with suppress(ProcessLookupError):  # idle ones may end at any time
            os.kill(worker, signal.SIGTERM)
    while any(Path(f"/proc/{worker}").exists() for worker in workers):
        time.sleep(0.01)


def test_a_worker_without_room_says_so_and_a_later_run_continues(spark: SparkSession, tmp_path: Path) -> None:
    events(tmp_path / "in" / "0.parquet", 0, 50_000)
    text = file_of(tmp_path)
    _warm(spark)
    with _limited(resource.RLIMIT_FSIZE, 100_000), pytest.raises(DiskFullError, match="can be written") as caught:
        run(spark, tmp_path, text, instances=1)
    assert "Make room" in caught.value.cure and "Make room" not in caught.value.what
    run(spark, tmp_path, text, instances=1)


def test_a_sink_without_room_is_named_at_once(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events(tmp_path / "in" / "0.parquet", 0, 5)
    out, sync = tmp_path / "out", os.fsync

    def full(descriptor: int) -> None:
        if os.readlink(f"/proc/self/fd/{descriptor}").startswith(str(out)):
            raise OSError(errno.ENOSPC, "No space left on device")
        sync(descriptor)

    text = file_of(tmp_path).replace("AS SELECT", f"USING json TBLPROPERTIES ('path' = '{out}') AS SELECT")
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(DiskFullError, match=f"written to {out}: ") as caught:
        run(spark, tmp_path, text)
    assert "Make room" in caught.value.cure
    monkeypatch.undo()
    run(spark, tmp_path, text)
    assert list(out.glob("part-*.json"))


def test_a_worker_without_memory_says_so(spark: SparkSession, tmp_path: Path) -> None:
    events(tmp_path / "in" / "0.parquet", 0, 400_000)
    _end_workers(spark)
    pages = [int(Path(f"/proc/{daemon}/statm").read_text().split()[0]) for daemon in _daemons()]
    most = max(pages) * resource.getpagesize() + (16 << 20)
    with _limited(resource.RLIMIT_AS, most), pytest.raises(NoMemoryError, match="fewer instances"):
        run(spark, tmp_path, file_of(tmp_path), instances=1)


def _millpond(*words: object, **limits: Any) -> subprocess.CompletedProcess[str]:
    return run_forked(["-m", "millpond", *words], text=True, timeout=180, **limits)


@pytest.mark.slow
def test_the_command_says_it_in_one_line(tmp_path: Path) -> None:
    events(tmp_path / "in" / "0.parquet", 0, 2, v=["x", "y"])
    file = tmp_path / "q.sql"
    file.write_text(file_of(tmp_path))
    done = _millpond("run", file, "--once", "--master", "local[1]", "--memory", "1g")
    assert done.returncode == 1
    lines = [line for line in done.stderr.splitlines() if not line.startswith("The pond is in ")]
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith("[MP-LATE-SCHEMA] "), done.stderr


@pytest.mark.slow
def test_a_heap_that_is_too_small_for_the_data_is_reported(tmp_path: Path) -> None:
    table = pa.table({"ts": pa.array([0], pa.timestamp("us", "UTC")), "c": ["x" * 300_000_000], "v": [1]})
    (tmp_path / "in").mkdir()
    place = tmp_path / "in" / "0.parquet"
    pq.write_table(table, place, compression="zstd", use_dictionary=False, write_statistics=False)
    file = tmp_path / "q.sql"
    file.write_text(file_of(tmp_path, options=", datetimeRebaseMode 'CORRECTED'"))  # with this option, Spark reads it
    done = _millpond("run", file, "--once", "--master", "local[1]", "--memory", "512m")
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("[MP-MEMORY] The JVM has no memory left"), done.stderr[-2_000:]
    # Spark exits at once; on a busy machine the thread of its query may then print that Spark has stopped
    ending = r'Exception in thread "stream execution thread.*RpcEnv already stopped\.\n(\t[^\n]*\n)*'
    rest = re.sub(ending, "", done.stderr, flags=re.DOTALL)
    assert "\tat " not in rest, "the JVM prints no other trace of its own"
    assert "Traceback" not in done.stderr


def test_a_task_that_ends_while_java_shuts_down_is_not_logged(spark: SparkSession) -> None:
    """After the Python process was killed, Java would log 15 lines of trace for each such task."""
    jvm: Any = spark._jvm
    log4j = jvm.org.apache.logging.log4j
    layout = log4j.LogManager.getContext(False).getConfiguration().getAppender("stderr").getLayout()

    def logged(error: Any) -> str:
        event = log4j.core.impl.Log4jLogEvent.newBuilder().setLevel(log4j.Level.ERROR)
        event = event.setMessage(log4j.message.SimpleMessage("Exception in statusUpdate")).setThrown(error)
        return str(layout.toSerializable(event.setLoggerName("a.TaskSchedulerImpl").build()))

    ended = "Task t rejected from java.util.concurrent.ThreadPoolExecutor@1a[Terminated, pool size = 0]"
    assert logged(jvm.java.util.concurrent.RejectedExecutionException(ended)) == ""
    assert "IllegalStateException: of another kind" in logged(jvm.java.lang.IllegalStateException("of another kind"))
