"""Delta tables as streams: each appended row is read once, whatever the epochs, compactions and restarts."""

from __future__ import annotations

import json
import os
import random
import shutil
from datetime import date, datetime, timezone
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from kit.inputs.examples import seeds
from millpond.errors import GoneError, InputError, LateSchemaError, QueryTypeError, SourceError
from millpond.runtime.inputs.tables.data_files import DataFile, FileReader
from millpond.runtime.inputs.tables.delta_log import DeltaLog
from millpond.runtime.inputs.tables.table_log import FilePosition, Limit

SCHEMA = pa.schema([("v", pa.int64()), ("k", pa.string())])


def append(path: Path, *values: int) -> None:
    table = pa.table({"v": values, "k": [f"k {value % 3}" for value in values]})
    write_deltalake(str(path), table, mode="append", partition_by=["k"])


def batches_of(file: DataFile, schema: pa.Schema = SCHEMA) -> list[pa.RecordBatch]:
    return [*FileReader("t", "VACUUM").read(file, schema)]


def read(files: list[DataFile]) -> list[int]:
    batches = [batch for file in files for batch in batches_of(file)]
    assert all(row["k"] == f"k {row['v'] % 3}" for batch in batches for row in batch.to_pylist())
    return [value for batch in batches for value in batch.column(0).to_pylist()]


@pytest.mark.parametrize("seed", seeds(0, 3))
def test_each_row_is_read_once_by_random_epochs_between_appends_and_compactions(tmp_path: Path, seed: int) -> None:
    dice, path, count = random.Random(seed), tmp_path / "t", 0
    versions: list[list[int]] = []
    found: list[int] = []
    first: int | None = None
    log = position = None
    for step in range(14):
        if step and dice.random() < 0.3:
            DeltaTable(str(path)).optimize.compact()
        else:
            append(path, *range(count, count := count + dice.randint(1, 5)))
        if DeltaTable(str(path)).version() == len(versions):
            versions.append([*range(sum(map(len, versions)), count)])
        if dice.random() < 0.2:
            DeltaTable(str(path)).create_checkpoint()
        if log is None or position is None or dice.random() < 0.3:
            log = DeltaLog(str(path))
        if position is None and dice.random() < 0.5:
            first = dice.choice([None, dice.randrange(len(versions))])
            position = log.first({} if first is None else {"startingversion": str(first)})
        for _ in range(dice.randrange(3) if position is not None and step < 13 else 40):
            position = position or log.first({})
            limit = dice.choice([Limit(), Limit(files=dice.randint(1, 3)), Limit(bytes=dice.randint(1, 2000))])
            end = log.after(position, log.newest(), limit)
            files = [*log.files(position, end)]
            assert len(files) <= limit.files
            assert files == [*DeltaLog(str(path)).files(position, end)], "an epoch that runs again reads the same"
            found += read(files)
            position = end
    wanted = [value for version in versions[first or 0 :] for value in version]
    assert sorted(found) == wanted


def test_a_delete_is_an_error_or_left_out_and_a_snapshot_reads_what_is_left(tmp_path: Path) -> None:
    path = tmp_path / "t"
    append(path, 0, 1, 2)
    append(path, 3)
    DeltaTable(str(path)).delete("v = 1")
    append(path, 4)
    log = DeltaLog(str(path))
    with pytest.raises(InputError, match=r"Version 2 of .*/t deletes or changes rows.*skipChangeCommits"):
        log.after(FilePosition(0), log.newest(), Limit())
    skipping = DeltaLog(str(path), skips_changes=True)
    files = skipping.files(FilePosition(0), skipping.after(FilePosition(0), 3, Limit()))
    assert sorted(read([*files])) == [0, 1, 2, 3, 4]
    start = log.first({})
    end = log.after(start, log.newest(), Limit())
    assert (end, sorted(read([*log.files(start, end)]))) == (FilePosition(4), [0, 2, 3, 4])


def commit(path: Path, version: int, *actions: dict[str, object]) -> Path:
    file = path / "_delta_log" / f"{version:020}.json"
    file.write_text("\n".join(map(json.dumps, actions)))
    return file


def test_a_change_with_deletion_vectors_is_left_out_or_reported_as_a_change(tmp_path: Path) -> None:
    path = tmp_path / "t"
    append(path, 0)
    log, skipping = DeltaLog(str(path)), DeltaLog(str(path), skips_changes=True)
    add = {"path": "x", "size": 1, "partitionValues": {}, "dataChange": True, "deletionVector": {"cardinality": 1}}
    commit(path, 1, {"remove": {"path": "x", "dataChange": True}}, {"add": add})
    assert skipping.after(FilePosition(1), skipping.newest(), Limit()) == FilePosition(2)
    with pytest.raises(InputError, match=r"Version 1 of .* deletes or changes rows"):
        log.after(FilePosition(1), log.newest(), Limit())
    commit(path, 2, {"add": add})
    with pytest.raises(InputError, match=r"deletion vectors.*begin a new pond"):
        skipping.after(FilePosition(2), skipping.newest(), Limit())


def test_a_line_separator_in_data_is_no_end_of_a_line(tmp_path: Path) -> None:
    log = None
    for version, text in enumerate(("a", "\x85b\u2028c\x1cd")):
        write_deltalake(str(tmp_path), pa.table({"s": [text]}), mode="append")
        log = log or DeltaLog(str(tmp_path))
        [file] = log.files(FilePosition(version), log.after(FilePosition(version), log.newest(), Limit()))
        assert [batch.to_pydict() for batch in batches_of(file, pa.schema([("s", pa.string())]))] == [{"s": [text]}]


@pytest.mark.parametrize("count", [1, 2, 5])
def test_a_table_that_is_recreated_is_another_table(tmp_path: Path, count: int) -> None:
    path = tmp_path / "t"
    append(path, 0)
    append(path, 1)
    log = DeltaLog(str(path))
    assert len([*log.files(log.first({}), log.after(log.first({}), log.newest(), Limit()))]) == 2
    shutil.rmtree(path)
    for value in range(count):
        append(path, value)
    reads_after = lambda: log.after(FilePosition(0), 1, Limit()), lambda: log.after(log.first({}), 0, Limit())
    for reads in (log.newest, *reads_after):
        with pytest.raises(InputError, match=r"is another Delta table than the one.*Begin a new pond"):
            reads()
    assert DeltaLog(str(path)).newest() == count - 1


def test_a_log_that_was_cleaned_beyond_the_newest_version_read_is_opened_again(tmp_path: Path) -> None:
    append(tmp_path, 0)
    log = DeltaLog(str(tmp_path))
    append(tmp_path, 1)
    append(tmp_path, 2)
    DeltaTable(str(tmp_path)).create_checkpoint()
    for version in (0, 1):
        (tmp_path / "_delta_log" / f"{version:020}.json").unlink()
    assert log.newest() == 2


def test_a_commit_that_is_not_yet_complete_is_read_again(tmp_path: Path) -> None:
    append(tmp_path, 0)
    file = tmp_path / "_delta_log" / f"{1:020}.json"
    for text in ("", '{"add": {"pa'):
        log = DeltaLog(str(tmp_path))
        file.write_text(text)
        with pytest.raises(SourceError, match=r"Version 1 of .* is incomplete"):
            log.after(FilePosition(1), log.newest(), Limit())
        file.unlink()
    append(tmp_path, 1)
    assert log.after(FilePosition(1), log.newest(), Limit()) == FilePosition(2)


def test_files_of_a_snapshot_are_read_in_the_order_in_which_they_were_written(tmp_path: Path) -> None:
    path = tmp_path / "t"
    for value in range(0, 18, 3):  # of one partition, so that only names and times of files differ
        append(path, value)
    log = DeltaLog(str(path))
    whole = log.after(log.first({}), log.newest(), Limit())
    assert read([*log.files(log.first({}), whole)]) == [*range(0, 18, 3)]


def test_where_a_stream_begins(tmp_path: Path) -> None:
    path = tmp_path / "t"
    append(path, 0)
    append(path, 1)
    log, times = DeltaLog(str(path)), [one["timestamp"] for one in DeltaTable(str(path)).history()][::-1]
    os.utime(commit(path, 2, {"txn": {"appId": "a", "version": 1}}), (4_000_000_000,) * 2)  # without commitInfo
    assert log.first({"startingtimestamp": "2090-01-01"}) == FilePosition(2)
    (path / "_delta_log" / f"{2:020}.json").unlink()
    log = DeltaLog(str(path))
    latest = FilePosition(2)
    assert log.first({"startingversion": "LATEST"}) == latest == log.after(latest, log.newest(), Limit())
    assert log.first({"startingtimestamp": "2020-01-01"}) == FilePosition(0)
    when = f"{date.fromtimestamp(times[1] / 1000 + 10 * 86_400)}"
    both = {"startingversion": "1", "startingtimestamp": "2020-01-01"}
    for name, value in (("version", "3"), ("version", "x"), ("timestamp", when), ("timestamp", "soon"), ("", "")):
        options = {f"starting{name}": value} if name else both
        with pytest.raises(QueryTypeError):
            log.first(options)
    with pytest.raises(SourceError, match="cannot be read"):
        DeltaLog(str(tmp_path / "other"))


def test_a_cleaned_log_a_vacuumed_file_and_a_feature_are_named(tmp_path: Path) -> None:
    path = tmp_path / "t"
    append(path, 0)
    append(path, 1)
    DeltaTable(str(path)).create_checkpoint()
    log = DeltaLog(str(path))
    [file] = log.files(FilePosition(1), FilePosition(2))
    Path(file.path).unlink()
    with pytest.raises(GoneError, match="VACUUM"):
        read([file])
    (path / "_delta_log" / f"{0:020}.json").unlink()
    with pytest.raises(GoneError, match=r"Version 0 of .* no longer exists"):
        log.after(FilePosition(0), 1, Limit())
    (path / "_delta_log" / f"{2:020}.json").write_text(
        '{"metaData":{"id":"x","configuration":{"delta.columnMapping.mode":"name"}}}'
    )
    with pytest.raises(InputError, match="columnMapping"):
        log.after(FilePosition(2), log.newest(), Limit())


def test_values_keep_their_types_and_other_types_are_refused(tmp_path: Path) -> None:
    path = str(tmp_path / "1.parquet")
    pq.write_table(pa.table({"A": pa.array([1], pa.int32()), "s": pa.array(["x"], pa.large_string()),
        "d": pa.array([Decimal("1.50")], pa.decimal128(5, 2)), "n": [{"p": [1]}]}), path)  # fmt: skip
    nested = pa.struct([("p", pa.list_(pa.field("element", pa.int64())))])
    wide = pa.schema([("a", pa.int64()), ("S", pa.string()), ("d", pa.decimal128(9, 2)), ("n", nested),
        ("lacking", pa.date32()), ("day", pa.date32()), ("none", pa.int8())])  # fmt: skip
    file = DataFile(path, 1, {"day": "2024-02-29", "none": None})
    [batch] = batches_of(file, wide)
    assert batch.schema == wide
    assert [column[0].as_py() for column in batch.columns] == [
        1, "x", Decimal("1.50"), {"p": [1]}, None, date(2024, 2, 29), None
    ]  # fmt: skip
    for name, kind in (("a", pa.int16()), ("a", pa.string()), ("s", pa.int64()), ("d", pa.decimal128(9, 3)),
                       ("day", pa.int32()), ("n", pa.struct([("q", pa.list_(pa.int64()))]))):  # fmt: skip
        with pytest.raises(LateSchemaError, match=rf"{name} of .*1\.parquet is "):
            batches_of(file, pa.schema([(name, kind)]))


def test_times_as_spark_writes_them_and_partitions_of_times_are_read(tmp_path: Path) -> None:
    path, utc = str(tmp_path / "1.parquet"), pa.timestamp("us", "UTC")
    time = datetime(2026, 1, 1, 1, 2, 3, 456789, timezone.utc)
    times = pa.array([time.replace(tzinfo=None)], pa.timestamp("us"))
    table = pa.table({"t": times, "s": pa.StructArray.from_arrays([times], ["t"])})
    pq.write_table(table, path, use_deprecated_int96_timestamps=True, store_schema=False)
    written = {"spark": "2026-01-01 01:02:03.456789", "iso": "2026-01-01T01:02:03.456789Z", "snapshot": time}
    schema = pa.schema([("t", utc), ("s", pa.struct([("t", utc)])), *((name, utc) for name in written)])
    [batch] = batches_of(DataFile(path, 1, {**written, "bytes": "a", "bad": "soon"}), schema)
    assert batch.to_pylist() == [{"t": time, "s": {"t": time}, **dict.fromkeys(written, time)}]
    for name, kind, cure in (("bytes", pa.binary(), "Leave the column out"), ("bad", utc, "Correct")):
        with pytest.raises(LateSchemaError, match=rf"{name} of .* is .*{cure}"):
            batches_of(DataFile(path, 1, {"bytes": "a", "bad": "soon"}), pa.schema([(name, kind)]))
    pq.write_table(table, path, store_schema=False)
    with pytest.raises(LateSchemaError, match=r"t of .* is timestamp\[us\]"):
        batches_of(DataFile(path, 1, {}), schema)
