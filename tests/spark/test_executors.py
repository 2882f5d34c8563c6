"""Which reason is reported when a cluster has no executor."""

from __future__ import annotations

from pathlib import Path

import pytest

from millpond.spark.session.executors import _wait, last_failure, silence
from millpond.spark.session.failures import explained

LOG = """Connecting to master spark://127.0.0.1:7077...
Executor added: app-1/0 on worker-1 (127.0.0.1:7078) with 1 core(s)
Executor updated: app-1/0 is now EXITED (Command exited with code 1)
Executor updated: app-1/1 is now RUNNING
Executor updated: app-1/1 is now FAILED (Error running executor: java.io.IOException: no such file)
"""


def test_the_last_failure_and_their_number_are_found(tmp_path: Path) -> None:
    log = tmp_path / "cluster.log"
    assert last_failure(log) is None
    log.write_text(LOG)
    assert last_failure(log) == "2 have failed; app-1/1: Error running executor: java.io.IOException: no such file"


def test_a_cluster_without_executors_is_reported_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "cluster.log"
    log.write_text(LOG)
    _wait(lambda: False, "spark://a:7077", log, 0.1)
    said = capsys.readouterr().err
    assert said.startswith("[MP-SPARK] No executor has registered with spark://a:7077") and "app-1/1" in said
    assert said.count("\n") == 1
    _wait(lambda: True, "spark://a:7077", log, 0.1)
    assert capsys.readouterr().err == ""


def test_without_a_reason_the_cluster_is_named() -> None:
    assert "free cores" in silence("yarn", 20, None)
    assert "kubectl logs" in silence("k8s://https://a:6443", 20, None)


def test_an_application_that_the_master_removed_is_reported_as_that() -> None:
    error = explained(RuntimeError("SparkException: Exiting due to error: Master removed our application: FAILED"))
    assert "The cluster ended this application" in str(error)


def test_a_path_whose_file_system_is_missing_is_refused_with_the_cure() -> None:
    text = "RuntimeException: java.lang.ClassNotFoundException: Class org.apache.hadoop.fs.s3a.S3AFileSystem"
    error = explained(RuntimeError(text))
    assert str(error).startswith("[MP-SOURCE]") and "S3AFileSystem is missing" in str(error)
    other = explained(RuntimeError('UnsupportedFileSystemException: No FileSystem for scheme "gs"'))
    assert str(other).startswith("[MP-SOURCE]") and "gs is missing" in str(other)
