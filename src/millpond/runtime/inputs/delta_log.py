"""Reads the log of a Delta Lake table: the data files that each version adds, as positions of a stream.

`deltalake` reads the snapshot with which a stream begins. Later commits are read from their files, because only these
say whether a change adds rows or rewrites them. Follows the protocol of Delta Lake
(https://github.com/delta-io/delta/blob/master/PROTOCOL.md).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from millpond.clock import moment_us
from millpond.errors import GoneError, InputError, QueryTypeError, SourceError
from millpond.local_path import local_path

MOST_FILES = 1000
"""The default of `maxFilesPerTrigger`, as in Delta's own source."""

_FEATURES = {"timestampNtz", "deletionVectors", "columnMapping", "v2Checkpoint", "vacuumProtocolCheck"}
"""Features of a table that a reader can ignore; deletion vectors and mapped columns are refused where they are used."""

_APPEND_CURE = (
    "A stream reads only rows that are appended. Set skipChangeCommits 'true' in its OPTIONS to leave out such "
    "commits, or begin a new pond, which reads the table as it is now."
)


class Position(NamedTuple):
    """The next file that a stream reads: number `file` of the files that `version` adds.

    With `snapshot`, it is a number among all files of the table at `version`. The version -1 is the beginning of a
    stream that reads the newest snapshot first.
    """

    version: int
    file: int = 0
    snapshot: bool = False


WHOLE_TABLE = Position(-1, 0, snapshot=True)


class DataFile(NamedTuple):
    """A Parquet file of a table, its size in bytes, and the values of the table's partition columns."""

    path: str
    size: int
    partition: dict[str, Any]


class Limit(NamedTuple):
    """The most files and bytes of an epoch; one file may be larger."""

    files: float = float("inf")
    bytes: float = float("inf")


class DeltaLog:
    """The versions of one table. `skips_changes`: commits that delete or change rows are left out."""

    def __init__(self, path: str, *, skips_changes: bool = False) -> None:
        """Open a table.

        Raises:
            SourceError: there is none, or it cannot be read. InputError: it has a feature that is not supported.
        """
        self.path, self._skips = local_path(path, "The Delta table"), skips_changes
        table = self._opened()
        protocol, metadata = table.protocol(), table.metadata()
        self._check(protocol.min_reader_version, protocol.reader_features or (), metadata.configuration)
        self.id = str(metadata.id)
        self._newest, self._stamp = table.version(), self._stamp_of(table.version())
        self._added = lru_cache(64)(self._read)
        self._all = lru_cache(1)(self._snapshot)

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

    def check_id(self, table: str) -> None:
        """Check that this is the table with an id.

        Raises:
            InputError: it is another one.
        """
        if table != self.id:
            raise InputError(
                f"{self.path} is another Delta table than the one that the stream has read.",
                "Begin a new pond; its stream reads the new table from the beginning.",
            )

    def first(self, options: Mapping[str, str]) -> Position:
        """Where a new stream begins, by its options with names in lower case.

        Raises:
            QueryTypeError: an option has no valid value.
        """
        version, time = options.get("startingversion"), options.get("startingtimestamp")
        if version is not None and time is not None:
            raise QueryTypeError("A stream of Delta has startingVersion and startingTimestamp.", "Leave one out.")
        if time is not None:
            return Position(self._version_at(time))
        if version is None:
            return WHOLE_TABLE
        if version.lower() == "latest":
            return Position(self.newest() + 1)
        if not version.isdecimal() or int(version) > self.newest() + 1:
            raise QueryTypeError(
                f"'startingVersion' is {version!r}, and {self.path} has the versions 0 to {self.newest()}.",
                "Write one of them, or 'latest'.",
            )
        return Position(int(version))

    def after(self, start: Position, newest: int, limit: Limit) -> Position:
        """The end of an epoch that begins at `start`; an epoch never reads beyond its snapshot.

        Raises:
            GoneError, InputError: see `files`.
        """
        at = Position(newest, 0, snapshot=True) if start == WHOLE_TABLE else start
        files = size = 0
        while at.snapshot or at.version <= newest:
            for file in self._files(at)[at.file :]:
                if files >= limit.files or (files and size + file.size > limit.bytes):
                    return at
                files, size, at = files + 1, size + file.size, at._replace(file=at.file + 1)
            done, at = at, Position(at.version + 1)
            if done.snapshot:
                break
        return at

    def files(self, start: Position, end: Position) -> Iterator[DataFile]:
        """The files between two positions.

        Raises:
            GoneError: the table has no such version any more. InputError: a commit deletes or changes rows.
        """
        if start == WHOLE_TABLE and end != WHOLE_TABLE:
            start = Position(end.version if end.snapshot else end.version - 1, 0, snapshot=True)
        while (start.version, not start.snapshot, start.file) < (end.version, not end.snapshot, end.file):
            same = start._replace(file=end.file) == end
            yield from self._files(start)[start.file : end.file if same else None]
            start = end if same else Position(start.version + 1)

    def _files(self, at: Position) -> list[DataFile]:
        return self._all(at.version) if at.snapshot else self._added(at.version)

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

    def _read(self, version: int) -> list[DataFile]:
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

    def _snapshot(self, version: int) -> list[DataFile]:
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

    def _version_at(self, text: str) -> int:
        """The first version at or after a time."""
        try:
            time = datetime.fromisoformat(text)
        except ValueError as error:
            raise QueryTypeError(
                f"'startingTimestamp' is {text!r}.", "Write it as '2026-01-31' or '2026-01-31T12:30:00+01:00'."
            ) from error
        millis = moment_us(time) / 1000
        files = (self.path / "_delta_log").glob("[0-9]" * 20 + ".json")
        found = [version for version in (int(file.stem) for file in files) if self._millis(version) >= millis]
        if not found:
            raise QueryTypeError(
                f"'startingTimestamp' is {text!r}, after the newest version of {self.path}.",
                "Write an earlier one, or startingVersion 'latest'.",
            )
        return min(found)

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
