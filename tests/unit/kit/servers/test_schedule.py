"""Test files that share a server are run by one process, and those that share a session of Spark by two."""

from __future__ import annotations

from pathlib import Path

from kit.servers.schedule import _LONG, ended_server, next_unit, unit_of_work

ROOT = Path(__file__).parents[4]
FILES = {
    "tests/services/test_kafka_sink.py": "kafka",
    "tests/spark/test_kafka.py": "kafka",
    "tests/services/test_hdfs_folder.py": "hdfs",
    "tests/services/test_remote_pond.py": "hdfs",
    "tests/services/test_s3_truth.py": "strict_s3",
    "tests/spark/test_joins.py": "tests/spark/test_joins.py",
    "src/millpond/tokens.py": "src/millpond/tokens.py",
}


def test_files_that_share_a_server_are_one_unit_of_work() -> None:
    assert {file: unit_of_work(ROOT, f"{file}::test_one[a::b]") for file in FILES} == FILES


def test_a_server_is_not_used_after_the_last_file_of_its_unit() -> None:
    *kafka, hdfs, _, _, joins, _ = [f"{file}::test_one" for file in FILES]
    assert ended_server(ROOT, kafka[1], kafka[0]) is None
    assert {ended_server(ROOT, kafka[1], following) for following in (hdfs, joins)} == {"kafka"}
    assert ended_server(ROOT, joins, kafka[0]) is None


def test_files_with_a_session_of_spark_go_to_other_processes_than_those_without() -> None:
    units = ["tests/unit/test_errors.py", "tests/spark/test_joins.py", "tests/unit/test_docs.py", "strict_s3"]
    given = []
    for session in (False, True, True, True):
        given.append(next_unit(ROOT, units, session))
        units.remove(given[-1])
    assert given == ["tests/unit/test_errors.py", "tests/spark/test_joins.py", "strict_s3", "tests/unit/test_docs.py"]


def test_long_units_come_first() -> None:
    units = ["tests/spark/test_joins.py", "kafka", "tests/spark/test_steps.py", "tests/spark/test_restart.py"]
    assert [next_unit(ROOT, units, session) for session in (True, False)] == ["kafka", "tests/spark/test_restart.py"]
    assert all((ROOT / unit).is_file() for unit in _LONG if "/" in unit)
