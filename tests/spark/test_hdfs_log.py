"""The Hadoop folder, on Spark's local file system: one winner, bytes as written, errors that name it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from millpond.errors import PlaceError
from millpond.log.check_create_if_absent import check_create_if_absent
from millpond.log.port import Log, Lost, Won
from millpond.spark.driver.hdfs_log import HadoopFolder


def test_a_record_is_created_once_and_read_back_byte_for_byte(spark: SparkSession, tmp_path: Path) -> None:
    log = Log(HadoopFolder(spark, (tmp_path / "log").as_uri()))
    data = bytes(range(256)) * 33
    assert log.last() is None
    assert log.read(0) is None
    assert log.append(0, data) == Won()
    assert log.append(0, b"other") == Lost(data)
    assert log.append(1, b"") == Won()
    assert (log.read(0), log.read(1), log.last()) == (data, b"", 1)


def test_the_hint_is_replaced(spark: SparkSession, tmp_path: Path) -> None:
    folder = HadoopFolder(spark, (tmp_path / "log").as_uri())
    log = Log(folder)
    for n in range(3):
        log.append(n, b"record %d" % n)
        log.write_hint(n)
    assert folder.read("_last") == b"2"
    assert log.last() == 2
    folder.remove("_last")
    assert log.last() == 2


def test_of_many_threads_one_wins(spark: SparkSession, tmp_path: Path) -> None:
    log = Log(HadoopFolder(spark, (tmp_path / "log").as_uri()))
    bids = [b"bid %d" % bidder for bidder in range(4)]
    with ThreadPoolExecutor(4) as pool:
        for n in range(10):
            replies = list(pool.map(lambda bid, n=n: log.append(n, bid), bids))
            winners = [bid for bid, reply in zip(bids, replies, strict=True) if reply == Won()]
            assert len(winners) == 1
            assert all(reply in (Won(), Lost(winners[0])) for reply in replies)


def test_the_race_test_passes_and_leaves_nothing(spark: SparkSession, tmp_path: Path) -> None:
    folder = HadoopFolder(spark, (tmp_path / "log").as_uri())
    check_create_if_absent(folder, "token")
    assert folder.names() == []


def test_a_folder_that_cannot_be_made_is_named(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(PlaceError, match=r"MP-PLACE.*file/log"):
        HadoopFolder(spark, (tmp_path / "file" / "log").as_uri())
