"""A pond that serves from Redis: the instances write, look-ups equal LMDB's, losses are repaired."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import time
from datetime import datetime, timezone
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from kit.programs.forked_program import run_forked
from kit.programs.shared_java import joining
from kit.servers.redis_servers import RedisCluster, RedisServer
from kit.servers.servers import until
from millpond import Pond
from millpond.control.wiring.bucket_map import placement_text, read_placement
from millpond.control.wiring.latest_rows import ServedRows
from millpond.control.wiring.pond_reader import look_up
from millpond.errors import ChangeRefused, ForeignPondError, PlaceError
from millpond.followers.view.view import Served
from millpond.placement.alignment import Placement
from millpond.placement.slots import buckets_of, hash_tags, slots_of
from millpond.service.server.log_reader import LogReader
from millpond.state.backends.redis import RedisStore

pytestmark = pytest.mark.slow

TEXT = """
CREATE TABLE tx (customer STRING, amount DOUBLE, ts TIMESTAMP)
USING json OPTIONS (path '{base}/in', maxFilesPerTrigger '1') TBLPROPERTIES ('max_ahead' = 'none');
CREATE STREAMING TABLE spend USING parquet TBLPROPERTIES ('path' = '{base}/{name}/spend', 'serve' = 'true') AS
SELECT customer, window(ts, '1 minute') AS w, sum(amount) AS total
FROM STREAM tx WATERMARK ts DELAY OF INTERVAL 10 SECONDS GROUP BY ALL;
CREATE STREAMING TABLE running USING parquet
TBLPROPERTIES ('path' = '{base}/{name}/running', 'serve' = 'true', 'emit' = 'update') AS
SELECT customer, window(ts, '1 minute') AS w, count(*) AS n
FROM STREAM tx WATERMARK ts DELAY OF INTERVAL 10 SECONDS GROUP BY ALL HAVING count(*) % 2 = 1;
"""
CUSTOMERS = [f"c{i}" for i in range(12)]


def write_file(folder: Path, number: int) -> None:
    dice = random.Random(number)
    lines = []
    for _ in range(80):
        second = 1_700_000_000 + 60 * number + dice.randint(0, 59)
        shown = datetime.fromtimestamp(second, timezone.utc).isoformat()
        lines.append(json.dumps({"customer": dice.choice(CUSTOMERS), "amount": dice.randint(0, 9) / 2, "ts": shown}))
    (folder / f"{number}.json").write_text("\n".join(lines))
    os.utime(folder / f"{number}.json", (1_700_000_000 + number,) * 2)


def served(pond: Pond) -> dict[tuple[str, str], Served]:
    return {(query, key): pond.lookup(query, key) for query in ("spend", "running") for key in CUSTOMERS}


def test_look_ups_equal_those_of_lmdb_and_lost_rows_come_back(
    spark: SparkSession, tmp_path: Path, redis_cluster: RedisCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    redis_cluster.flush()
    (tmp_path / "in").mkdir()

    def refuse(*_: object) -> None:
        raise AssertionError("rows pass through the driver")

    monkeypatch.setattr(RedisStore, "apply_many", refuse)  # the workers are processes of their own
    ponds = [Pond(spark, tmp_path / kind, instances=instances, store=store) for kind, store, instances in
             (("redis", redis_cluster.url, 4), ("lmdb", "lmdb", 3))]  # fmt: skip
    with ponds[0] as pond, ponds[1] as plain:
        for one in ponds:
            one.load(TEXT.format(base=tmp_path, name=one.address.name))

        def run(*files: int) -> None:
            for number in files:
                write_file(tmp_path / "in", number)
            for one in ponds:
                one.run()

        run(0, 1, 2)
        placed = pond.placement()
        assert [share.buckets for share in placed.shares] == [171, 171, 341, 341]
        homes = [f"127.0.0.1:{server.port}" for server in redis_cluster.servers]
        assert [share.home for share in placed.shares] == [homes[0], *homes]
        assert placed.aligned == plain.placement().aligned == placed.local_hit_rate == 1
        assert placed.requests >= 1024 and plain.placement().local_hit_rate is None
        expected = served(plain)
        assert served(pond) == expected
        assert sum(one.document is not None for one in expected.values()) > len(CUSTOMERS)
        with redis_cluster.servers[1].client() as client:
            assert client.dbsize() > 100
            client.flushall()
        run(3)
        assert served(pond) == served(plain)
        bucket = int(buckets_of(slots_of(pa.array(["c3"])), 1024)[0])
        place = f"mp:{{{hash_tags(1024)[bucket]}}}:rows:spend"
        shown = subprocess.run(
            ["redis-cli", "-c", "-p", str(redis_cluster.servers[0].port), "hget", place, '["c3"]'],
            capture_output=True, check=True,
        )  # fmt: skip
        assert json.loads(shown.stdout) == pond.lookup("spend", "c3").document
        status = next(one for one in pond.status() if one.name == "view")
        assert status.note is not None and "buckets that the store had lost were replayed" in status.note
        assert (status.behind, status.error) == (0, None)
    redis_cluster.flush()
    with Pond(spark, tmp_path / "redis", instances=4, store=redis_cluster.url) as again:
        again.load(TEXT.format(base=tmp_path, name="redis"))
        again.open()
        again.settle()
        assert again.placement()[:3] == placed[:3] == read_placement(tmp_path / "redis", redis_cluster.url)[:3]
        found = {key: one.document for key, one in served(again).items()}
        assert found == {key: one.document for key, one in served_of(spark, tmp_path).items()}
        ours = look_up(tmp_path / "redis", "spend", ["c3"], redis_cluster.url)
        assert ours == again.lookup("spend", "c3")
        table = pa.Table.from_batches(ServedRows(tmp_path / "redis", "spend", redis_cluster.url).read(0, 1024))
        totals = {row["customer"]: row["total"] for row in table.to_pylist()}
        documents = {key: one.document for (query, key), one in served(again).items() if query == "spend"}
        assert totals == {key: found["row"]["total"] for key, found in documents.items() if found is not None}
    with Pond(spark, tmp_path / "other", store=redis_cluster.url) as other:
        other.load(TEXT.format(base=tmp_path, name="other"))
        with pytest.raises(ForeignPondError, match=r"Give each pond a prefix of its own, `redis://…\?prefix=NAME`"):
            other.open()


def test_shards_and_instances_are_added_by_one_plan_and_the_next_driver_continues(
    spark: SparkSession, tmp_path: Path, redis_installed: None
) -> None:
    (tmp_path / "in").mkdir()
    with RedisCluster(tmp_path / "servers", 2, empty=1) as cluster:
        names = sorted(f"127.0.0.1:{server.port}" for server in cluster.servers)

        def opened(name: str, store: str) -> Pond:
            pond = Pond(spark, tmp_path / name, instances=2, store=store)
            pond.load(TEXT.format(base=tmp_path, name=name))
            return pond

        def rows(pond: Pond) -> dict[tuple[str, str], Any]:
            shown = {key: one.document for key, one in served(pond).items()}
            return {key: None if one is None else (one["window"], one["row"]) for key, one in shown.items()}

        def placed(pond: Pond) -> bool:
            return not any(status.name == "shards" for status in pond.status())

        def placed_after(pond: Pond, plain: Pond, file: int) -> Placement:
            write_file(tmp_path / "in", file)
            pond.run()
            until(lambda: placed(pond), "slots have moved")
            plain.run()
            assert rows(pond) == rows(plain)
            return pond.placement()

        write_file(tmp_path / "in", 0)
        with opened("pond", cluster.url) as pond:
            pond.run()
            until(lambda: pond.servers() == tuple(names), "the store was looked at")
            with pytest.raises(ChangeRefused, match="has 3 primaries, not 4"):
                pond.scale(3, shards=4)
            with pytest.raises(ChangeRefused, match="2 instances on 2 shards already"):
                pond.scale(shards=2)
            price = pond.price_of_scale(3, shards=3)
            assert ({*price.shards}, price.slots.buckets) == ({*names}, 341) and price.slots.bytes > 0
            assert price.moved.buckets in (341, 342)
            pond.scale(3, shards=3, why="a spike")
        with opened("pond", cluster.url) as pond, opened("plain", "lmdb") as plain:
            found = placed_after(pond, plain, 1)
            assert sorted(share.buckets for share in found.shares) == [341, 341, 342] and found.aligned == 1
            assert {share.home for share in found.shares} == {*names}
            pond.scale(2, shards=names[:2])
            found = placed_after(pond, plain, 2)
            assert {share.home for share in found.shares} == {*names[:2]} and found.aligned == 1
            with pytest.raises(ChangeRefused, match="No hash slots are moved"):
                pond.stop_resharding()
        kinds = [(one.kind, one.text) for one in LogReader(tmp_path / "pond").history(9)]
        assert [kind for kind, _ in kinds] == ["resharded", "scale", "resharded", "scale"]
        assert kinds[-1][1].startswith("a spike; shards: 127.0.0.1:")


PROGRAM = Path(__file__).with_name("shard_program.py")
KILLED = (
    ("", "", ""),
    ("3", "change.before:1", ""),
    ("3", "change.recorded:1", "scale"),
    ("", "slots.importing:1", "scale"),
    ("", "slots.migrating:1", "scale"),
    ("", "slots.keys_moved:1", "scale"),
    ("stop", "", "scale resharded"),
    ("3", "slots.taken:1", "scale resharded scale"),
    ("", "shards.portion:2", "scale resharded scale"),
    ("", "change.before:1", "scale resharded scale"),
    ("", "change.recorded:1", "scale resharded scale resharded"),
    ("2", "epoch.after_job:1", "scale resharded scale resharded scale"),
    ("", "batch.return:1", "scale resharded scale resharded scale"),
    ("", "", "scale resharded scale resharded scale resharded"),
)
"""What is requested of each driver, the fault that kills it, and the changes that the log then has at least."""
REPLACED = (11, 12)
"""Drivers that are killed in the epoch that moves state, before and after its record."""


def run_program(spark: SparkSession, base: Path, request: str, fault: str) -> None:
    """Run the program in a process of its own, in the Java machine of `spark`; the fault, if one is named, kills it."""
    faults = base / f"faults-{len(list(base.glob('faults-*')))}"
    faults.mkdir()
    planned = {"MILLPOND_FAULT": f"{fault}:kill", "MILLPOND_FAULT_DIR": str(faults)} if fault else {}
    done = run_forked([PROGRAM, base, *filter(None, [request])], env=os.environ | joining(spark) | planned, timeout=150,
                      text=True)  # fmt: skip
    assert done.returncode == (-signal.SIGKILL if fault else 0), (fault, done.stdout + done.stderr)
    until(spark._jsparkSession.sharedState().activeStreamingQueries().isEmpty, "Spark has ended the query", 60)


def test_drivers_that_are_killed_in_a_move_of_shards_leave_it_to_the_next_or_to_an_abort(
    spark: SparkSession, tmp_path: Path, redis_installed: None
) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "pond.sql").write_text(TEXT.format(base=tmp_path, name="pond"))
    with RedisCluster(tmp_path / "servers", 2, empty=1) as cluster:
        names = [f"127.0.0.1:{server.port}" for server in cluster.servers]
        (tmp_path / "store").write_text(cluster.url)
        for number, (request, fault, expected) in enumerate(KILLED):
            write_file(tmp_path / "in", number)
            run_program(spark, tmp_path, request, fault)
            changes = " ".join(reversed([one.kind for one in LogReader(tmp_path / "pond").history(9)]))
            # a thread moves slots while the next epoch moves state
            assert changes == expected or (number in REPLACED and changes == f"{expected} resharded"), fault
        with (
            Pond(spark, tmp_path / "pond", instances=2, store=cluster.url) as pond,
            Pond(spark, tmp_path / "lmdb", instances=2, store="lmdb") as plain,
        ):
            write_file(tmp_path / "in", len(KILLED))
            for one in (pond, plain):
                one.load(TEXT.format(base=tmp_path, name=one.address.name))
                one.run()
            found = pond.placement()
            assert [share.home for share in found.shares] == names[:2] and found.aligned == 1
            rows = [{key: one.document and one.document["row"] for key, one in served(of).items()}
                    for of in (pond, plain)]  # fmt: skip
        assert rows[0] == rows[1] and sum(map(bool, rows[0].values())) > len(CUSTOMERS)
        for query in ("spend", "running"):
            emitted, complete = (rows_in(spark, tmp_path, name, query) for name in ("pond", "lmdb"))
            assert len(emitted) > 10 and emitted == complete


CHAINED = """
CREATE STREAMING TABLE totals USING parquet TBLPROPERTIES ('path' = '{base}/{name}/totals') AS
SELECT window(w, '2 minutes') AS both, sum(total) AS total, count(*) AS customers FROM STREAM spend GROUP BY ALL;
"""


def test_hosts_that_do_not_see_the_folder_reach_its_files_through_the_store(
    spark: SparkSession, tmp_path: Path, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    redis_server.flush()
    (tmp_path / "in").mkdir()
    stores = {"carried": redis_server.url, "plain": "lmdb"}

    def opened(name: str) -> Pond:
        monkeypatch.setattr("millpond.control.wiring.file_transport.is_on_every_host", lambda *_: name == "plain")
        pond = Pond(spark, tmp_path / name, instances=2, store=stores[name], cache=tmp_path / "cache")
        pond.load((TEXT + CHAINED).format(base=tmp_path, name=name))
        pond.open()
        return pond

    def run(*files: int, drain: bool = False) -> None:
        for number in files:
            write_file(tmp_path / "in", number)
        for name in stores:
            with opened(name) as pond:
                pond.run(drain=drain)
                found[name] = {key: one.document and one.document["row"] for key, one in served(pond).items()}
                notes[name] = {one.name: one.note for one in pond.status()}

    found: dict[str, Any] = {}
    notes: dict[str, dict[str, str | None]] = {}
    run(0, 1)
    with redis_server.client() as client:
        names = [key.decode().partition(":file:")[2] for key in client.keys("*:file:*")]
        assert names and all((tmp_path / "carried" / name).is_file() for name in names)
        client.flushall()
        run(2, 3)
        with opened("carried") as pond:
            client.flushall()
            for kept in (tmp_path / "cache").glob("*/files"):
                shutil.rmtree(kept)
            write_file(tmp_path / "in", 4)
            pond.run()
            assert any("put back" in (one.note or "") for one in pond.status() if one.name == "files")
    run(5, drain=True)
    assert found["carried"] == found["plain"]
    assert "files" not in notes["plain"] and notes["carried"]["files"] is None
    for query in ("spend", "running", "totals"):
        tables = [pq.read_table(tmp_path / name / query).to_pylist() for name in stores]
        ours, expected = (sorted(repr(sorted(row.items(), key=str)) for row in table) for table in tables)
        assert len(ours) > (3 if query == "totals" else 10) and ours == expected
    monkeypatch.setattr("millpond.control.wiring.file_transport.is_on_every_host", lambda *_: False)
    with Pond(spark, tmp_path / "plain", instances=2) as pond, pytest.raises(PlaceError, match="or give it a store"):
        pond.load((TEXT + CHAINED).format(base=tmp_path, name="plain"))
        pond.open()


def test_owners_follow_slots_that_move(spark: SparkSession, tmp_path: Path, redis_installed: None) -> None:
    """While a pond is open slots move: the next epochs move their buckets, and no look-up differs from LMDB's."""
    (tmp_path / "in").mkdir()
    with RedisCluster(tmp_path / "servers") as cluster:
        with (
            Pond(spark, tmp_path / "redis", instances=3, store=cluster.url) as pond,
            Pond(spark, tmp_path / "lmdb", instances=3, store="lmdb") as plain,
        ):
            for one in (pond, plain):
                one.load(TEXT.format(base=tmp_path, name=one.address.name))
            files = count()

            def run() -> None:
                write_file(tmp_path / "in", next(files))
                pond.run()
                plain.run()

            run()
            assert pond.placement().since is None and pond.placement().aligned == 1
            gone = 70
            cluster.move(slots_of(pa.array(hash_tags(1024)[:gone])).tolist(), 0, 2, lambda: None)
            assert pond.placement().aligned == 1 - gone / 1024
            while pond.placement().since is None:
                run()
                time.sleep(1)
            run()
            placed = pond.placement()
            assert [share.buckets for share in placed.shares] == [342 - gone, 341, 341 + gone]
            assert placed.aligned == 1 and placed.since is not None
            assert f"{gone} of 1,024 buckets follow them" in placed.since.why
            # the map has a record of its own, so epochs have other numbers
            rows = [{key: one.document and one.document["row"] for key, one in served(of).items()}
                    for of in (pond, plain)]  # fmt: skip
            assert rows[0] == rows[1] and any(rows[0].values())
            for name in ("spend", "running"):
                assert rows_in(spark, tmp_path, "redis", name) == rows_in(spark, tmp_path, "lmdb", name)
            status = next(one for one in pond.status() if one.name == "view")
            assert f"the bucket map changed by record {placed.since.n}: {placed.since.why}" == status.note
        with Pond(spark, tmp_path / "redis", instances=3, store=cluster.url) as again:
            again.load(TEXT.format(base=tmp_path, name="redis"))
            write_file(tmp_path / "in", 99)
            again.run()
            assert again.placement()[:3] == placed[:3] == read_placement(tmp_path / "redis", cluster.url)[:3]
        assert f"owners since record {placed.since.n}, 20" in placement_text(placed)


def rows_in(spark: SparkSession, base: Path, name: str, query: str) -> list[str]:
    return sorted(map(str, spark.read.parquet(str(base / name / query)).drop("_epoch").collect()))


def served_of(spark: SparkSession, base: Path) -> dict[tuple[str, str], Served]:
    with Pond(spark, base / "lmdb", instances=3) as plain:
        plain.load(TEXT.format(base=base, name="lmdb"))
        plain.open()
        plain.settle()
        return served(plain)
