"""Divides the versions of a table into epochs: which data files lie between two positions of a stream.

Each format of tables has a class that lists the data files of a version.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from datetime import datetime
from functools import lru_cache
from typing import NamedTuple

from millpond.clock import moment_us
from millpond.errors import GoneError, InputError, QueryTypeError
from millpond.runtime.inputs.tables.data_files import DataFile, FileReader

MOST_FILES = 1000
"""The default of `maxFilesPerTrigger`, as in Delta's own source."""


class FilePosition(NamedTuple):
    """The next file that a stream reads: number `file` of the files that `version` adds.

    With `snapshot`, it is a number among all files of the table at `version`. The version -1 is the beginning of a
    stream that reads the newest snapshot first.
    """

    version: int
    file: int = 0
    snapshot: bool = False


WHOLE_TABLE = FilePosition(-1, 0, snapshot=True)


class Limit(NamedTuple):
    """The most files and bytes of an epoch; one file may be larger."""

    files: float = float("inf")
    bytes: float = float("inf")


class TableLog(ABC):
    """The versions of one table, which is opened when the object is made. Lists of files are cached."""

    format: str
    """The format's name in messages."""

    name: str
    """The table's name or path in messages."""

    id: str
    """The unique id of the table; a table that replaces it at the same address has another one."""

    def __init__(self) -> None:
        self._cached_added, self._cached_all = lru_cache(64)(self._added), lru_cache(1)(self._all)

    @abstractmethod
    def newest(self) -> int:
        """The newest version; -1 if the table has none.

        Raises:
            InputError: the table was removed, and another one made in its place.
        """

    @abstractmethod
    def reader(self) -> FileReader:
        """What tasks need in order to read the files."""

    @abstractmethod
    def _added(self, version: int) -> list[DataFile]:
        """The files with new rows of a version, always in the same order."""

    @abstractmethod
    def _all(self, version: int) -> list[DataFile]:
        """All files of the table at a version, always in the same order."""

    @abstractmethod
    def _finished(self, at: FilePosition) -> FilePosition:
        """The position at which all files of the version of `at` have been read."""

    @abstractmethod
    def _before(self, end: FilePosition) -> int:
        """The version of which `end` is the position after its last file."""

    @abstractmethod
    def _started(self, at: FilePosition, newest: int) -> FilePosition | None:
        """The position from which to go on reading; None: all files up to the version `newest` have been read.

        Raises:
            GoneError: the version to read no longer exists. InputError: the table was set back.
        """

    @abstractmethod
    def _version(self, text: str) -> FilePosition:
        """The position before a version that the option `startingVersion` names.

        Raises:
            QueryTypeError: there is none.
        """

    @abstractmethod
    def _version_at(self, millis: float) -> FilePosition | None:
        """The position before the first version at or after a time; None: there is none."""

    def first(self, options: Mapping[str, str]) -> FilePosition:
        """Where a new stream begins, by its options with names in lower case.

        Raises:
            QueryTypeError: an option has no valid value.
        """
        version, time = options.get("startingversion"), options.get("startingtimestamp")
        if version is not None and time is not None:
            raise QueryTypeError(
                f"A stream of {self.format} has startingVersion and startingTimestamp.", "Leave one out."
            )
        if time is not None:
            return self._at_time(time)
        if version is None:
            return WHOLE_TABLE
        if version.lower() == "latest":
            return self._finished(FilePosition(self.newest()))
        return self._version(version)

    def after(self, start: FilePosition, newest: int, limit: Limit) -> FilePosition:
        """The end of an epoch that begins at `start`; an epoch never reads beyond its snapshot.

        Raises:
            GoneError, InputError: see `files`.
        """
        end = start
        if start == WHOLE_TABLE:
            if newest < 0:
                return start
            end = FilePosition(newest, 0, snapshot=True)
        files = size = 0
        while (at := self._started(end, newest)) is not None:
            end = at
            for file in self._files(end)[end.file :]:
                if files >= limit.files or (files and size + file.size > limit.bytes):
                    return end
                files, size, end = files + 1, size + file.size, end._replace(file=end.file + 1)
            end = self._finished(end)
            if at.snapshot:
                break
        return end

    def files(self, start: FilePosition, end: FilePosition) -> Iterator[DataFile]:
        """The files between two positions.

        Raises:
            GoneError: the table has no such version any more. InputError: a commit deletes or changes rows.
        """
        if start == end:
            return
        at = start
        if start == WHOLE_TABLE:
            at = FilePosition(end.version if end.snapshot else self._before(end), 0, snapshot=True)
        while at != end:
            started = self._started(at, end.version)
            if started is None:
                raise self._gone(end.version)
            same = (started.version, started.snapshot) == (end.version, end.snapshot)
            yield from self._files(started)[started.file : end.file if same else None]
            at = end if same else self._finished(started)

    def check_id(self, table: str) -> None:
        """Check that this is the table with an id.

        Raises:
            InputError: it is another one.
        """
        if table != self.id:
            raise InputError(
                f"{self.name} is another {self.format} table than the one that the stream has read.",
                "Begin a new pond; its stream reads the new table from the beginning.",
            )

    def _files(self, at: FilePosition) -> list[DataFile]:
        return self._cached_all(at.version) if at.snapshot else self._cached_added(at.version)

    def _at_time(self, text: str) -> FilePosition:
        try:
            time = datetime.fromisoformat(text)
        except ValueError as error:
            raise QueryTypeError(
                f"'startingTimestamp' is {text!r}.", "Write it as '2026-01-31' or '2026-01-31T12:30:00+01:00'."
            ) from error
        found = self._version_at(moment_us(time) / 1000)
        if found is None:
            raise QueryTypeError(
                f"'startingTimestamp' is {text!r}, after the newest version of {self.name}.",
                "Write an earlier one, or startingVersion 'latest'.",
            )
        return found

    @abstractmethod
    def _gone(self, version: int) -> GoneError:
        """The error for a version that no longer exists."""
