"""Reads the metadata of an Iceberg table: the data files that each snapshot adds.

A version is the id of a snapshot. `pyiceberg` finds the table in a catalog and reads its manifests. A table without a
catalog is a folder in which Spark's Hadoop catalog numbers the metadata files. Follows the specification of Iceberg
(https://iceberg.apache.org/spec/).
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date, timedelta
from functools import lru_cache
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyiceberg.catalog import load_catalog
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.io import FileIO
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.manifest import DataFile as IcebergFile
from pyiceberg.manifest import FileFormat, ManifestContent, ManifestEntry, ManifestEntryStatus
from pyiceberg.serializers import FromInputFile
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Operation, Snapshot, ancestors_of
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import DateType, TimestampType, TimestamptzType

from millpond.errors import GoneError, InputError, LateSchemaError, MillpondError, QueryTypeError, SourceError, one_of
from millpond.local_path import local_path
from millpond.runtime.inputs.tables.data_files import missing_file, read_file
from millpond.runtime.inputs.tables.table_log import DataFile, Position, TableLog

_END = 1 << 31
"""The number of a file after all files of any snapshot: the snapshot that will follow is not known yet."""

_NONE = -1
"""The version of a table without snapshots."""

_APPEND_CURE = (
    "A stream reads only rows that are appended. Set skipChangeCommits 'true' in its OPTIONS to leave out such "
    "snapshots, or begin a new pond, which reads the table as it is now."
)

_DELETES_CURE = (
    "Compact them with the procedures rewrite_data_files and rewrite_position_delete_files, and set the table property "
    "write.delete.mode to copy-on-write."
)

_MISSING_CURE = (
    "Its snapshot was expired before the stream had read it: begin a new pond, and keep snapshots for longer."
)


class IcebergLog(TableLog):
    """The snapshots of one table. `skips_changes`: those that delete or change rows are left out."""

    format = "Iceberg"

    def __init__(
        self, path: str | None = None, catalog: str | None = None, table: str | None = None, *,
        skips_changes: bool = False,
    ) -> None:  # fmt: skip
        """Open a table by its path, or by its name in a catalog that pyiceberg is configured for.

        Raises:
            QueryTypeError: the address is not complete. SourceError: there is no such table, or it cannot be read.
        """
        if (path is None) != (catalog is not None and table is not None) or (catalog is None) != (table is None):
            raise QueryTypeError(
                "A stream USING iceberg has a path, or a catalog and a table.",
                "Write OPTIONS (path '…'), or OPTIONS (catalog 'prod', table 'sales.orders').",
            )
        self._folder = None if path is None else local_path(path, "The Iceberg table")
        self._catalog, self._table, self._skips = catalog or "", table or "", skips_changes
        self.name = str(self._folder or f"{catalog}.{table}")
        self._read_metadata = lru_cache(1)(self._read_metadata_file)
        self._metadata, self._io = self._current()
        self.id = str(self._metadata.table_uuid)
        self._added_files, self._all_files = lru_cache(64)(self._append), lru_cache(1)(self._snapshot_files)

    def newest(self) -> int:
        metadata, io = self._current()
        self.check_id(str(metadata.table_uuid))
        self._metadata, self._io = metadata, io
        return _NONE if metadata.current_snapshot_id is None else metadata.current_snapshot_id

    def read(self, file: DataFile, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        names = list(file.ids or ())
        for name in schema.names:
            if name.lower() not in names:
                raise LateSchemaError(f"{name} is not a column of {self.name}.", one_of(name, names))
        try:
            source = self._io.new_input(file.path).open()
        except FileNotFoundError as error:
            raise missing_file(file, _MISSING_CURE) from error
        return read_file(file, schema, source, _MISSING_CURE)

    def _version(self, text: str) -> Position:
        newest = self.newest()
        known = [snapshot.snapshot_id for snapshot in self._lineage(newest)]
        if not text.isdecimal() or int(text) not in known:
            raise QueryTypeError(
                f"'startingVersion' is {text!r}, which is no snapshot of {self.name}.",
                f"Write the id of one (the newest is {newest}), or 'latest'.",
            )
        return Position(int(text))

    def _version_at(self, millis: float) -> Position | None:
        found = (one.snapshot_id for one in self._lineage(self.newest()) if one.timestamp_ms >= millis)
        version = next(found, None)
        return None if version is None else Position(version)

    def _started(self, at: Position, newest: int) -> Position | None:
        if at.file != _END:
            return at
        if at.version == newest:
            return None
        lineage = self._lineage(newest)
        ids = [snapshot.snapshot_id for snapshot in lineage]
        if at.version in ids:
            return Position(ids[ids.index(at.version) + 1])
        if self._metadata.snapshot_by_id(at.version) is not None:
            raise InputError(
                f"{self.name} was set back to a snapshot before {at.version}, which the stream has read.",
                "Begin a new pond, which reads the table as it is now.",
            )
        oldest = lineage[0]
        follows = at.version == _NONE and (oldest.sequence_number or 0) <= 1  # which it keeps if its parent is expired
        if not follows and oldest.parent_snapshot_id != at.version:
            raise self._gone(at.version)
        return Position(ids[0])

    def _finished(self, at: Position) -> Position:
        return Position(at.version, _END)

    def _before(self, end: Position) -> int:
        return end.version

    def _added(self, version: int) -> list[DataFile]:
        return self._added_files(version)

    def _all(self, version: int) -> list[DataFile]:
        return self._all_files(version)

    def _lineage(self, newest: int) -> list[Snapshot]:
        """The snapshots that lead to one, oldest first."""
        return [*ancestors_of(self._metadata.snapshot_by_id(newest), self._metadata)][::-1]

    def _append(self, version: int) -> list[DataFile]:
        """The files with new rows of a snapshot."""
        snapshot = self._snapshot(version)
        operation = None if snapshot.summary is None else snapshot.summary.operation
        if operation == Operation.REPLACE:
            return []
        if operation != Operation.APPEND:
            if self._skips:
                return []
            raise InputError(f"The snapshot {version} of {self.name} deletes or changes rows.", _APPEND_CURE)
        entries = self._entries(snapshot, version)
        added = (one for one in entries if one.status == ManifestEntryStatus.ADDED and one.snapshot_id == version)
        return [self._data_file(one.data_file) for one in added]

    def _snapshot_files(self, version: int) -> list[DataFile]:
        """All files of a snapshot, oldest first, because old rows mostly have early event times."""
        entries = self._entries(self._snapshot(version))
        return [self._data_file(one.data_file) for one in sorted(entries, key=lambda one: one.sequence_number or 0)]

    def _entries(self, snapshot: Snapshot, added_by: int | None = None) -> Iterator[ManifestEntry]:
        """The live data files of a snapshot; with `added_by`, at least those that this snapshot added."""
        for manifest in snapshot.manifests(self._io):
            if added_by not in (None, manifest.added_snapshot_id):
                continue
            entries = manifest.fetch_manifest_entry(self._io)
            if manifest.content == ManifestContent.DATA:
                yield from entries
            elif entries:
                raise InputError(
                    f"The snapshot {snapshot.snapshot_id} of {self.name} has delete files, which cannot be read.",
                    _DELETES_CURE,
                )

    def _data_file(self, file: IcebergFile) -> DataFile:
        if file.file_format != FileFormat.PARQUET:
            raise InputError(
                f"The data file {file.file_path} of {self.name} is {file.file_format.value}, which cannot be read.",
                "Set the table property write.format.default to parquet, and rewrite the files.",
            )
        schema, constants = self._metadata.schema(), dict[str, Any]()
        for place, field in enumerate(self._metadata.specs()[file.spec_id].fields):
            name = schema.find_column_name(field.source_id)
            if name is not None and isinstance(field.transform, IdentityTransform):
                constants[name] = _partition_value(schema.find_type(field.source_id), file.partition[place])
        ids = {field.name.lower(): field.field_id for field in schema.fields}
        return DataFile(file.file_path, file.file_size_in_bytes, constants, ids)

    def _snapshot(self, version: int) -> Snapshot:
        found = self._metadata.snapshot_by_id(version)
        if found is None:
            raise self._gone(version)
        return found

    def _current(self) -> tuple[TableMetadata, FileIO]:
        try:
            if self._folder is not None:
                return self._read_metadata(self._newest_file(self._folder)), PyArrowFileIO()
            table = load_catalog(self._catalog).load_table(self._table)
            return table.metadata, table.io
        except MillpondError:
            raise
        except NoSuchTableError as error:
            raise SourceError(f"The Iceberg table {self.name} does not exist.", "Correct its name.") from error
        except Exception as error:  # catalogs raise errors of many libraries
            raise SourceError(
                f"The Iceberg table {self.name} cannot be read: {' '.join(str(error).split())}.",
                "Check its address, and the configuration of the catalog in ~/.pyiceberg.yaml or the environment.",
            ) from error

    def _newest_file(self, folder: Path) -> Path:
        """The newest of the metadata files, which the Hadoop catalog numbers."""
        numbered = {}
        for file in (folder / "metadata").glob("v*.metadata.json"):
            number = file.name[1:].partition(".")[0]
            if number.isdecimal():
                numbered[int(number)] = file
        if not numbered:
            raise SourceError(
                f"{folder} is not an Iceberg table without a catalog: metadata/v1.metadata.json is missing.",
                "Check the path. For a table of a catalog, write OPTIONS (catalog '…', table '…').",
            )
        return numbered[max(numbered)]

    def _read_metadata_file(self, file: Path) -> TableMetadata:
        return FromInputFile.table_metadata(PyArrowFileIO().new_input(str(file)))

    def _gone(self, version: int) -> GoneError:
        return GoneError(
            f"The snapshot {version} of {self.name}, or the one after it, no longer exists.",
            "It was expired before the stream had read it: begin a new pond, and keep snapshots for longer "
            "(history.expire.max-snapshot-age-ms).",
        )


def _partition_value(kind: Any, value: Any) -> Any:
    """The value of an identity partition; manifests have dates and times as numbers since 1970."""
    if value is None or not isinstance(kind, (DateType, TimestampType, TimestamptzType)):
        return value
    if isinstance(kind, DateType):
        return value if isinstance(value, date) else date(1970, 1, 1) + timedelta(value)
    return str(IdentityTransform().to_human_string(kind, value))
