"""Iceberg tables as streams: each appended row is read once, whatever the epochs, compactions and expired snapshots."""

from __future__ import annotations

import json
import random
import shutil
import sys
from datetime import date, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import DateType, LongType, NestedField, StringType
from pyspark import cloudpickle

from kit.inputs.examples import seeds
from millpond.errors import GoneError, InputError, LateSchemaError, PlaceError, QueryTypeError, SourceError
from millpond.runtime.inputs.tables import iceberg_log
from millpond.runtime.inputs.tables.data_files import DataFile
from millpond.runtime.inputs.tables.iceberg_log import IcebergLog
from millpond.runtime.inputs.tables.table_log import WHOLE_TABLE, FilePosition, Limit

SCHEMA = pa.schema([("v", pa.int64()), ("k", pa.string())])
COLUMNS = Schema(NestedField(1, "v", LongType()), NestedField(2, "k", StringType()))


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Table:
    """The table `s.t` of the catalog `lake`, which is partitioned by `k`."""
    properties = {"uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": f"file://{tmp_path}/warehouse"}
    lake = {"lake": properties}  # pyiceberg reads its configuration when it is imported
    monkeypatch.setattr(iceberg_log, "load_catalog", lambda name: load_catalog(name, **lake.get(name, {})))
    catalog = iceberg_log.load_catalog("lake")
    catalog.create_namespace("s")
    by_k = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "k"))
    return catalog.create_table("s.t", COLUMNS, partition_spec=by_k)


def opened(**options: bool) -> IcebergLog:
    return IcebergLog(catalog="lake", table="s.t", **options)


def rows(*values: int) -> pa.Table:
    return pa.table({"v": values, "k": [f"k {value % 3}" for value in values]})


def metadata_file(table: Table) -> Path:
    return Path(table.metadata_location.removeprefix("file://"))


def compact(table: Table) -> None:
    """Write the rows of a table to other files, in a snapshot that changes no row; pyiceberg cannot make one."""
    table.overwrite(table.scan().to_arrow())
    file = metadata_file(table)
    metadata = json.loads(file.read_text())
    for snapshot in metadata["snapshots"][-2:]:  # one deletes the old files, one adds the new ones
        snapshot["summary"]["operation"] = "replace"
    file.write_text(json.dumps(metadata))
    table.refresh()


def read(log: IcebergLog, files: list[DataFile], schema: pa.Schema = SCHEMA) -> list[int]:
    found = [row for file in files for batch in log.reader().read(file, schema) for row in batch.to_pylist()]
    assert all(row["k"] == f"k {row['v'] % 3}" for row in found)
    return [row["v"] for row in found]


def epoch(log: IcebergLog, start: FilePosition, limit: Limit = Limit()) -> tuple[FilePosition, list[int]]:  # noqa: B008
    end = log.after(start, log.newest(), limit)
    return end, read(log, [*log.files(start, end)])


@pytest.mark.parametrize("seed", seeds(0, 3))
def test_each_row_is_read_once_by_random_epochs_between_appends_and_compactions(table: Table, seed: int) -> None:
    dice, count = random.Random(seed), 0
    appended: dict[int, list[int]] = {}
    found: list[int] = []
    log = position = None
    start = -1
    for step in range(12):
        if step and dice.random() < 0.3:
            compact(table)
        else:
            added = [*range(count, count := count + dice.randint(1, 5))]
            table.append(rows(*added))
            appended[table.metadata.snapshots[-1].snapshot_id] = added
        if log is None or position is None or dice.random() < 0.3:
            log = opened()
        if position is None and dice.random() < 0.5:
            start = dice.choice([-1, *appended])
            position = WHOLE_TABLE if start == -1 else log.first({"startingversion": str(start)})
        for _ in range(dice.randrange(3) if position is not None and step < 11 else 40):
            position = position or log.first({})
            limit = dice.choice([Limit(), Limit(files=dice.randint(1, 3)), Limit(bytes=dice.randint(1, 2000))])
            end = log.after(position, log.newest(), limit)
            files = [*log.files(position, end)]
            assert len(files) <= limit.files
            assert files == [*opened().files(position, end)], "an epoch that runs again reads the same"
            found += read(log, files)
            position = end
    skipped = [*appended].index(start) if start in appended else 0
    assert sorted(found) == [value for version in [*appended][skipped:] for value in appended[version]]


def test_a_delete_is_an_error_or_left_out(table: Table) -> None:
    table.append(rows(0, 1, 2))
    log = opened()
    end, found = epoch(log, WHOLE_TABLE)
    table.delete("v = 1")
    table.append(rows(4))
    with pytest.raises(InputError, match=r"The snapshot \d+ of lake\.s\.t deletes or changes rows.*skipChangeCommits"):
        log.after(end, log.newest(), Limit())
    assert sorted(found) == [0, 1, 2]
    assert epoch(opened(skips_changes=True), end)[1] == [4]
    assert sorted(epoch(opened(), WHOLE_TABLE)[1]) == [0, 2, 4]


def test_an_empty_table_has_nothing_to_read_until_rows_are_appended(table: Table) -> None:
    log = opened()
    latest = log.first({"startingversion": "latest"})
    for start in (WHOLE_TABLE, latest):
        assert log.after(start, log.newest(), Limit()) == start and not [*log.files(start, start)]
    table.append(rows(1))
    assert epoch(log, WHOLE_TABLE)[1] == epoch(log, latest)[1] == [1]


def test_where_a_stream_begins(table: Table) -> None:
    for value in range(3):
        table.append(rows(value))
    ids = [snapshot.snapshot_id for snapshot in table.metadata.snapshots]
    log, times = opened(), [snapshot.timestamp_ms for snapshot in table.metadata.snapshots]
    assert log.first({"startingversion": str(ids[1])}) == FilePosition(ids[1])
    assert epoch(log, log.first({"startingversion": "LATEST"}))[1] == []
    assert log.first({"startingtimestamp": "2020-01-01"}) == FilePosition(ids[0])
    assert log.first({"startingtimestamp": f"{datetime.utcfromtimestamp(times[2] / 1000)}"}) == FilePosition(ids[2])
    when = f"{date.fromtimestamp(times[2] / 1000) + timedelta(10)}"
    both = {"startingversion": str(ids[1]), "startingtimestamp": "2020-01-01"}
    for name, value in (("version", "3"), ("version", "x"), ("timestamp", when), ("timestamp", "soon"), ("", "")):
        with pytest.raises(QueryTypeError):
            log.first({f"starting{name}": value} if name else both)


def test_a_table_that_was_set_back_or_recreated_is_reported(table: Table) -> None:
    table.append(rows(0))
    table.append(rows(1))
    log = opened()
    end, _ = epoch(log, WHOLE_TABLE)
    first = table.metadata.snapshots[0].snapshot_id
    table.manage_snapshots().set_current_snapshot(snapshot_id=first).commit()
    with pytest.raises(InputError, match=r"was set back to a snapshot before \d+"):
        log.after(end, log.newest(), Limit())
    table.append(rows(2))
    with pytest.raises(InputError, match=r"was set back to a snapshot before \d+"):
        log.after(end, log.newest(), Limit())
    catalog = iceberg_log.load_catalog("lake")
    catalog.drop_table("s.t")
    catalog.create_table("s.t", COLUMNS)
    with pytest.raises(InputError, match=r"lake\.s\.t is another Iceberg table"):
        log.newest()


@pytest.mark.parametrize("keeps_parent", [True, False])
def test_expired_snapshots_are_gone_unless_they_were_read(table: Table, keeps_parent: bool) -> None:
    log, ends = opened(), [WHOLE_TABLE]
    started_empty = log.first({"startingversion": "latest"})
    for value in range(4):
        table.append(rows(value))
        ends.append(epoch(log, ends[-1])[0])
    metadata = json.loads(metadata_file(table).read_text())
    del metadata["snapshots"][:2]
    if not keeps_parent:  # as pyiceberg writes it
        del metadata["snapshots"][0]["parent-snapshot-id"]
    metadata_file(table).write_text(json.dumps(metadata))
    if keeps_parent:
        assert epoch(opened(), ends[2])[1] == [2, 3], "the second snapshot was read, so that the third one follows"
    for end in (ends[1], started_empty, *(() if keeps_parent else (ends[2],))):
        with pytest.raises(GoneError, match=r"The snapshot .* of lake\.s\.t, or the one after it, no longer exists"):
            opened().after(end, log.newest(), Limit())
    [file] = log.files(ends[3], ends[4])
    Path(file.path.removeprefix("file://")).unlink()
    with pytest.raises(GoneError, match="expired"):
        read(log, [file])


def test_a_column_is_found_by_its_number_when_it_was_renamed_or_added(table: Table) -> None:
    table.append(rows(1))
    with table.update_schema() as change:
        change.rename_column("v", "Value")
        change.add_column("n", LongType())
    table.append(pa.table({"Value": [4], "k": ["k 1"], "n": [7]}))
    log = opened()
    schema = pa.schema([("value", pa.int64()), ("n", pa.int64()), ("k", pa.string())])
    files = [*log.files(WHOLE_TABLE, log.after(WHOLE_TABLE, log.newest(), Limit()))]
    found = [row for file in files for batch in log.reader().read(file, schema) for row in batch.to_pylist()]
    assert found == [{"value": 1, "n": None, "k": "k 1"}, {"value": 4, "n": 7, "k": "k 1"}]
    with pytest.raises(LateSchemaError, match=r"v is not a column of lake\.s\.t.*Use one of value, k, n"):
        read(log, files)


def test_a_file_that_lacks_the_column_of_its_partition_has_its_value(table: Table, tmp_path: Path) -> None:
    catalog = iceberg_log.load_catalog("lake")
    day = Schema(NestedField(1, "v", LongType()), NestedField(2, "day", DateType()))
    spec = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "day"))
    daily = catalog.create_table("s.daily", day, partition_spec=spec)
    daily.append(pa.table({"v": [1], "day": [date(2024, 2, 29)]}))
    log = IcebergLog(catalog="lake", table="s.daily")
    [file] = log.files(WHOLE_TABLE, log.after(WHOLE_TABLE, log.newest(), Limit()))
    assert file.constants == {"day": date(2024, 2, 29)}
    pq.write_table(pa.table({"v": [1]}), file.path.removeprefix("file://"))  # as a migrated file of Hive
    [batch] = log.reader().read(file, pa.schema([("v", pa.int64()), ("day", pa.date32())]))
    assert batch.to_pylist() == [{"v": 1, "day": date(2024, 2, 29)}]


def test_a_table_without_a_catalog_is_read_by_its_path(table: Table, tmp_path: Path) -> None:
    folder = tmp_path / "by path"

    def publish(number: int) -> None:
        (folder / "metadata").mkdir(parents=True, exist_ok=True)
        shutil.copy(metadata_file(table), folder / "metadata" / f"v{number}.metadata.json")

    with pytest.raises(SourceError, match=r"metadata/v1\.metadata\.json is missing.*catalog"):
        IcebergLog(str(folder))
    table.append(rows(0))
    publish(9)
    log = IcebergLog(str(folder))
    end, found = epoch(log, WHOLE_TABLE)
    table.append(rows(1))
    publish(10)
    assert (found, epoch(log, end)[1]) == ([0], [1])


def test_an_address_that_is_incomplete_or_names_nothing_is_refused(table: Table, tmp_path: Path) -> None:
    for options in ({}, {"path": "x", "catalog": "lake", "table": "s.t"}, {"catalog": "lake"}, {"table": "s.t"}):
        with pytest.raises(QueryTypeError, match="a path, or a catalog and a table"):
            IcebergLog(**options)
    with pytest.raises(SourceError, match=r"lake\.s\.x does not exist"):
        IcebergLog(catalog="lake", table="s.x")
    with pytest.raises(SourceError, match=r"other\.s\.t cannot be read.*pyiceberg\.yaml"):
        IcebergLog(catalog="other", table="s.t")
    (tmp_path / "t/metadata").mkdir(parents=True)
    (tmp_path / "t/metadata/v1.metadata.json").write_text("{")
    with pytest.raises(SourceError, match="t cannot be read"):
        IcebergLog(str(tmp_path / "t"))


def test_an_epoch_that_runs_again_after_its_snapshots_expired_is_an_error(table: Table) -> None:
    table.append(rows(0))
    log = opened()
    start, _ = epoch(log, WHOLE_TABLE)
    table.append(rows(1))
    end, _ = epoch(log, start)
    table.append(rows(2))
    metadata = json.loads(metadata_file(table).read_text())
    del metadata["snapshots"][:2]
    metadata_file(table).write_text(json.dumps(metadata))
    with pytest.raises(GoneError, match=rf"The snapshot {end.version} of lake\.s\.t"):
        [*opened().files(start, end)]
    current = table.current_snapshot()
    assert current is not None
    Path(current.manifest_list.removeprefix("file://")).unlink()
    with pytest.raises(GoneError, match=rf"The snapshot {current.snapshot_id} of lake\.s\.t"):
        opened().after(end, current.snapshot_id, Limit())


def test_properties_of_a_table_choose_no_class_and_no_server(
    table: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "site/their_files.py").write_text("from pyiceberg.io.pyarrow import PyArrowFileIO as Theirs")
    monkeypatch.syspath_prepend(tmp_path / "site")
    table.append(rows(1))
    with table.transaction() as change:
        change.set_properties({"py-io-impl": "their_files.Theirs", "s3.endpoint": "http://127.0.0.1:9"})
    sys.modules.pop("their_files", None)
    log = opened()
    assert epoch(log, WHOLE_TABLE)[1] == [1]
    assert "their_files" not in sys.modules
    assert "s3.endpoint" not in log.reader().open.args[0].properties  # type: ignore[union-attr]


def test_a_table_without_a_catalog_has_local_files_only(table: Table, tmp_path: Path) -> None:
    table.append(rows(0))
    metadata = json.loads(metadata_file(table).read_text())
    metadata["snapshots"][0]["manifest-list"] = "s3://bucket/manifests.avro"
    (tmp_path / "t/metadata").mkdir(parents=True)
    (tmp_path / "t/metadata/v1.metadata.json").write_text(json.dumps(metadata))
    log = IcebergLog(str(tmp_path / "t"))
    with pytest.raises(PlaceError, match=r"s3://bucket/manifests\.avro, is not local"):
        log.after(WHOLE_TABLE, log.newest(), Limit())


def test_the_first_snapshot_of_a_table_of_version_1_is_not_known(table: Table) -> None:
    iceberg_log.load_catalog("lake").create_table("s.old", COLUMNS, properties={"format-version": "1"})
    with pytest.raises(QueryTypeError, match=r"lake\.s\.old is empty, and .* version 1"):
        IcebergLog(catalog="lake", table="s.old").first({"startingversion": "latest"})


def test_a_file_that_is_older_than_a_column_has_its_default(table: Table) -> None:
    table.append(rows(1))
    metadata = json.loads(metadata_file(table).read_text())
    fields = metadata["schemas"][0]["fields"]
    for place, (name, kind, value) in enumerate([("n", "long", 7), ("day", "date", "2024-02-29")], 8):
        fields.append({"id": place, "name": name, "type": kind, "required": False, "initial-default": value})
    metadata |= {"format-version": 3, "last-column-id": 9, "next-row-id": 1}
    metadata_file(table).write_text(json.dumps(metadata))
    log = opened()
    [file] = log.files(WHOLE_TABLE, log.after(WHOLE_TABLE, log.newest(), Limit()))
    schema = pa.schema([("v", pa.int64()), ("n", pa.int64()), ("day", pa.date32())])
    [batch] = log.reader().read(file, schema)
    assert batch.to_pylist() == [{"v": 1, "n": 7, "day": date(2024, 2, 29)}]


def test_readers_go_to_tasks(table: Table) -> None:
    table.append(rows(3))
    log = opened()
    files = [*log.files(WHOLE_TABLE, log.after(WHOLE_TABLE, log.newest(), Limit()))]
    reader = cloudpickle.loads(cloudpickle.dumps(log.reader()))
    assert [row["v"] for file in files for batch in reader.read(file, SCHEMA) for row in batch.to_pylist()] == [3]
