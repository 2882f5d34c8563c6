"""The daemon that forks Spark's workers: which zips are left out of the path."""

from __future__ import annotations

import os
import socket
import struct
import subprocess
import sys
from pathlib import Path

import pyspark

from kit.servers.servers import until
from millpond.spark.driver.worker_daemon import without_zips

HOME = Path(pyspark.__file__).parent
PACKED = [str(HOME / "python" / "lib" / "pyspark.zip"), str(HOME / "jars" / "spark-core_2.13-4.3.0.jar")]


def test_zips_of_the_installed_pyspark_are_left_out() -> None:
    rest = [path for path in sys.path if path]
    assert without_zips(["", *PACKED, *rest]) == ["", *rest]


def test_zips_of_another_spark_stay() -> None:
    other = ["/opt/spark/python/lib/pyspark.zip", "/opt/spark/jars/spark-core_2.13-4.3.1.jar"]
    rest = [path for path in sys.path if path]
    assert without_zips([*other, *rest]) == [*other, *rest]


def test_zips_stay_where_nothing_else_has_pyspark(tmp_path: Path) -> None:
    assert without_zips([str(tmp_path), *PACKED]) == [str(tmp_path), *PACKED]


def test_a_jvm_that_hangs_up_leaves_no_trace_on_the_terminal() -> None:
    daemon = subprocess.Popen(
        [sys.executable, "-m", "millpond.spark.driver.worker_daemon", "pyspark.worker"],
        env=os.environ | {"PYTHON_WORKER_FACTORY_SECRET": "secret", "SPARK_REUSE_WORKER": "1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert daemon.stdout is not None
    with socket.create_connection(("127.0.0.1", _number(daemon.stdout.read(4)))) as jvm:
        worker = _number(jvm.recv(4))
        jvm.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # closes with a reset
    until(lambda: not _runs(worker), "the worker has ended")
    _, printed = daemon.communicate(timeout=60)
    assert printed == b""


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def _number(data: bytes) -> int:
    (value,) = struct.unpack("!i", data)
    return int(value)
