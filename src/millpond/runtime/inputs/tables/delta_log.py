"""Reads the log of a Delta Lake table: the data files that each version adds.

`deltalake` reads the snapshot with which a stream begins. Later commits are read from their files, because only these
say whether a change adds rows or rewrites them. Follows the protocol of Delta Lake
(https://github.com/delta-io/delta/blob/master/PROTOCOL.md).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from millpond.errors import GoneError, InputError, QueryTypeError, SourceError
from millpond.local_path import local_path
from millpond.runtime.inputs.tables.data_files import DataFile, FileReader
from millpond.runtime.inputs.tables.table_log import FilePosition, TableLog

_FEATURES = {"timestampNtz", "deletionVectors", "columnMapping", "v2Checkpoint", "vacuumProtocolCheck"}
"""Features of a table that a reader can ignore; deletion vectors and mapped columns are refused where they are used."""

_APPEND_CURE = (
    "A stream reads only rows that are appended. Set skipChangeCommits 'true' in its OPTIONS to leave out such "
    "commits, or begin a new pond, which reads the table as it is now."
)

_MISSING_CURE = "VACUUM has deleted it before the stream had read it: begin a new pond, and keep files for longer."


class DeltaLog(TableLog):
    """The versions of one table. `skips_changes`: commits that delete or change rows are left out."""

    format = "Delta"

    def __init__(self, path: str, *, skips_changes: bool = False) -> None:
        """Open a table.

        Raises:
            SourceError: there is none, or it cannot be read. InputError: it has a feature that is not supported.
        """
        super().__init__()
        self.path, self._skips = local_path(path, "The Delta table"), skips_changes
        self.name = str(self.path)
        table = self._opened()
        protocol, metadata = table.protocol(), table.metadata()
        self._check(protocol.min_reader_version, protocol.reader_features or (), metadata.configuration)
        self.id = str(metadata.id)
        self._newest, self._stamp = table.version(), self._stamp_of(table.version())

    def newest(self) -> int:
        """The newest version.

        Raises:
            InputError: the table was removed, and another one made in its place.
        """
        self._check_same()
        found = self._newest
        while self._commit(found + 1).exists():
            found += 1
        if found != self._newest:
            self._newest, self._stamp = found, self._stamp_of(found)
        return found

    def reader(self) -> FileReader:
        return FileReader(self.name, _MISSING_CURE)

    def _version(self, text: str) -> FilePosition:
        if not text.isdecimal() or int(text) > self.newest() + 1:
            raise QueryTypeError(
                f"'startingVersion' is {text!r}, and {self.path} has the versions 0 to {self.newest()}.",
                "Write one of them, or 'latest'.",
            )
        return FilePosition(int(text))

    def _version_at(self, millis: float) -> FilePosition | None:
        files = (self.path / "_delta_log").glob("[0-9]" * 20 + ".json")
        found = [version for version in (int(file.stem) for file in files) if self._millis(version) >= millis]
        return FilePosition(min(found)) if found else None

    def _started(self, at: FilePosition, newest: int) -> FilePosition | None:
        return at if at.snapshot or at.version <= newest else None

    def _finished(self, at: FilePosition) -> FilePosition:
        return FilePosition(at.version + 1)

    def _before(self, end: FilePosition) -> int:
        return end.version - 1

    def _commit(self, version: int) -> Path:
        return self.path / "_delta_log" / f"{version:020}.json"

    def _stamp_of(self, version: int) -> tuple[int, int] | None:
        """What differs if the file of a commit was replaced by another one; None: it does not exist."""
        try:
            found = self._commit(version).stat()
        except FileNotFoundError:
            return None
        return found.st_ino, found.st_mtime_ns

    def _check_same(self) -> None:
        """Check that the newest known commit is still the same file; otherwise, the table is opened again."""
        stamp = self._stamp_of(self._newest)
        if stamp is None or stamp != self._stamp:
            table = self._opened()
            self.check_id(str(table.metadata().id))
            self._newest, self._stamp = table.version(), self._stamp_of(table.version())

    def _actions(self, version: int) -> list[dict[str, Any]]:
        """The actions of a commit. They end with line feeds; other line separators of Unicode are data."""
        try:
            lines = self._commit(version).read_bytes().split(b"\n")
            found = [json.loads(line) for line in lines if line.strip()]
        except FileNotFoundError as error:
            raise self._gone(version) from error
        except ValueError as error:
            raise self._incomplete(version) from error
        if not found:
            raise self._incomplete(version)
        return found

    def _added(self, version: int) -> list[DataFile]:
        """The files with new rows of a version."""
        added, removed, vectors = list[DataFile](), False, False
        for action in self._actions(version):
            if "protocol" in action:
                self._check(action["protocol"]["minReaderVersion"], action["protocol"].get("readerFeatures") or (), {})
            if "metaData" in action:
                self._check(1, (), action["metaData"].get("configuration") or {})
                self.check_id(action["metaData"]["id"])
            removed |= "remove" in action and bool(action["remove"]["dataChange"])
            add = action.get("add")
            if add is not None and add["dataChange"]:
                vectors |= bool(add.get("deletionVector"))
                added.append(DataFile(self._located(add["path"]), add["size"], add["partitionValues"]))
        self._check_same()
        if removed and not self._skips:
            raise InputError(f"Version {version} of {self.path} deletes or changes rows.", _APPEND_CURE)
        if vectors and not removed:
            raise self._with_vectors()
        return [] if removed else added

    def _all(self, version: int) -> list[DataFile]:
        """All files of a version, oldest first, because old rows mostly have early event times."""
        table = self._opened(version)
        self.check_id(str(table.metadata().id))
        if pa.table(table.deletion_vectors()).num_rows:
            raise self._with_vectors()
        actions = pa.table(table.get_add_actions()).to_pylist()
        return [
            DataFile(self._located(one["path"]), one["size_bytes"], one.get("partition") or {})
            for one in sorted(actions, key=lambda one: (one["modification_time"], one["path"]))
        ]

    def _opened(self, version: int | None = None) -> DeltaTable:
        try:
            return DeltaTable(str(self.path), version=version)
        except (DeltaError, OSError, ValueError) as error:
            if version is not None:
                raise self._gone(version) from error
            raise SourceError(
                f"The Delta table {self.path} cannot be read: {' '.join(str(error).split())}.", "Check its path."
            ) from error

    def _millis(self, version: int) -> float:
        """The time of a commit, in milliseconds; that of its file if the commit does not have one."""
        times = (action["commitInfo"].get("timestamp") for action in self._actions(version) if "commitInfo" in action)
        time = next(times, None)
        return self._commit(version).stat().st_mtime * 1000 if time is None else float(time)

    def _located(self, path: str) -> str:
        """The local path of a data file, which the log has as an encoded URI, mostly relative to the table."""
        return str(local_path(unquote(path), "A data file of the Delta table", self.path))

    def _check(self, version: int, features: Iterable[str], configuration: Mapping[str, str | None]) -> None:
        unknown = sorted({*features} - _FEATURES)
        if (configuration.get("delta.columnMapping.mode") or "none") != "none":
            unknown = ["columnMapping"]
        if version > 3 or unknown:
            what = f"the feature {unknown[0]}" if unknown else f"the reader version {version}"
            raise InputError(
                f"The Delta table {self.path} has {what}, which cannot be read.", "Read a copy of the table without it."
            )

    def _with_vectors(self) -> InputError:
        return InputError(
            f"The Delta table {self.path} has deletion vectors, which cannot be read.",
            "Set delta.enableDeletionVectors to false, run REORG TABLE … APPLY (PURGE), and begin a new pond.",
        )

    def _incomplete(self, version: int) -> SourceError:
        return SourceError(
            f"Version {version} of {self.path} is incomplete.",
            f"Wait until {self._commit(version)} is written. If its writer has failed, repair the table.",
        )

    def _gone(self, version: int) -> GoneError:
        return GoneError(
            f"Version {version} of {self.path} no longer exists.",
            "Its log was cleaned before the stream had read it: begin a new pond, and keep the log for longer "
            "(delta.logRetentionDuration).",
        )
