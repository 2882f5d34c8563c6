"""Spark's failures become one line with a code, from texts that Spark 4.3 wrote."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

import pytest
from py4j.protocol import Py4JError, Py4JNetworkError

from millpond.errors import CorruptError, SetupError, SparkError
from millpond.spark.session.failures import explained, jvm_gone
from millpond.spark.session.session import UNIX_SOCKETS, explaining, launch_conf

STREAM = "[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: "
TASK = "org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 0.0 failed 4 times: "

TEXTS = [
    (
        STREAM + TASK + "org.apache.spark.SparkException: [FAILED_READ_FILE.PARQUET_COLUMN_DATA_TYPE_MISMATCH] "
        "Encountered error while reading file file:///in/1.parquet. Data type mismatches when reading Parquet column "
        "[v]. Expected Spark type bigint, actual Parquet type BINARY. SQLSTATE: KD001\n\tat org.apache.spark.sql",
        "MP-LATE-SCHEMA", "file:///in/1.parquet does not fit its stream: Data type mismatches",
    ),
    (
        STREAM + TASK + "[FAILED_READ_FILE.CANNOT_READ_FILE_FOOTER] Encountered error while reading file "
        "file:///in/0.parquet. Could not read footer. SQLSTATE: KD001\n\tat x\nCaused by: java.lang.RuntimeException: "
        "file:/in/0.parquet is not a Parquet file. Expected magic number at tail\n\tat y",
        "MP-SOURCE", "file:///in/0.parquet cannot be read: RuntimeException: file:/in/0.parquet is not a Parquet file",
    ),
    (
        "[MALFORMED_RECORD_IN_PARSING.WITHOUT_SUGGESTION] Malformed records are detected in record parsing: [null].\n"
        "Parse Mode: FAILFAST. SQLSTATE: 22023",
        "MP-SOURCE", "Malformed records are detected",
    ),
    (TASK + "java.io.IOException: No space left on device\n\tat java.io", "MP-DISK", "No space left on device"),
    ("Error while instantiating 'SessionStateBuilder':\n\tat org\nCaused by: org.apache.spark.SparkException: "
     "[INVALID_CONF_VALUE.TYPE_MISMATCH] The value 'x' in the config \"spark.a.b\" is invalid. It should be a/an 'int'"
     " value. SQLSTATE: 22022", "MP-SETUP", "refuses a setting: The value 'x' in the config \"spark.a.b\" is invalid"),
    (": org.apache.spark.SparkException: [INVALID_SPARK_CONFIG.X] Invalid Spark config: spark.a is not allowed.\n",
     "MP-SETUP", "refuses a setting: Invalid Spark config: spark.a is not allowed."),
    (STREAM + "Caused by: java.io.IOException: File too large\n\tat java", "MP-DISK", "File too large"),
    (TASK + "java.lang.OutOfMemoryError: Java heap space\n\tat java", "MP-MEMORY", "Java heap space"),
    (TASK + "ExecutorLostFailure (executor 1 exited caused by one of the running tasks) Reason: Command exited with"
     " code 52", "MP-MEMORY", "code 52"),
    (
        "PythonException: Traceback (most recent call last):\n  File x\nnumpy._core._exceptions._ArrayMemoryError: "
        "Unable to allocate 9 GiB\n\tat org",
        "MP-MEMORY", "Unable to allocate 9 GiB",
    ),
    (TASK + "SparkException: Python worker exited unexpectedly (crashed)\n\tat x", "MP-SPARK", "worker died"),
    (
        STREAM + "Traceback (most recent call):\n  File a\nValueError: first\n\nDuring\nKeyError: 'last'\n\tat org",
        "MP-SPARK", "KeyError: 'last'",
    ),
    (TASK + "PythonException: T\n  File x\nModuleNotFoundError: No module named 'my'\n\tat x", "MP-SPARK", "module my"),
    (
        TASK + 'java.io.IOException: Cannot run program "./environment/bin/python": error=2, No such file or directory',
        "MP-SPARK", "An executor cannot start ./environment/bin/python",
    ),
    (
        TASK + "PySparkRuntimeError: [PYTHON_VERSION_MISMATCH] Python in worker has different version: 3.12 than that "
        "in driver: 3.11, PySpark cannot run with different minor versions.\nPlease check environment variables",
        "MP-SPARK", "An executor has Python 3.12, and the driver has 3.11.",
    ),
    (
        TASK + "AttributeError: Can't get attribute '_A' on <module 'millpond.spark.driver.tasks' from '/x'>\n\tat",
        "MP-SPARK", "another version of Millpond than the driver",
    ),
    (
        "An error occurred while calling None.org.apache.spark.api.java.JavaSparkContext.\n: org.apache.spark."
        "SparkException: spark.dynamicAllocation.schedulerBacklogTimeout must be > 0!\n\tat org.apache.spark",
        "MP-SPARK", "Spark failed: SparkException: spark.dynamicAllocation.schedulerBacklogTimeout must be > 0!",
    ),
    (
        STREAM + "java.util.concurrent.ExecutionException\nCaused by: org.apache.kafka.common.errors."
        "SaslAuthenticationException: Authentication failed due to invalid credentials with SASL PLAIN\n\tat x",
        "MP-SOURCE", "Kafka refuses its reader: SaslAuthenticationException: Authentication failed",
    ),
    (
        STREAM + "org.apache.kafka.common.errors.TopicAuthorizationException: Not authorized to access topics: [tx]",
        "MP-SOURCE", "Not authorized to access topics: [tx]",
    ),
    (
        STREAM + "org.apache.kafka.common.errors.TimeoutException: Timed out waiting for a node assignment. Call: a\n",
        "MP-SOURCE", "Kafka does not answer: Timed out waiting for a node assignment",
    ),
    (
        STREAM + "org.apache.kafka.common.errors.UnknownTopicOrPartitionException: This server does not host this",
        "MP-SOURCE", "Kafka does not have a topic",
    ),
    ("[MP-CORRUPT] Bad digest. Restore it.\n\tat org", "MP-CORRUPT", "Bad digest"),
    ("", "MP-SPARK", "says nothing"),
    ("x" * 10_000, "MP-SPARK", "x" * 100),
]  # fmt: skip


@pytest.mark.parametrize(("text", "code", "what"), TEXTS, ids=lambda value: value[:40])
def test_a_failure_of_spark_has_a_code_and_one_line(text: str, code: str, what: str) -> None:
    error = explained(Exception(text))
    assert error.code == code
    assert what in error.what
    assert "\n" not in str(error) and len(str(error)) < 600
    assert error.cure or code == "MP-CORRUPT"  # read back, a cure is part of the text


def test_an_error_of_ours_stays_as_it_is() -> None:
    error = CorruptError("Bad digest.", "Restore it.")
    assert explained(error) is error


class _Gone(Py4JError):
    def __str__(self) -> str:
        raise Py4JNetworkError("Answer from Java side is empty")


@pytest.mark.parametrize("error", [Py4JNetworkError("No answer"), ConnectionRefusedError(111, "refused"), _Gone()])
def test_a_jvm_that_has_ended_is_reported(error: Exception) -> None:
    assert "[MP-SPARK] The JVM of the driver has ended." in str(explained(error))


@pytest.mark.parametrize(("master", "memory", "what"), [
    ("nowhere", "1g", "no master 'nowhere'"),
    ("local[many]", "1g", "no master"),
    ("local[2]", "lots", "'lots' is no size"),
    ("local[2]", "64m", "too small for Spark"),
])  # fmt: skip
def test_a_launch_that_cannot_work_is_refused_before_java_starts(master: str, memory: str, what: str) -> None:
    with pytest.raises(SetupError, match=what) as caught:
        launch_conf(master, "test", memory, {})
    assert caught.value.cure


@pytest.mark.parametrize(("name", "value", "valid"), [
    ("spark.executor.memory", "oops", "4g"), ("spark.executor.memory", "0", "900MB"),
    ("spark.executor.cores", "many", "4"), ("spark.executor.instances", "-1", " 2 "), ("spark.cores.max", "0", "8"),
])  # fmt: skip
def test_a_wrong_setting_of_executors_is_refused_by_its_name(name: str, value: str, valid: str) -> None:
    with pytest.raises(SetupError, match=f"{name} is '{value}', ") as caught:
        launch_conf("spark://a:7077", "test", "900m", {name: value})
    assert caught.value.code == "MP-SETUP" and caught.value.cure in ("Write it as 900m or 2g.", "Use for example 4.")
    assert launch_conf("spark://a:7077", "test", "900m", {name: valid})[name] == valid


def test_dynamic_allocation_may_begin_without_executors() -> None:
    settings = {"spark.executor.instances": "0", "spark.dynamicAllocation.enabled": "True"}
    assert launch_conf("spark://a:7077", "test", "900m", settings)["spark.executor.instances"] == "0"
    with pytest.raises(SetupError, match=r"is '0', but must be a positive whole number\. Use for example 4\."):
        launch_conf("spark://a:7077", "test", "900m", settings | {"spark.dynamicAllocation.enabled": "false"})


@pytest.mark.parametrize(
    "master", ["local", "local[4]", "local[*]", "local[*,4]", "local[2, 3]", "yarn", "spark://h:7"]
)
def test_masters_that_spark_knows(master: str) -> None:
    assert launch_conf(master, "test", "900m", {})["spark.master"] == master


def test_the_python_of_a_cluster_is_what_its_settings_say() -> None:
    python = "spark.pyspark.python"
    assert launch_conf("local[2]", "test", "900m", {})[python] == sys.executable
    assert python not in launch_conf("yarn", "test", "900m", {})
    assert launch_conf("yarn", "test", "900m", {python: "./environment/bin/python"})[python].startswith("./")


def test_executors_learn_whether_instances_are_bound_to_numa_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "spark.executorEnv.MILLPOND_NUMA"
    monkeypatch.delenv("MILLPOND_NUMA", raising=False)
    assert name not in launch_conf("spark://a:7077", "test", "900m", {})
    monkeypatch.setenv("MILLPOND_NUMA", "off")
    assert launch_conf("spark://a:7077", "test", "900m", {})[name] == "off"


def test_sockets_are_for_one_machine_and_paths_that_every_system_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    enabled = f"{UNIX_SOCKETS}enabled"
    monkeypatch.setattr(tempfile, "tempdir", "/tmp")
    assert launch_conf("local[2]", "test", "900m", {})[enabled] == "true"
    assert launch_conf("local[2]", "test", "900m", {enabled: "false"})[enabled] == "false"
    assert enabled not in launch_conf("yarn", "test", "900m", {})
    deep = tmp_path / ("deep" * 20)
    deep.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(deep))
    assert enabled not in launch_conf("local[2]", "test", "900m", {})
    made = [path.name for path in deep.iterdir()]
    assert made == [f"millpond-{os.getuid()}"], "no folder of sockets is made that nobody uses"


def test_a_killed_jvm_is_reported_with_its_signal() -> None:
    killed = str(jvm_gone(-9))
    assert "[MP-SPARK] The JVM of the driver was ended by signal 9 (SIGKILL)." in killed and "memory is short" in killed
    assert "signal 15 (SIGTERM)" in str(jvm_gone(-15))
    assert "ended with status 1." in str(jvm_gone(1))
    assert "[MP-MEMORY]" in str(jvm_gone(52))


def test_a_connection_that_is_refused_between_two_calls_is_a_jvm_that_has_ended() -> None:
    with pytest.raises(SparkError, match="The JVM of the driver has ended"), explaining():
        raise ConnectionRefusedError(111, "Connection refused")
    with pytest.raises(CorruptError), explaining():
        raise CorruptError("Damaged.", "Restore it.")
    with pytest.raises(KeyError), explaining():
        raise KeyError("x")
