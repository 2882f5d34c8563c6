"""The Hadoop folder, on HDFS and on Spark's local file system: one winner, bytes as written, errors that name it."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from kit.inputs.folder_suite import FolderSuite
from kit.servers.hdfs_server import HdfsServer
from millpond.errors import PlaceError
from millpond.spark.driver import hdfs_log
from millpond.spark.driver.hdfs_log import HadoopFolder


class TestHdfs(FolderSuite):
    """HDFS. Threads race as processes of several hosts do: nothing but the name node decides who wins."""

    races = 5

    @pytest.fixture
    def folder(
        self, spark: SparkSession, hdfs_server: HdfsServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> HadoopFolder:
        monkeypatch.setattr(hdfs_log, "_ONE_AT_A_TIME", nullcontext())
        return HadoopFolder(spark, f"{hdfs_server.uri}/{tmp_path.name}/log")


class TestLocalFiles(FolderSuite):
    """The local file system of Hadoop, in one process."""

    races = 5

    @pytest.fixture
    def folder(self, spark: SparkSession, tmp_path: Path) -> HadoopFolder:
        return HadoopFolder(spark, (tmp_path / "log").as_uri())


def test_a_folder_that_cannot_be_made_is_named(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(PlaceError, match=r"MP-PLACE.*file/log"):
        HadoopFolder(spark, (tmp_path / "file" / "log").as_uri())
