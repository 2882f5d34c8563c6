"""Checkpoints in plain files: what the jar holds, and what is in them. As a program, this makes the jar anew."""

from __future__ import annotations

import io
import stat
import zipfile
from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from millpond.spark.driver_classes.loading import JAR, SOURCES
from millpond.spark.session import plain_checkpoints
from millpond.spark.session.plain_checkpoints import BY_SPARK, NAME, checkpoint_manager
from millpond.spark.session.session import reading_session, spark_session


def compiled(spark: SparkSession) -> dict[str, bytes]:
    """The classes of the sources, by the path of their file."""
    jvm: Any = spark._jvm
    found: dict[str, bytes] = {}
    for source in SOURCES:
        compiler = jvm.org.codehaus.janino.SimpleCompiler()
        compiler.setParentClassLoader(jvm.Thread.currentThread().getContextClassLoader())
        compiler.cook(JAR.with_name(f"{source}.java").read_text(encoding="utf-8"))
        found |= {entry.getKey(): bytes(entry.getValue()) for entry in compiler.getBytecodes().entrySet()}
    return {f"{name.replace('.', '/')}.class": code for name, code in sorted(found.items())}


def packed(files: dict[str, bytes]) -> bytes:
    """A jar of some files, the same whenever it is made."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as jar:
        for name, data in files.items():
            jar.writestr(zipfile.ZipInfo(name), data)
    return made.getvalue()


def test_the_jar_is_what_the_compiler_makes_of_the_source(spark: SparkSession) -> None:
    assert JAR.read_bytes() == packed(compiled(spark)), f"run `python {Path(__file__).name}` to make it anew"


def test_a_checkpoint_is_plain_files_that_no_process_touched(spark: SparkSession, tmp_path: Path) -> None:
    ours = reading_session(spark)
    assert ours.conf.get("spark.sql.streaming.checkpointFileManagerClass") == NAME
    ours.conf.set("fs.permissions.umask-mode", "077")  # of Hadoop: `chmod` would follow it
    ours.range(5).coalesce(1).write.parquet(str(tmp_path / "in"))
    reader = ours.readStream.schema("id long").format("parquet").name("numbers")
    writer = reader.load(str(tmp_path / "in")).writeStream.foreachBatch(lambda rows, _number: rows.count())
    query = writer.option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True).start()
    assert query.awaitTermination(60)
    files = {str(file.relative_to(tmp_path / "c")) for file in (tmp_path / "c").rglob("*") if file.is_file()}
    assert {"metadata", "offsets/0", "commits/0", "sources/numbers/0"} <= files
    batch = {name for name in files if "metadata" not in name}  # which Spark's default manager writes, once
    assert not [name for name in batch if name.endswith(".crc")]
    (tmp_path / "made").touch()
    modes = {stat.S_IMODE((tmp_path / "c" / name).stat().st_mode) for name in batch}
    assert modes == {stat.S_IMODE((tmp_path / "made").stat().st_mode)} and modes != {0o600}


def test_spark_reads_what_it_has_written_and_it_what_spark_has(spark: SparkSession, tmp_path: Path) -> None:
    counts: list[int] = []
    for turn, name in enumerate((BY_SPARK, NAME, BY_SPARK, NAME)):
        ours = reading_session(spark)
        ours.conf.set("spark.sql.streaming.checkpointFileManagerClass", name)
        ours.range(turn + 1).coalesce(1).write.mode("append").parquet(str(tmp_path / "in"))
        reader = ours.readStream.schema("id long").format("parquet").name("numbers")
        writer = reader.load(str(tmp_path / "in")).writeStream.foreachBatch(lambda rows, _: counts.append(rows.count()))
        query = writer.option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True).start()
        assert query.awaitTermination(60)
    assert counts == [1, 2, 3, 4]


def test_what_is_there_is_not_written_over(spark: SparkSession, tmp_path: Path) -> None:
    """Two drivers with one checkpoint: the second gets an error, as from Spark's own manager."""
    checkpoint_manager(spark)
    jvm: Any = spark._jvm
    loader = jvm.Thread.currentThread().getContextClassLoader()
    path = jvm.org.apache.hadoop.fs.Path(str(tmp_path / "c"))
    types = spark.sparkContext._gateway.new_array(jvm.Class, 2)
    types[0], types[1] = path.getClass(), jvm.Class.forName("org.apache.hadoop.conf.Configuration")
    given = spark.sparkContext._gateway.new_array(jvm.Object, 2)
    given[0], given[1] = path, spark._jsc.hadoopConfiguration()
    manager = loader.loadClass(NAME).getConstructor(types).newInstance(given)
    file = jvm.org.apache.hadoop.fs.Path(str(tmp_path / "c" / "0"))
    manager.mkdirs(path)
    for text, overwrites in ((b"first", False), (b"second", True)):
        stream = manager.createAtomic(file, overwrites)
        stream.write(text)
        stream.close()
        assert (tmp_path / "c" / "0").read_bytes() == text
    stream = manager.createAtomic(file, False)
    stream.write(b"third")
    with pytest.raises(Py4JJavaError, match="AlreadyExists"):
        stream.close()
    assert (tmp_path / "c" / "0").read_bytes() == b"second"
    assert manager.isLocal()


def test_where_it_cannot_be_loaded_checkpoints_are_those_of_spark(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plain_checkpoints, "NAME", "millpond.Other")
    name = checkpoint_manager(spark)
    jvm: Any = spark._jvm
    assert jvm.Class.forName(name).getSimpleName() == "FileSystemBasedCheckpointFileManager"


if __name__ == "__main__":
    JAR.write_bytes(packed(compiled(spark_session("local[1]"))))
