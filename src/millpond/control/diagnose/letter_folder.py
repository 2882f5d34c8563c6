"""Reads the Parquet files of a folder of dead letters, and the marker that names their stream."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from millpond.errors import ForeignPondError, PlaceError
from millpond.followers.part_folders import PartFolder, part_folder
from millpond.followers.sinks.folder import MARKER_NAME, Marker
from millpond.log.locations.address import Address, address_of
from millpond.log.port import numbered_name
from millpond.runtime.packets.row_batches import dead_letters_of


def file_name(n: int) -> str:
    """The name of the file of the dead letters of record `n`."""
    return f"part-{numbered_name(n)}.parquet"


class LetterFolder(NamedTuple):
    """A folder of dead letters, and the marker that names their stream."""

    address: Address
    folder: PartFolder
    marker: Marker

    @classmethod
    def of(cls, given: Path) -> LetterFolder:
        """The folder at a path or an address.

        Raises:
            ForeignPondError: it holds no dead letters.
            PlaceError: it cannot be read.
        """
        address = address_of(given, "The folder of dead letters")
        folder = part_folder(address, make=False)
        content = folder.read(MARKER_NAME)
        if content is None:
            what = f"{address} holds no dead letters: it has no file {MARKER_NAME}."
            raise ForeignPondError(what, "Name what 'dead.path' names, or wait for the first dead letter.")
        try:
            marker = msgspec.json.decode(content, type=Marker)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            what = f"{address} holds no dead letters, by its file {MARKER_NAME}: {error}."
            raise ForeignPondError(what, "Name what 'dead.path' names, or restore that file.") from error
        if not marker.query.startswith(dead_letters_of("")):
            raise ForeignPondError(f"{address} holds rows of {marker.query}.", "Name what 'dead.path' names.")
        return cls(address, folder, marker)

    def parts(
        self, columns: Sequence[str] | None = None, *, newest_first: bool = False
    ) -> Iterator[tuple[int, pa.Table]]:
        """The dead letters of each record of the log, by its number, in order; all columns, or those given.

        Raises:
            PlaceError: a file cannot be read.
        """
        for name in sorted(self.folder.names(), reverse=newest_first):
            if name.startswith("part-") and name.endswith(".parquet"):
                n = int(name.removeprefix("part-").removesuffix(".parquet"))
                try:
                    # `read_table` reads with threads of a dataset, which may abort a process that then ends
                    yield n, pq.ParquetFile(pa.BufferReader(self.content(n))).read(columns, use_threads=False)
                except pa.ArrowException as error:
                    raise PlaceError(
                        f"{self.address}/{name} cannot be read: {error}.", "Restore it from a copy."
                    ) from error

    def content(self, n: int) -> bytes:
        """The file of the dead letters of record `n`."""
        return self.folder.read(file_name(n)) or b""

    def mark(self, n: int) -> str:
        """Identifies the content of the file of record `n`: a pond that lost the record may write another one."""
        return f"{hashlib.sha256(self.content(n)).hexdigest()} {self.marker.pond}"
