"""Reads what sources have read from the checkpoints of a pond whose log does not have it.

Until version 0.2, only Spark's checkpoint had the lists of the files that sources had read. The first epoch of a later
version writes them to the log (`reading.source_updates`). A driver that takes over before that epoch reads them here.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from millpond.errors import CorruptError, OffsetGapError
from millpond.log.file_lists import ListedFile
from millpond.log.manifest import Manifest
from millpond.spark.reading.source_progress import listed_files
from millpond.spark.reading.source_updates import stored_files

DIGESTS = "digests.json"
"""A file that version 0.2 wrote to checkpoints: the CRC-32 of other files in it, by their names."""


class EarlierCheckpoints:
    """The existing checkpoints of the query that wrote the log's last epoch, the newest first."""

    def __init__(self, checkpoints: Sequence[Path], manifest: Manifest) -> None:
        self._checkpoints, self._manifest = checkpoints, manifest

    def files(self, stream: str, after: int, upto: int) -> list[ListedFile]:
        """The files of a source's batches after `after` and up to `upto`.

        Raises:
            OffsetGapError: no checkpoint has their list.
        """
        reason = "its folder `spark` is missing, or belongs to another query"
        for checkpoint in self._checkpoints:
            damaged = next(changed_files(checkpoint, f"sources/{stream}/"), None)
            if damaged is not None:
                reason = f"{damaged} is damaged"
                continue
            try:
                return listed_files(checkpoint / "sources" / stream, after, upto)
            except CorruptError as error:
                reason = error.what.rstrip(".")
        raise self._refusal(stream, reason)

    def stored(self, stream: str, offset: str) -> dict[str, str]:
        """The other files of a source, as in `SourceUpdate.stored`.

        Raises:
            OffsetGapError: no checkpoint has them, although the offset has no meaning without them.
        """
        for checkpoint in self._checkpoints:
            found = stored_files(checkpoint / "sources" / stream)
            if found:
                return found
        if not isinstance(_json(offset), dict):
            raise self._refusal(stream, "its folder `spark` is missing, or belongs to another query")
        return {}

    def _refusal(self, stream: str, reason: str) -> OffsetGapError:
        return OffsetGapError(
            f"The log, which ends at record {self._manifest.n}, does not have what {stream} read, because a version of "
            f"Millpond before 0.3 wrote it; and Spark's checkpoint does not have it either: {reason}.",
            "Restore the pond's folder `spark` from a copy as new as the log, or begin a new pond.",
        )


def changed_files(checkpoint: Path, prefix: str) -> Iterator[Path]:
    """Files of a checkpoint whose names begin with `prefix`, and which differ from their stored digest."""
    path = checkpoint / DIGESTS
    digests = _json(path.read_text(errors="replace")) if path.is_file() else None
    for name, digest in sorted(digests.items()) if isinstance(digests, dict) else ():
        file = checkpoint / name
        if name.startswith(prefix) and file.is_file() and zlib.crc32(file.read_bytes()) != digest:
            yield file


def _json(text: str) -> object:
    try:
        return json.loads(text)
    except ValueError:
        return None
