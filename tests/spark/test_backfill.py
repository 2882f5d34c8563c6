"""A query that is added with a backfill has all the rows of the same query from the beginning."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from tests.spark.test_changes import FIELDS, SECOND, SPEND, Actions, make_input, read_by, stream

from kit.servers.servers import until
from millpond import Pond
from millpond.errors import ChangeRefused, GoneError, QueryTypeError, UnsupportedQuery
from millpond.log.manifest import Manifest
from millpond.model.endpoints import Source
from millpond.model.stream import Retention, Stream
from millpond.reconfigure.change_price import COMPLETE_AT_ONCE
from millpond.spark.driver import reread_source
from millpond.spark.reading import file_source
from millpond.testing.compare import assert_same_rows, rows_of

QUERIES = {
    "spend": SPEND,
    "tumbling": "SELECT window(ts, '10 seconds') AS w, sum(v) AS total, avg(w) AS mean FROM STREAM tx\
        WATERMARK ts DELAY OF INTERVAL 1 SECOND WHERE v > 10 GROUP BY ALL",
    "holistic": SPEND.replace("sum(v)", "median(v)").replace("count(*)", "count(DISTINCT w)"),
    "patient": SPEND.replace("5 SECONDS", "40 SECONDS"),
    "having": SPEND.replace("GROUP BY ALL", "GROUP BY ALL HAVING count(*) > 3"),
    "steps": f"SELECT k, window(w, '40 seconds') AS w, sum(n) AS n, max(total) AS m FROM ({SPEND}) GROUP BY ALL",
    "three": "SELECT window(w, '80 seconds') AS w, max(m) AS m, sum(n) AS n FROM (SELECT k, window(w, '20 seconds') "
    f"AS w, max(total) AS m, sum(n) AS n FROM ({SPEND.replace('sum(v)', 'sum(w)')}) GROUP BY ALL) GROUP BY ALL",
    "foreign": SPEND.replace("k, window", "reverse(concat(k, cast(v % 3 AS string))) AS kk, window"),
}  # fmt: skip


@pytest.fixture(scope="module")
def expected(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, Any]]]:
    """The rows of the queries that existed from the beginning; they do not depend on the format of the files."""
    base = tmp_path_factory.mktemp("always")
    make_input(base / "in")
    with Pond(spark, base / "pond", instances=2) as pond:
        pond.stream(stream(base / "in"))
        for name, text in QUERIES.items():
            pond.add(name, text)
        pond.run()
        return {name: rows_of(pond.table(name)) for name in QUERIES}


def added_later(spark: SparkSession, base: Path, declared: Stream, **backfill: Any) -> dict[str, list[dict[str, Any]]]:
    """The rows of the queries that were added after the fourth epoch."""

    def add() -> None:
        for name, text in QUERIES.items():
            pond.add(name, text, backfill=True, **backfill)

    with Pond(spark, base / "pond", instances=2, on_epoch=Actions({4: [add]})) as pond:
        pond.stream(declared)
        pond.add("first", SPEND.replace("20", "10").replace("sum(v)", "min(v)"))
        pond.add("same", SPEND)
        pond.run()
        assert not pond.refused
        assert not (base / "pond" / "backfill").exists()
        assert not [one for one in pond.manifest().sections.values() if one.kind == "backfill"]
        return {name: rows_of(pond.table(name)) for name in QUERIES}


def as_csv(folder: Path) -> Stream:
    """The same events as CSV, in folders whose names contain a column."""
    for file in sorted(folder.glob("*.parquet")):
        table = pq.read_table(file)
        table = table.set_column(0, "ts", table["ts"].cast(pa.timestamp("us")).cast(pa.string()))
        for k in "abc":
            mine = folder / "csv" / f"k={k}" / f"{file.stem} a+b%20[1].csv"
            mine.parent.mkdir(parents=True, exist_ok=True)
            pa.csv.write_csv(table.filter(pa.array([one == k for one in table["k"].to_pylist()])).drop(["k"]), mine)
            changed = file.stat().st_mtime_ns
            os.utime(mine, ns=(changed, changed))
    ordered = (FIELDS[0], FIELDS[2], FIELDS[3], FIELDS[1])
    options = (("header", "true"), ("maxFilesPerTrigger", "3"), ("path", str(folder / "csv")))
    return Stream("tx", ordered, Source("csv", options))


def retaining(folder: Path) -> Stream:
    """Slices of all that was seen are kept, which suffice for some of the queries, and events for a while."""
    kept = Retention(600 * SECOND, 15 * SECOND, SECOND, ("k", "v", "w"))
    return msgspec.structs.replace(stream(folder), retain=kept)


@pytest.mark.spark
@pytest.mark.parametrize("make", [stream, as_csv, retaining])
def test_a_backfilled_query_emits_every_row_of_its_past(
    spark: SparkSession, tmp_path: Path, make: Callable[[Path], Stream], expected: dict[str, list[dict[str, Any]]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    make_input(tmp_path / "in")
    monkeypatch.setattr(file_source, "PORTION_BYTES", 6000)
    for name, rows in added_later(spark, tmp_path, make(tmp_path / "in")).items():
        assert expected[name]
        assert_same_rows(expected[name], rows, about=name)


@pytest.mark.spark
def test_a_backfill_is_priced_begins_at_a_time_and_outlives_its_driver(
    spark: SparkSession, tmp_path: Path, expected: dict[str, list[dict[str, Any]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    notes = list[str]()
    monkeypatch.setattr(file_source, "PORTION_BYTES", 1)
    make_input(tmp_path / "in")
    for i in range(6, 8):
        (tmp_path / "in" / f"f{i}.parquet").rename(tmp_path / f"f{i}.parquet")
    with Pond(spark, tmp_path / "pond", instances=2) as pond:
        pond.stream(stream(tmp_path / "in"))
        pond.add("first", SPEND)
        pond.run()
        whole = pond.price_of("add", "later", QUERIES["holistic"], backfill=True)
        files = sum(file.stat().st_size for file in (tmp_path / "in").glob("*.parquet"))
        assert (whole.cost, whole.complete_from_us, whole.source.bytes) == (COMPLETE_AT_ONCE, None, files)
        part = pond.price_of("add", "later", QUERIES["holistic"], backfill="2023-11-14T22:13:51")
        assert part.complete_from_us == (1_700_000_000 + 40) * SECOND and 0 < part.source.bytes < files
        with monkeypatch.context() as noted:
            noted.setattr(
                reread_source, "reached",
                lambda _step: notes.extend(one.note or "" for one in pond.status() if one.name == "backfill"),
            )  # fmt: skip
            pond.add("later", QUERIES["holistic"], backfill="2023-11-14T22:13:51")
        assert re.fullmatch(r"later: the source is read again, round 1, about \d+ seconds? left", notes[0]), notes
        # the change is recorded, and no epoch has followed
        assert [one for one in pond.manifest().sections.values() if one.kind == "backfill"]
        pond.add("steps", QUERIES["steps"], backfill=True)
        assert len(pond.plan.all_queries) == 7, "first, later, later@0; steps and steps@0 with their inner queries"
        with pytest.raises(UnsupportedQuery, match="cannot be backfilled"):
            pond.add("running", SPEND, emit="update", backfill=True)
        with pytest.raises(UnsupportedQuery, match="a backfill cannot begin at a time"):
            pond.add("three", QUERIES["three"], backfill="2023-11-14T22:13:51")
        with pytest.raises(UnsupportedQuery, match="A step is a UNION ALL"):
            both = f"SELECT w, n FROM ({SPEND}) UNION ALL SELECT w, n FROM ({SPEND})"
            united = f"SELECT window(w, '40 seconds') AS w, sum(n) AS n FROM ({both}) GROUP BY ALL"
            pond.add("united", united, backfill=True)
        with pytest.raises(QueryTypeError, match="no time"):
            pond.add("other", QUERIES["holistic"], backfill="yesterday")
    for i in range(6, 8):
        (tmp_path / f"f{i}.parquet").rename(tmp_path / "in" / f"f{i}.parquet")
    with Pond(spark, tmp_path / "pond") as pond:
        pond.run()
        every = expected["holistic"]
        late = [row for row in every if row["w"]["start"].timestamp() * SECOND >= part.complete_from_us]
        assert 0 < len(late) < len(every)
        assert_same_rows(late, rows_of(pond.table("later")), about="later")
        assert_same_rows(expected["steps"], rows_of(pond.table("steps")), about="steps")


@pytest.mark.spark
def test_a_backfilled_text_that_is_dropped_and_added_again_has_all_its_rows(
    spark: SparkSession, tmp_path: Path, expected: dict[str, list[dict[str, Any]]]
) -> None:
    def add(*names: str) -> None:
        for name in names:
            pond.add(name, QUERIES[name], backfill=True)

    def again(*names: str) -> None:
        for name in names:
            pond.drop(name)
        add(*names)

    names = ("steps", "three")
    make_input(tmp_path / "in")
    actions = Actions({4: [lambda: add(*names)], 6: [lambda: pond.stop()]})
    with Pond(spark, tmp_path / "pond", instances=2, on_epoch=actions) as pond:
        pond.stream(stream(tmp_path / "in"))
        pond.add("first", SPEND)
        pond.run()
        assert read_by(pond, "steps") == 80  # in an epoch that replays the earlier events, and in the next one
        again(*names)
    with Pond(spark, tmp_path / "pond", on_epoch=Actions({1: [lambda: pond.stop()]})) as pond:
        pond.run()
        again("three")  # just after the epoch that replays the events
        pond.run()
        for name in names:
            assert_same_rows(expected[name], rows_of(pond.table(name)), about=name)


@pytest.mark.spark
def test_a_backfill_that_is_requested_before_the_first_read_includes_later_files(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_input(tmp_path / "in")
    with Pond(spark, tmp_path / "pond", instances=2) as pond:
        pond.stream(stream(tmp_path / "in"))
        pond.add("first", SPEND)
        pond.run()
        known = pond._requests.known()
        with monkeypatch.context() as patch:
            patch.setattr(pond._requests, "known", lambda: known._replace(manifest=Manifest()))
            pond.add("later", SPEND, backfill=True)
        pond.run(drain=True)
        assert rows_of(pond.table("first"))
        assert_same_rows(rows_of(pond.table("first")), rows_of(pond.table("later")), about="later")


@pytest.mark.spark
def test_a_source_is_read_again_while_epochs_continue(
    spark: SparkSession, tmp_path: Path, expected: dict[str, list[dict[str, Any]]]
) -> None:
    epochs = make_input(tmp_path / "made")
    (tmp_path / "in").mkdir()

    def come(first: int, end: int) -> None:
        for i in range(first, end):
            lines = [json.dumps(row | {"ts": moment(row["ts"])}) for row in epochs[i]]
            waiting = tmp_path / f"f{i}.json"
            waiting.write_text("\n".join(lines))
            os.utime(waiting, (1_700_000_000 + i, 1_700_000_000 + i))
            waiting.rename(tmp_path / "in" / waiting.name)

    declared = Stream("tx", FIELDS, Source("json", (("maxFilesPerTrigger", "1"), ("path", str(tmp_path / "in")))))
    come(0, 5)
    with Pond(spark, tmp_path / "pond", instances=2) as pond:
        pond.stream(declared)
        pond.add("first", SPEND)
        with ThreadPoolExecutor(1) as running:
            run = running.submit(pond.run, once=False)
            until(lambda: read_by(pond, "first") >= 80, "events are read", 240)
            pond.add("later", QUERIES["holistic"], backfill=True)
            come(5, 8)
            until(lambda: read_by(pond, "first") >= 320, "events are read", 240)
            pond.stop()
            run.result(60)
        assert [name for name in {one.change.name for one in pond.history()} if "@" not in name] == ["later"]
        pond.settle()
        found = rows_of(pond.table("later"))
    assert_same_rows(expected["holistic"], found, about="later")


def moment(us: int) -> str:
    return datetime.fromtimestamp(us / SECOND, timezone.utc).isoformat()


@pytest.mark.spark
def test_a_backfill_is_refused_where_files_are_gone_or_others(spark: SparkSession, tmp_path: Path) -> None:
    make_input(tmp_path / "in")
    with Pond(spark, tmp_path / "pond", instances=2) as pond:
        pond.stream(stream(tmp_path / "in"))
        pond.add("first", SPEND)
        pond.run()
        file = tmp_path / "in" / "f0.parquet"
        os.utime(file, (1_700_001_000, 1_700_001_000))
        with pytest.raises(GoneError, match=r"f0.parquet was changed since"):
            pond.add("later", QUERIES["holistic"], backfill=True)
        file.unlink()
        for call in (pond.add, lambda *args, **more: pond.price_of("add", *args, **more)):
            with pytest.raises(GoneError, match=r"\[MP-GONE\] The source of tx no longer has all .*f0.parquet"):
                call("later", QUERIES["holistic"], backfill=True)
        assert {query.name for query in pond.queries} == {"first"}
        pond.add("later", QUERIES["holistic"], backfill="2023-11-14T22:14:00")  # the rows that this needs exist
        assert pond.history()[0].change.name == "later"
        with pytest.raises(ChangeRefused, match="is running"):
            pond.add("later", QUERIES["holistic"], backfill=True)
