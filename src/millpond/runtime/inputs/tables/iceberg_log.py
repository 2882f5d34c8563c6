"""Reads the metadata of an Iceberg table: the data files that each snapshot adds.

A version is the id of a snapshot. `pyiceberg` finds the table in a catalog and reads its manifests. A table without a
catalog is a folder in which Spark's Hadoop catalog numbers the metadata files. Follows the specification of Iceberg
(https://iceberg.apache.org/spec/).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import date, timedelta
from functools import cache, lru_cache, partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.io import PY_IO_IMPL, FileIO, load_file_io
from pyiceberg.io.pyarrow import PyArrowFile, PyArrowFileIO
from pyiceberg.manifest import DataFile as IcebergFile
from pyiceberg.manifest import FileFormat, ManifestContent, ManifestEntry, ManifestEntryStatus
from pyiceberg.serializers import FromInputFile
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Operation, Snapshot
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import DateType, IcebergType, TimestampType, TimestamptzType

from millpond.errors import GoneError, InputError, MillpondError, QueryTypeError, SourceError
from millpond.local_path import local_path
from millpond.runtime.inputs.tables.data_files import DataFile, FileReader
from millpond.runtime.inputs.tables.table_log import FilePosition, TableLog

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


T = TypeVar("T")


class _Lineage(NamedTuple):
    """The snapshots that lead to one, oldest first, and the position of each by its id."""

    snapshots: list[Snapshot]
    positions: dict[int, int]


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
        super().__init__()
        self._folder = None if path is None else local_path(path, "The Iceberg table")
        self._table, self._skips = table or "", skips_changes
        self._catalog = cache(partial(_opened_catalog, catalog or ""))
        self.name = str(self._folder or f"{catalog}.{table}")
        self._read_metadata = lru_cache(1)(self._read_metadata_file)
        self._lineage = lru_cache(2)(self._lineage_of)
        self._set_metadata(*self._current())
        self.id = str(self._metadata.table_uuid)

    def newest(self) -> int:
        metadata, io = self._current()
        self.check_id(str(metadata.table_uuid))
        self._set_metadata(metadata, io)
        return _NONE if metadata.current_snapshot_id is None else metadata.current_snapshot_id

    def reader(self) -> FileReader:
        fields = self._metadata.schema().fields
        ids = {field.name.lower(): field.field_id for field in fields}
        defaults = {field.name: _constant(field.field_type, field.initial_default) for field in fields}
        return FileReader(self.name, _MISSING_CURE, partial(_open_file, self._io), ids, defaults)

    def first(self, options: Mapping[str, str]) -> FilePosition:
        position = super().first(options)
        if position == FilePosition(_NONE, _END) and self._metadata.format_version == 1:
            raise QueryTypeError(
                f"{self.name} is empty, and snapshots of format version 1 do not show whether it was the first that "
                "was appended.",
                "Set the table property format-version to 2, or leave out startingVersion.",
            )
        return position

    def _version(self, text: str) -> FilePosition:
        newest = self.newest()
        if not text.isdecimal() or int(text) not in self._lineage(newest).positions:
            raise QueryTypeError(
                f"'startingVersion' is {text!r}, which is no snapshot of {self.name}.",
                f"Write the id of one (the newest is {newest}), or 'latest'.",
            )
        return FilePosition(int(text))

    def _version_at(self, millis: float) -> FilePosition | None:
        found = (one.snapshot_id for one in self._lineage(self.newest()).snapshots if one.timestamp_ms >= millis)
        version = next(found, None)
        return None if version is None else FilePosition(version)

    def _started(self, at: FilePosition, newest: int) -> FilePosition | None:
        if at.file != _END:
            return at
        if at.version == newest:
            return None
        lineage = self._lineage(newest)
        if at.version in lineage.positions:
            return FilePosition(lineage.snapshots[lineage.positions[at.version] + 1].snapshot_id)
        if at.version in self._snapshots:
            raise InputError(
                f"{self.name} was set back to a snapshot before {at.version}, which the stream has read.",
                "Begin a new pond, which reads the table as it is now.",
            )
        if not lineage.snapshots:
            raise self._gone(at.version if newest == _NONE else newest)
        oldest = lineage.snapshots[0]
        # A snapshot keeps its sequence number if pyiceberg expires its parent, but not the parent's id.
        is_first = oldest.sequence_number == 1 or (not oldest.sequence_number and oldest.parent_snapshot_id is None)
        if oldest.parent_snapshot_id != at.version and not (at.version == _NONE and is_first):
            raise self._gone(at.version)
        return FilePosition(oldest.snapshot_id)

    def _finished(self, at: FilePosition) -> FilePosition:
        return FilePosition(at.version, _END)

    def _before(self, end: FilePosition) -> int:
        return end.version

    def _lineage_of(self, newest: int) -> _Lineage:
        """The snapshots that lead to one, as long as they exist."""
        found = list[Snapshot]()
        version: int | None = newest
        while version is not None and version in self._snapshots:
            found.append(self._snapshots[version])
            version = found[-1].parent_snapshot_id
        found.reverse()
        return _Lineage(found, {snapshot.snapshot_id: place for place, snapshot in enumerate(found)})

    def _added(self, version: int) -> list[DataFile]:
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

    def _all(self, version: int) -> list[DataFile]:
        """All files of a snapshot, oldest first, because old rows mostly have early event times."""
        entries = self._entries(self._snapshot(version))
        return [self._data_file(one.data_file) for one in sorted(entries, key=lambda one: one.sequence_number or 0)]

    def _entries(self, snapshot: Snapshot, added_by: int | None = None) -> Iterator[ManifestEntry]:
        """The live data files of a snapshot; with `added_by`, at least those that this snapshot added."""
        for manifest in self._metadata_of(snapshot, partial(snapshot.manifests, self._io)):
            if added_by not in (None, manifest.added_snapshot_id):
                continue
            entries = self._metadata_of(snapshot, partial(manifest.fetch_manifest_entry, self._io))
            if manifest.content == ManifestContent.DATA:
                yield from entries
            elif entries:
                raise InputError(
                    f"The snapshot {snapshot.snapshot_id} of {self.name} has delete files, which cannot be read.",
                    _DELETES_CURE,
                )

    def _metadata_of(self, snapshot: Snapshot, read: Callable[[], list[T]]) -> list[T]:
        try:
            return read()
        except FileNotFoundError as error:
            raise self._gone(snapshot.snapshot_id) from error
        except OSError as error:
            raise SourceError(
                f"The snapshot {snapshot.snapshot_id} of {self.name} cannot be read: {' '.join(str(error).split())}.",
                "Check that its files can be reached.",
            ) from error

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
                constants[name] = _constant(schema.find_type(field.source_id), file.partition[place])
        return DataFile(file.file_path, file.file_size_in_bytes, constants)

    def _snapshot(self, version: int) -> Snapshot:
        if version not in self._snapshots:
            raise self._gone(version)
        return self._snapshots[version]

    def _set_metadata(self, metadata: TableMetadata, io: FileIO) -> None:
        self._metadata, self._io = metadata, io
        self._snapshots = {snapshot.snapshot_id: snapshot for snapshot in metadata.snapshots}
        self._lineage.cache_clear()

    def _current(self) -> tuple[TableMetadata, FileIO]:
        try:
            if self._folder is not None:
                return self._read_metadata(self._newest_file(self._folder)), LocalFiles()
            catalog = self._catalog()
            table = catalog.load_table(self._table)
            return table.metadata, _operators_files(catalog, table.config, table.metadata_location)
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
        return FromInputFile.table_metadata(LocalFiles().new_input(str(file)))

    def _gone(self, version: int) -> GoneError:
        return GoneError(
            f"The snapshot {version} of {self.name}, or the one after it, no longer exists.",
            "It was expired before the stream had read it: begin a new pond, and keep snapshots for longer "
            "(history.expire.max-snapshot-age-ms).",
        )


def _constant(kind: IcebergType, value: Any) -> Any:
    """The value of a partition or a default; metadata has dates and times as numbers since 1970."""
    if not isinstance(value, int) or not isinstance(kind, (DateType, TimestampType, TimestamptzType)):
        return value
    if isinstance(kind, DateType):
        return date(1970, 1, 1) + timedelta(value)
    transform: IdentityTransform[Any] = IdentityTransform()
    return transform.to_human_string(kind, value)


class LocalFiles(PyArrowFileIO):
    """The files of a table without a catalog. Its metadata cannot name files of other machines."""

    def new_input(self, location: str) -> PyArrowFile:
        return super().new_input(str(local_path(location, "A file of the Iceberg table")))


def _opened_catalog(name: str) -> Catalog:
    catalog = load_catalog(name)
    setattr(catalog, "_load_file_io", partial(_operators_files, catalog))  # noqa: B010  # mypy refuses to replace a method
    return catalog


def _operators_files(catalog: Catalog, config: Mapping[str, str] = {}, location: str | None = None) -> FileIO:
    """The files of a catalog's table, as the operator and the catalog configure them.

    The properties of the table are left out, because everyone who may write to it can set them. They could name a class
    to import, or send the operator's credentials to another server.
    """
    safe = {name: config[name] for name in config if name != PY_IO_IMPL}
    return load_file_io({**catalog.properties, **safe}, location)


def _open_file(files: FileIO, location: str) -> Any:
    return files.new_input(location).open()
