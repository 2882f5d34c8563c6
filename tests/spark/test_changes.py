"""A pond whose queries change while it runs: each change at a record, every row that of the naive twin."""

from __future__ import annotations

import importlib.util
import json
import os
import random
import signal
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from msgspec.structs import replace
from pyspark.sql import DataFrame, SparkSession

from kit.naive.queries.query_changes import NaiveChanges
from kit.programs.forked_program import run_forked
from kit.programs.shared_java import joining
from kit.servers.servers import until
from millpond import Pond
from millpond.control.pond import readings as pond_readings
from millpond.errors import ChangeRefused, NotServingError, QueryTypeError, UnsupportedQuery
from millpond.log.locations.local_folder import LocalFolder
from millpond.log.manifest import Manifests, load
from millpond.log.port import Log
from millpond.log.records import ChangeRecord, ClaimRecord, EpochRecord, Record, decode
from millpond.model.endpoints import Sink, Source
from millpond.model.expressions import Literal, literal
from millpond.model.query import Query
from millpond.model.spec import from_json
from millpond.model.stream import Field, Retention, Stream
from millpond.plan.options.live_parameters import constant_of
from millpond.reconfigure.changes import Add, Alter, Shadow, change_of, kind_name
from millpond.runtime.task.counters import WHOLE_POND
from millpond.spark.driver.epochs import Epoch
from millpond.spark.reading.read_frame import read
from millpond.spark.session.warm_up import WarmUp
from millpond.testing.compare import assert_same_rows, rows_of

SECOND = 1_000_000
FILES = 8
FIELDS = (Field("ts", "timestamp"), Field("k", "string"), Field("v", "bigint"), Field("w", "bigint"))
SPEND = """
    SELECT k, window(ts, '20 seconds', '10 seconds') AS w, count(*) AS n, sum(v) AS total
    FROM STREAM tx WATERMARK ts DELAY OF INTERVAL 5 SECONDS GROUP BY ALL
"""
BIG = SPEND.replace("GROUP BY", "WHERE v > 50 GROUP BY")
WIDE = SPEND.replace("sum(v)", "sum(w)")
COUNT = SPEND.replace(", sum(v) AS total", "")
EACH = "SELECT k, v FROM STREAM tx WHERE v < :least + 9"
SHORT = SPEND.replace("'20 seconds', '10 seconds'", "'10 seconds'")


def make_input(folder: Path, files: int = FILES) -> list[list[dict[str, Any]]]:
    """An epoch per file."""
    folder.mkdir(parents=True, exist_ok=True)
    dice, epochs = random.Random(3), []
    for i in range(files):
        rows = [
            {"ts": int((1_700_000_000 + 10 * i + 10 * dice.random() - dice.choice((0, 0, 0, 4, 30))) * SECOND),
             "k": dice.choice("abc"), "v": dice.randint(0, 100), "w": dice.randint(0, 9)}
            for _ in range(40)
        ]  # fmt: skip
        columns: dict[str, Any] = {name: [row[name] for row in rows] for name in rows[0]}
        columns["ts"] = pa.array(columns["ts"], pa.timestamp("us", "UTC"))
        file = folder / f"f{i}.parquet"
        pq.write_table(pa.table(columns), file)

        os.utime(file, (1_700_000_000 + i, 1_700_000_000 + i))
        epochs.append(rows)
    return epochs


def stream(folder: Path, name: str = "tx") -> Stream:
    return Stream(name, FIELDS, Source("parquet", (("maxFilesPerTrigger", "1"), ("path", str(folder)))))


class Actions:
    """Does something after an epoch, by its number among the epochs with events."""

    def __init__(self, todo: dict[int, Any]) -> None:
        self.todo, self.seen = todo, 0

    def __call__(self, epoch: Epoch) -> None:
        if epoch.record.counts.get("*", {}).get("events"):
            self.seen += 1
            for act in self.todo.pop(self.seen, ()):
                act()


def expected(
    pond: Pond, queries: Sequence[Any], epochs: list[list[dict[str, Any]]], parameters: dict[str, Literal] | None = None
) -> dict[str, Any]:
    """The results of the naive twin, with the changes at the same places as in the log."""
    naive, changes = NaiveChanges(queries, parameters), {recorded.n: recorded.change for recorded in pond.history()}
    log = pond._lifetime.opened.truth.log
    for n in range(pond.manifest().n + 1):
        if n in changes:
            naive.change(changes[n])
        record = decode(log.read(n)).record
        if isinstance(record, EpochRecord):
            naive.epoch()
    return naive.rows(epochs, drained=True)


@pytest.mark.spark
def test_queries_are_added_altered_and_dropped_while_the_pond_runs(spark: SparkSession, tmp_path: Path) -> None:
    epochs = make_input(tmp_path / "in")
    actions = Actions({})
    with Pond(spark, tmp_path / "pond", instances=2, on_epoch=actions) as pond:
        pond.stream(stream(tmp_path / "in"))
        first = pond.add("spend", SPEND)
        actions.todo = {
            1: [lambda: pond.add("big", BIG), lambda: pond.add("again", SPEND)],
            2: [lambda: pond.add("wide", WIDE), lambda: pond.pause("again")],
            3: [lambda: pond.alter("big", BIG.replace("50", "20")), lambda: pond.resume("again")],
            5: [lambda: pond.drop("spend")],
            6: [lambda: pond.add("spend", SHORT)],
        }
        pond.run(drain=True)
        kinds = [type(recorded.change).__name__ for recorded in reversed(pond.history())]
        kinds.remove("End")  # of the replaced version of `big`, when its windows have closed
        assert kinds[:7] == ["Add", "Add", "Add", "Pause", "Alter", "Resume", "Drop"]
        for name, rows in expected(pond, [first], epochs).items():
            found = rows_of(pond.table(name))
            if name == "spend":  # the new one has a table of its own
                rows, found = rows[-len(found) :], found
            assert found
            assert_same_rows(rows, found, about=name)
        assert pond.history()[0].change.who
        with pytest.raises(ChangeRefused, match="no query 'nothing'"):
            pond.drop("nothing")
        with pytest.raises(ChangeRefused, match="other columns"):
            pond.alter("big", WIDE.replace("count(*) AS n, ", ""))
        assert pond.price_of("drop", "wide").freed == 0


@pytest.mark.spark
def test_a_query_over_a_join_with_a_table_comes_while_the_times_of_its_stream_are_known(
    spark: SparkSession, tmp_path: Path
) -> None:
    epochs = make_input(tmp_path / "in")
    pq.write_table(pa.table({"k": ["a", "b"]}), tmp_path / "names.parquet")
    counted = "SELECT k, window(ts, '10 seconds') AS w, count(*) AS n FROM {} GROUP BY ALL"
    united = "(SELECT k, ts FROM late UNION ALL SELECT k, ts FROM late WHERE v > 50)"
    sources = {"joined": "late JOIN names USING (k)", "united": united}
    sources["others"] = "late WHERE k NOT IN (SELECT k FROM names)"
    adds = [partial(lambda name: pond.add(name, counted.format(sources[name])), name) for name in sources]
    actions = Actions({3: adds})
    with Pond(spark, tmp_path / "pond", instances=2, on_epoch=actions) as pond:
        pond.stream(stream(tmp_path / "in"))
        pond.load(
            "CREATE TEMPORARY VIEW late AS SELECT * FROM STREAM tx WATERMARK ts DELAY OF INTERVAL 60 SECONDS;"
            f"CREATE TEMPORARY VIEW names USING parquet OPTIONS (path '{tmp_path}/names.parquet');"
        )
        pond.add("first", counted.format("late WHERE v > 90"))
        pond.run(drain=True)
        adds = [one.change for one in pond.history() if isinstance(one.change, Add)]
        tables = {name: rows_of(pond.table(name)) for name in sources}
    newest = max(row["ts"] for rows in epochs[:3] for row in rows)
    assert {one.stored.query.name: one.since_us for one in adds} == dict.fromkeys(sources, newest + 1)

    found = {
        name: {(row["k"], row["w"]["start"].timestamp() * SECOND): row["n"] for row in rows}
        for name, rows in tables.items()
    }

    def counts(times: Callable[[dict[str, Any]], int]) -> dict[tuple[str, int], int]:
        starts = Counter[tuple[str, int]]()
        for row in (row for rows in epochs for row in rows):
            starts[row["k"], row["ts"] - row["ts"] % (10 * SECOND)] += times(row)
        return {place: n for place, n in starts.items() if n and place[1] > newest}

    assert found["joined"] == counts(lambda row: row["k"] != "c")
    assert found["others"] == counts(lambda row: row["k"] == "c")
    assert found["united"] == counts(lambda row: 1 + (row["v"] > 50))


@pytest.mark.spark
def test_a_pond_at_its_end_is_neither_changed_nor_opened_again(spark: SparkSession, tmp_path: Path) -> None:
    make_input(tmp_path / "in", 1)
    pond = Pond(spark, tmp_path / "pond", instances=1)
    pond.stream(stream(tmp_path / "in"))
    pond.add("spend", SPEND)
    pond.open()
    records = pond.manifest().n
    requested: list[Callable[[], object]] = [
        lambda: pond.add("wide", WIDE), lambda: pond.price_of("alter", "spend", BIG), lambda: pond.alter("spend", BIG),
        lambda: pond.drop("spend"), lambda: pond.param("least", 1), lambda: pond.price_of_scale(2), pond.run,
    ]  # fmt: skip
    pond.end()
    for request in requested:
        with pytest.raises(NotServingError, match="no longer leads the pond"):
            request()
    with Pond(spark, tmp_path / "pond") as again:
        again.open()
        assert again.manifest().n == records + 1


@pytest.mark.spark
def test_a_sink_never_has_rows_of_a_query_that_had_the_name_before(spark: SparkSession, tmp_path: Path) -> None:
    make_input(tmp_path / "in", 4)
    with Pond(spark, tmp_path / "pond", instances=1) as pond:
        pond.stream(stream(tmp_path / "in"))
        pond.add("spend", SPEND)
        pond.add("stays", COUNT, sink=Sink("noop"))
        pond.run()
        assert len(pond.table("spend"))
        pond.drop("spend")
        pond.add("spend", SHORT, sink=Sink("json", str(tmp_path / "out")))
    make_input(tmp_path / "new", 8)
    for i in range(4, 8):
        (tmp_path / "new" / f"f{i}.parquet").rename(tmp_path / "in" / f"f{i}.parquet")
    with Pond(spark, tmp_path / "pond") as again:
        again.run(drain=True)
    parts = sorted((tmp_path / "out").glob("part-*"))
    windows = [json.loads(line)["w"] for part in parts for line in part.read_text().splitlines()]
    bounds = [[datetime.fromisoformat(w[end].replace("Z", "+00:00")) for end in ("start", "end")] for w in windows]
    assert {(end - start).total_seconds() for start, end in bounds} == {10}


@pytest.mark.spark
def test_a_new_version_of_a_function_is_loaded_without_a_restart(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    epochs = make_input(tmp_path / "in")
    (tmp_path / "rules_v1.py").write_text("def total(values):\n    return float(sum(values.to_pylist()))\n")
    (tmp_path / "rules_v2.py").write_text("def total(values):\n    return -float(sum(values.to_pylist()))\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    file = tmp_path / "functions.json"
    monkeypatch.setenv("MILLPOND_FUNCTIONS", str(file))

    def install(version: str) -> None:
        spark.sparkContext.addPyFile(str(tmp_path / f"rules_v{version}.py"))  # where the workers find it
        options = {"module": f"rules_v{version}:total", "kind": "holistic", "takes": ["bigint"], "returns": "double"}
        file.write_text(json.dumps({"total": options | {"version": version}}))

    text = SPEND.replace("sum(v) AS total", "total(v) AS total, sum(v) AS plain")
    install("1")
    actions = Actions({})
    with Pond(spark, tmp_path / "pond", instances=2, on_epoch=actions) as pond:
        pond.stream(stream(tmp_path / "in"))
        pond.load_functions()
        pond.add("own", text)
        actions.todo = {3: [lambda: install("2"), pond.load_functions, lambda: pond.alter("own", text)]}
        pond.run(drain=True)
        assert [one.label for one in pond.functions] == ["total@2"]
        change = pond.history()[-1].change
        assert isinstance(change, Alter) and isinstance(change.stored.query, Query)
        (called,) = change.stored.query.user_functions.values()
        assert (called.module, len(called.digest)) == ("rules_v2:total", 64)
        rows = rows_of(pond.table("own"))
    since = datetime.fromtimestamp(change.since_us / SECOND, timezone.utc)
    old = [row["w"]["start"].astimezone(timezone.utc) < since for row in rows]
    assert {*old} == {True, False} and len(epochs) < len(rows)
    signed = [row["plain"] * (1 if first else -1) for row, first in zip(rows, old, strict=True)]
    assert [row["total"] for row in rows] == signed


@pytest.mark.spark
def test_a_pond_has_more_instances_and_fewer_while_it_runs(spark: SparkSession, tmp_path: Path) -> None:
    epochs, counts, prices = make_input(tmp_path / "in"), set[int](), []
    actions = Actions({})
    with Pond(spark, tmp_path / "pond", instances=2, on_epoch=actions) as pond:
        pond.stream(stream(tmp_path / "in"))
        first = pond.add("spend", SPEND)
        actions.todo = {
            2: [lambda: prices.append(pond.price_of_scale(3)), lambda: pond.scale(3, who="ann")],
            4: [lambda: pond.add("big", BIG)],
            5: [lambda: pond.scale(1)],
        }
        pond.run(drain=True)
        for name, rows in expected(pond, [first], epochs).items():
            assert rows
            assert_same_rows(rows, rows_of(pond.table(name)), about=name)
        log = pond._lifetime.opened.truth.log  # type: ignore[union-attr]
        records = [decode(log.read(n)).record for n in range(pond.manifest().n + 1)]  # type: ignore[arg-type]
        counts = {len(record.receipts) for record in records if isinstance(record, EpochRecord)}
        scaled = [recorded for recorded in pond.history() if recorded.change.name == "instances"]
        assert [one.change.instances for one in scaled] == [1, 3] and scaled[1].change.who == "ann"  # type: ignore[union-attr]
        # a third of each of the two, and the price was that of the next record
        assert prices[0].moved.buckets == 341 and prices[0].moved.bytes > 0
        assert prices[0].effective_n == scaled[1].n + 1
        with pytest.raises(ChangeRefused, match="has 1 instances already"):
            pond.scale(1)
    assert counts == {1, 2, 3}
    with Pond(spark, tmp_path / "pond", instances=2) as again:  # as set when it was made; it goes on with one
        again.open()
        assert again.sharing() is not None


PROGRAM = Path(__file__).with_name("change_program.py")
FAULTS = {
    "handed": (12, ("read.handed:1", 2), ("backfill.portion:1", 2), ("backfill.staged:1", 2), ("change.recorded:2", 4),
               ("backfill.brought:1", 4)),
    "within": (10, ("read.again:1", 2), ("commit.before_append:3", 2), ("change.in_force:1", 5)),
    "copied": (13, ("change.before:2", 1), ("read.copied:1", 1), ("change.recorded:4", 5)),
}  # fmt: skip
"""Ponds by name: their number of files, and the faults that kill one driver after the other, each with the number of
changes that the log then has. Occurrences are counted by process."""


_spec = importlib.util.spec_from_file_location("change_program", PROGRAM)
assert _spec is not None and _spec.loader is not None
program = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(program)


def run_until_killed(spark: SparkSession, base: Path, fault: str) -> None:
    """Run the program in a process of its own, which the planned fault kills; its Java machine is that of `spark`."""
    (base / fault).mkdir()
    environment = os.environ | joining(spark) | {
        "MILLPOND_FAULT": f"{fault}:kill", "MILLPOND_FAULT_DIR": str(base / fault),
    }  # fmt: skip
    done = run_forked([PROGRAM, base], env=environment, timeout=150, text=True)
    assert done.returncode == -signal.SIGKILL, done.stdout + done.stderr
    running = spark._jsparkSession.sharedState().activeStreamingQueries()
    until(running.isEmpty, "Spark has ended the query of the killed process", 60)


def records(base: Path) -> list[Record]:
    """All records of the pond's log."""
    log = Log(LocalFolder(base / "pond" / "log"))
    manifest = load(log, Manifests(LocalFolder(base / "pond" / "manifest")))
    return [decode(log.read(n) or b"").record for n in range(manifest.n + 1)]


def expected_rows(base: Path, epochs: list[list[dict[str, Any]]]) -> dict[str, list[dict[str, Any]]]:
    """What the naive twin says of the pond's log: its changes, and its cut of the files into epochs."""
    claim, *others = records(base)
    assert isinstance(claim, ClaimRecord)
    first = from_json(claim.spec)
    naive, cut, reached = NaiveChanges(first.queries), [], -1
    for record in others:
        if isinstance(record, ChangeRecord) and (change := change_of(record.change)) is not None:
            naive.change(change)
        elif isinstance(record, EpochRecord) and not record.drained:
            end = json.loads(record.end["tx"])["logOffset"]
            cut.append([row for file in epochs[reached + 1 : end + 1] for row in file])
            reached = end
            naive.epoch()
    naive.epoch()
    return naive.rows(cut, drained=True)


def shown(folder: Path) -> list[dict[str, Any]]:
    rows = [json.loads(line) for part in sorted(folder.glob("part-*")) for line in part.read_text().splitlines()]
    for row in rows:
        at = datetime.fromisoformat(row["at"].replace("Z", "+00:00"))
        row["at"] = int(at.replace(tzinfo=at.tzinfo or timezone.utc).timestamp()) * SECOND
    return rows


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.parametrize("pond", FAULTS)
def test_drivers_that_are_killed_around_changes_leave_each_wholly_done_or_not_at_all(
    spark: SparkSession, tmp_path: Path, pond: str
) -> None:
    files, *faults = FAULTS[pond]
    epochs = make_input(tmp_path / "in", files)
    if pond == program.WITHIN:
        (tmp_path / program.WITHIN).touch()
    for fault, changes in faults:
        run_until_killed(spark, tmp_path, fault)
        assert sum(isinstance(record, ChangeRecord) for record in records(tmp_path)) == changes, fault
    done = program.answer(spark, str(tmp_path))
    assert done["ok"], done["error"]
    for name, rows in expected_rows(tmp_path, epochs).items():
        assert rows
        assert_same_rows(rows, shown(tmp_path / "out" / name), about=name)


@pytest.mark.spark
def test_a_live_parameter_changes_between_two_epochs(spark: SparkSession, tmp_path: Path) -> None:
    epochs = make_input(tmp_path / "in")
    actions = Actions({})
    limited = SPEND.replace("GROUP BY", "WHERE v >= :least GROUP BY").replace("ALL", "ALL HAVING sum(v) > :total")
    with Pond(spark, tmp_path / "pond", instances=2, on_epoch=actions) as pond:
        pond.stream(stream(tmp_path / "in"))
        with pytest.raises(ChangeRefused, match=":least has no value"):
            pond.add("limited", limited)
        pond.param("least", 20)
        pond.param("total", 100.0)
        pond.param("pattern", "a")
        with pytest.raises(UnsupportedQuery, match="is used where its value cannot change"):
            pond.add("like", SPEND.replace("GROUP BY", "WHERE k LIKE :pattern GROUP BY"))  # not as `k = 'a'`
        first = pond.add("limited", limited)
        actions.todo = {
            2: [lambda: pond.param("least", 70), lambda: pond.param("total", 30)],
            5: [lambda: pond.param("least", 0), lambda: pond.add("each", EACH)],
        }
        pond.run(drain=True)
        with pytest.raises(ChangeRefused, match="of type string, not of type bigint; it is used by each, limited"):
            pond.param("least", "many")
        start = {"least": literal(20, "bigint"), "total": literal(100.0, "double")}
        found = expected(pond, [first], epochs, start)
        for name, rows in found.items():
            assert rows
            assert_same_rows(rows, rows_of(pond.table(name)), about=name)
    with Pond(spark, tmp_path / "pond") as again:  # it goes on with the queries and values in force
        again.run(drain=True)
        assert [query.name for query in again.queries] == ["limited", "each"]
        assert again.params()["least"] == 0


TOP = "SELECT window(ts, '10 seconds') AS w, k, count(*) AS n FROM STREAM tx\
    WATERMARK ts DELAY OF INTERVAL 5 SECONDS GROUP BY ALL HAVING count(*) > 12"
AMONG = SPEND.replace("GROUP BY", "WHERE k IN (:names) AND v >= :least GROUP BY")


@pytest.mark.spark
def test_the_rows_of_one_query_feed_the_filter_of_another(spark: SparkSession, tmp_path: Path) -> None:
    epochs = make_input(tmp_path / "in")
    actions = Actions({1: [lambda: pond.feed("names", "top", "k")], 4: [lambda: pond.param("least", 40)]})
    with Pond(spark, tmp_path / "pond", instances=2, on_epoch=actions) as pond:
        pond.stream(stream(tmp_path / "in"))
        pond.param("names", ["a", "b", "c"])
        pond.param("least", 20)
        with pytest.raises(UnsupportedQuery, match=":names is a list, and is used outside"):
            pond.add("wrong", SPEND.replace("GROUP BY", "WHERE k > :names GROUP BY"))
        first = [pond.add("top", TOP), pond.add("among", AMONG)]
        pond.run()
        assert not pond.refused
        given = pond.params()
        assert given["least"] == 40 and 0 < len(given["names"]) < 3  # type: ignore[arg-type]
        pond.drain()
        start = {"names": constant_of("names", ["a", "b", "c"]), "least": literal(20, "bigint")}
        for name, rows in expected(pond, first, epochs, start).items():
            assert_same_rows(rows, rows_of(pond.table(name)), about=name)
        given = pond.params()
    with Pond(spark, tmp_path / "pond") as again:
        assert again.params() == given


@pytest.mark.spark
def test_a_query_begins_with_the_events_that_its_stream_retained(spark: SparkSession, tmp_path: Path) -> None:
    epochs, minute = make_input(tmp_path / "in"), 60 * SECOND
    actions = Actions({5: [lambda: pond.add("wide", WIDE, incomplete=True)]})
    with Pond(spark, tmp_path / "pond", instances=2, on_epoch=actions) as pond:
        pond.stream(replace(stream(tmp_path / "in"), retain=Retention(events_us=minute, columns=("k", "w"))))
        first = pond.add("spend", SHORT)
        pond.run(drain=True)
        added = next(one.change for one in pond.history() if isinstance(one.change, Add))
        newest = max(row["ts"] for rows in epochs[:5] for row in rows)
        assert added.recall_us == newest - minute
        rows = expected(pond, [first], epochs)["wide"]
        assert min(row["w"]["start"] for row in rows) < newest - 10 * SECOND
        assert_same_rows(rows, rows_of(pond.table("wide")), about="wide")


@pytest.mark.spark
def test_a_version_is_tried_compared_and_promoted(spark: SparkSession, tmp_path: Path) -> None:
    epochs = make_input(tmp_path / "in")
    actions, differences = Actions({}), []
    with Pond(spark, tmp_path / "pond", instances=2, on_epoch=actions) as pond:
        pond.stream(stream(tmp_path / "in"))
        first = pond.add("big", BIG)
        actions.todo = {
            1: [lambda: pond.shadow("big", BIG.replace("50", "90"))],
            4: [lambda: pond.promote("big")],
            6: [lambda: pond.rollback("big")],
        }
        pond.run()
        pond.settle()
        differences.append(pond.diff("big"))
        pond.run(drain=True)
        assert_same_rows(expected(pond, [first], epochs)["big"], rows_of(pond.table("big")), about="big")
        differences.append(pond.diff("big"))
        for _ in range(2):
            with pytest.raises(ChangeRefused, match="shadowed: it cannot be rolled back"):
                pond.rollback("big")
        pond.discard("big")
        with pytest.raises(ChangeRefused, match="'big' has no shadow"):
            pond.diff("big")
        kinds = [kind_name(recorded.change) for recorded in pond.history()]
        assert [kind for kind in kinds if kind != "end"] == ["discard", "rollback", "promote", "shadow"]
    # fewer events are above 90 than above 50, so the sums of most windows differ
    assert len(differences[0].only_query) > 3 and len(differences[0].only_shadow) > 0
    assert len(differences[1].only_query) > len(differences[0].only_query)


@pytest.mark.spark
def test_the_diff_of_two_versions_is_known_for_every_kind_of_sink(spark: SparkSession, tmp_path: Path) -> None:
    epochs, actions = make_input(tmp_path / "in"), Actions({})
    tried, small = BIG.replace("50", "55"), "SELECT k, v FROM STREAM tx WHERE v < 40"
    with Pond(spark, tmp_path / "pond", instances=2, on_epoch=actions) as pond:
        pond.stream(stream(tmp_path / "in"))
        for sink in ("memory", "noop", "served"):
            rows_go = Sink("memory" if sink == "memory" else "noop")
            pond.add(f"big_{sink}", BIG, sink=rows_go, serve=sink == "served")
            pond.add(f"small_{sink}", small, sink=rows_go)
        for name, text in {"old": BIG, "new": tried}.items():
            pond.add(name, text)
        versions = {"big": tried, "small": small.replace("40", "60")}
        names = [query.name for query in pond.queries if "_" in query.name]
        actions.todo = {2: [partial(pond.shadow, name, versions[name.partition("_")[0]]) for name in names]}
        pond.run(drain=True)
        pond.settle()
        differences, since = {name: pond.diff(name) for name in names}, shadow_since(pond, "big_noop")
        assert {shadow_since(pond, name) for name in names if name.startswith("big")} == {since}
        windows = {name: [row for row in rows_of(pond.table(name)) if row["w"]["start"] >= since]
                   for name in ("old", "new")}  # fmt: skip
        kept = {section.group for section in pond.manifest().sections.values() if section.kind == "rows"}
        wanted = {"big_memory", "small_memory", "big_served", "old", "new"}
        assert kept <= wanted, "what nobody reads is not written"
    rows = [row for rows in epochs[2:] for row in rows]
    naive = {name: Counter(map(numbers, rows)) for name, rows in windows.items()}
    starts = sorted(row["w"]["start"] for rows in windows.values() for row in rows)
    for name, found in differences.items():
        if name.startswith("small"):
            assert sorted(map(json.loads, found.only_shadow), key=repr) == sorted(
                ({"k": row["k"], "v": row["v"]} for row in rows if 40 <= row["v"] < 60), key=repr
            ), name  # fmt: skip
            assert found[1:3] == (sum(row["v"] < 40 for row in rows), []), name
            continue
        only = [Counter(map(numbers, map(json.loads, some))) for some in (found.only_query, found.only_shadow)]
        assert only == [naive["old"] - naive["new"], naive["new"] - naive["old"]], name
        assert found.first is not None and found.first.start_us == starts[0].timestamp() * SECOND, name
        totals = [{(start, key): total for start, key, _, total in side} for side in only]
        shared = totals[0].keys() & totals[1].keys()
        (column,) = (one for one in found.columns if one.column == "total")
        assert (found.pairs, column.rows) == (len(shared), sum(totals[0][key] != totals[1][key] for key in shared))
        assert found.same == (naive["old"] & naive["new"]).total() > 0 < len(found.only_query), name


def shadow_since(pond: Pond, name: str) -> datetime:
    """From which time on windows are answered by both versions."""
    made = next(one.change for one in pond.history() if isinstance(one.change, Shadow) and one.change.name == name)
    assert isinstance(made.since_us, int)
    return datetime.fromtimestamp(made.since_us / SECOND, timezone.utc)


def numbers(row: dict[str, Any]) -> tuple[Any, ...]:
    """A row of BIG, with a time that may be a text."""
    start = row["w"]["start"]
    return datetime.fromisoformat(start) if isinstance(start, str) else start, row["k"], row["n"], row["total"]


def read_by(pond: Pond, name: str) -> int:
    """How many events a query has read."""
    counts = pond.counts()
    return counts[name].whole.read if name in counts else 0


class Readings:
    """By which threads what is read was made, in order."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.threads = list[int]()
        patch.setattr(pond_readings, "read", self._noted)

    def _noted(self, *requested: Any, **how: Any) -> Any:
        self.threads.append(threading.get_ident())
        return read(*requested, **how)


@pytest.mark.spark
def test_what_a_change_makes_spark_read_is_analysed_before_epochs_wait_for_it(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_input(tmp_path / "in", 2)
    readings = Readings(monkeypatch)
    with Pond(spark, tmp_path / "pond", instances=2) as pond:
        pond.stream(stream(tmp_path / "in"))
        pond.add("spend", SPEND)
        with ThreadPoolExecutor(1) as running:
            run = running.submit(pond.run, once=False)
            until(lambda: read_by(pond, "spend") == 80, "the pond has come so far", 240)
            assert len(readings.threads) == 1
            pond.add("wide", WIDE)
            make_input(tmp_path / "new", 3)
            (tmp_path / "new" / "f2.parquet").rename(tmp_path / "in" / "f2.parquet")
            until(lambda: read_by(pond, "wide") == 40, "the pond has come so far", 240)
            pond.stop()
            run.result(60)
        assert readings.threads == [readings.threads[0], threading.get_ident()] != [readings.threads[0]] * 2


@pytest.mark.spark
def test_what_two_changes_make_spark_read_is_analysed_for_both(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    epochs, actions, readings = make_input(tmp_path / "in", 5), Actions({}), Readings(monkeypatch)
    with Pond(spark, tmp_path / "pond", instances=2, on_epoch=actions) as pond:
        pond.stream(stream(tmp_path / "in"))
        first = pond.add("count", COUNT)
        actions.todo = {2: [lambda: pond.add("wide", WIDE), lambda: pond.add("spend", SPEND)]}
        pond.run(drain=True)
        assert len(readings.threads) == 4  # at the begin, for each as if it came alone, for both
        for name, rows in expected(pond, [first], epochs).items():
            assert rows
            assert_same_rows(rows, rows_of(pond.table(name)), about=name)


@pytest.mark.spark
def test_queries_are_changed_from_another_thread_on_a_silent_pond(spark: SparkSession, tmp_path: Path) -> None:
    make_input(tmp_path / "in", 2)
    make_input(tmp_path / "more", 1)
    with Pond(spark, tmp_path / "pond", instances=2) as pond:
        pond.stream(stream(tmp_path / "in"))
        pond.stream(stream(tmp_path / "more", "more"))
        pond.add("spend", SPEND, serve=True)
        pond.start()
        until(lambda: read_by(pond, "spend") == 80, "the pond has read all events", 240)
        with pytest.raises(ChangeRefused, match="running already"):
            pond.run()
        for wrong in ((), (1, 2), ([],)):
            with pytest.raises(QueryTypeError, match="is not a key of spend"):
                pond.lookup("spend", *wrong)
        with pytest.raises(QueryTypeError, match="'out', which is not a Sink"):
            pond.add("wide", WIDE, sink="out")  # type: ignore[arg-type]
        with pytest.raises(QueryTypeError, match="has no name"):
            pond.add("", WIDE)
        pond.add("wide", WIDE)  # more columns
        pond.add("other", SPEND.replace("STREAM tx", "STREAM more"))  # a stream more
        pond.drop("spend")
        until(lambda: read_by(pond, "other") == 40, "the pond has read all events", 240)
        with pytest.raises(ChangeRefused, match="is running"):
            pond.add("wide", WIDE)
        assert pond.is_active() and repr(pond).endswith("2 queries over 2 streams, running>")
        pond.stop()
        assert pond.await_termination(60)
        assert [type(entry.change).__name__ for entry in pond.history()] == ["Drop", "Add", "Add"]
        assert {query.name for query in pond.queries} == {"wide", "other"}


@pytest.mark.spark
def test_a_pond_that_waits_for_input_continues_when_it_is_opened_again(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events, warmed = list[int](), list[DataFrame]()
    monkeypatch.setattr(WarmUp, "begin", lambda _self, frame: warmed.append(frame))

    def committed(done: Epoch) -> None:
        events.append(done.record.counts[WHOLE_POND].get("events", 0))

    for files in (1, 2):
        make_input(tmp_path / "in", files)
        with Pond(spark, tmp_path / "pond", on_epoch=committed) as pond:
            if files == 1:
                pond.stream(stream(tmp_path / "in"))
                pond.add("spend", SPEND)
            pond.start()
            assert pond.await_ready(120)
            until(lambda count=40 * files: sum(events) == count, "the pond has read the new file", 120)
            pond.stop()
            assert pond.await_termination(60)
    assert not warmed
    with Pond(spark, tmp_path / "pond") as pond:
        pond.start()
        assert pond.await_ready(120)
        pond.stop()
        assert pond.await_termination(60)
        assert pond._lifetime.opened is not None
        assert not pond._lifetime.opened.driver.await_ready(0.0), "the next run has not begun"
    assert len(warmed) == 1, "nothing was read"


@pytest.mark.spark
@pytest.mark.parametrize(
    ("end", "files", "at", "merged"),
    [("taken over", 6, 2, 10), ("taken over", 13, 10, 3), ("not copied", 6, 2, 10), ("refused", 6, 2, 10)],
)
def test_a_successor_that_reads_more_is_started_during_an_epoch(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: str, files: int, at: int, merged: int
) -> None:
    """One that cannot take over leaves nothing behind, and the change is made all the same, or refused.

    Spark merges its list of files every `merged` batches: before the change at epoch 10, and in the successor.
    """
    session = spark.newSession()
    session.conf.set("spark.sql.streaming.fileSource.log.compactInterval", merged)

    def no_room(_current: Path) -> Path:
        raise OSError("no room")

    if end == "not copied":
        monkeypatch.setattr("millpond.spark.driver.replace_query.copy_checkpoint", no_room)
    epochs, actions, requested = make_input(tmp_path / "in", files), Actions({}), list[Future[object]]()
    with Pond(session, tmp_path / "pond", instances=2, on_epoch=actions) as pond, ThreadPoolExecutor(1) as other:
        pond.stream(stream(tmp_path / "in"))
        first = pond.add("count", COUNT)

        def beside() -> None:
            assert pond._lifetime.opened is not None
            waiting = pond._lifetime.opened.driver._changes._waiting
            before = len(waiting)
            requested.append(other.submit(pond.add, "wide", WIDE))
            until(lambda: len(waiting) > before, "the pond has come so far", 240)

        actions.todo = {at: [*([lambda: pond.add("wide", COUNT)] if end == "refused" else []), beside]}
        pond.run(drain=True)
        failed = requested[0].exception(60)
        assert isinstance(failed, ChangeRefused) if end == "refused" else failed is None
        checkpoints = [folder.name.partition("-")[2] for folder in sorted((tmp_path / "pond" / "spark").iterdir())]
        assert checkpoints == (["", "000001"] if end == "taken over" else [""])
        lists = max((tmp_path / "pond" / "spark").iterdir()) / "sources" / "tx"
        compacted = {f"{n}.compact" for n in range(2 * merged - 1, files - 1, merged)}
        assert {file.name for file in lists.iterdir()} >= compacted
        assert (lists / "4").exists() is (at < 2 * merged)
        rows = expected(pond, [first], epochs)
        assert rows.keys() == {"count", "wide"}
        for name in rows:
            assert rows[name]
            assert_same_rows(rows[name], rows_of(pond.table(name)), about=name)
