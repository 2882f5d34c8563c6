"""Finds files of Spark's checkpoint whose bytes have changed since Spark wrote them; Spark works without checksums.

A changed character in a source's list of files would make Spark read a file a second time, and a changed setting in the
offsets may make it read everything again. So the driver stores a CRC-32 of each of these files beside them:

    <pond>/spark/<n>/digests.json        {"sources/ev/3": 2774306437, …}

A file that has no digest yet is not checked: Spark writes it shortly before the driver sees it.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from millpond.ids import writer_token
from millpond.log.protocol import TICK
from millpond.spark.reading.source_progress import list_batch

DIGESTS = "digests.json"
"""Name of the file with the digests, in a checkpoint."""


class CheckpointDigests:
    """The digests of one checkpoint, updated before each epoch."""

    def __init__(self) -> None:
        self._checkpoint = Path()
        self._digests: dict[str, int] = {}

    def update(self, checkpoint: Path, batch: int) -> None:
        """Store the digests of files that are new by the time of Spark's batch `batch`.

        They are only a safeguard, so an epoch goes on where they cannot be stored.
        """
        if checkpoint != self._checkpoint:
            self._checkpoint, self._digests = checkpoint, read_digests(checkpoint)
        names = {*_lists(checkpoint), f"offsets/{batch - 1}", f"offsets/{batch}"}
        digests = {name: digest for name, digest in self._digests.items() if name in names}
        for name in names - digests.keys():
            with suppress(FileNotFoundError):  # compacted by Spark in the meantime, or before the first batch
                digests[name] = _digest(checkpoint / name)
        if digests != self._digests:
            temporary = checkpoint / f".{DIGESTS}-{writer_token()}"
            with suppress(OSError):
                temporary.write_text(json.dumps(digests))
                temporary.replace(checkpoint / DIGESTS)
                self._digests = digests


def read_digests(checkpoint: Path) -> dict[str, int]:
    """The stored digests by name of file; none if the file is missing or unreadable."""
    try:
        found = json.loads((checkpoint / DIGESTS).read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def changed_files(checkpoint: Path) -> Iterator[Path]:
    """Files of the checkpoint that exist and differ from their digest."""
    for name, digest in sorted(read_digests(checkpoint).items()):
        with suppress(FileNotFoundError):
            if _digest(checkpoint / name) != digest:
                yield checkpoint / name


def _lists(checkpoint: Path) -> Iterator[str]:
    """Names of the files in which sources keep what they have read."""
    for folder in (checkpoint / "sources").glob("*"):
        if folder.name != TICK:  # the tick starts over after a repair, with other contents under the same name
            yield from (f"sources/{folder.name}/{name}" for name in os.listdir(folder) if list_batch(name) >= 0)


def _digest(path: Path) -> int:
    return zlib.crc32(path.read_bytes())
