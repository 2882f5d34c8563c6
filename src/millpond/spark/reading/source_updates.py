"""Reads from Spark's checkpoint what an epoch's record stores about its sources, besides their offsets.

A source of files numbers its batches, so its offset has a meaning only together with the list of the files of each
batch. Other sources may keep files, too: Kafka the offsets at which it began, `rate` the time at which it began. With
all this in the log, a driver on any host can make Spark's checkpoint (`spark.driver.checkpoint`).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from millpond.log.file_lists import file_list, files_in
from millpond.log.manifest import SourceState
from millpond.log.protocol import TICK
from millpond.log.records import FileList, Offsets, SourceUpdate
from millpond.spark.reading.source_progress import batch_of, has_list, listed_files

LOCAL = "file://"


def source_updates(checkpoint: Path, end: Offsets, known: Mapping[str, SourceState]) -> dict[str, SourceUpdate]:
    """What the record of an epoch that ends at `end` adds to what the log knows about the sources.

    Raises:
        CorruptError: a source's list of files cannot be read.
    """
    updates: dict[str, SourceUpdate] = {}
    for stream, offset in end.items():
        if stream == TICK:
            continue
        folder, before = checkpoint / "sources" / stream, known.get(stream, SourceState())
        if has_list(offset):
            files, last = None, batch_of(offset)
            if before.batch < last:
                files = file_list(listed_files(folder, before.batch, last))
            update = SourceUpdate(files)
        else:
            stored = stored_files(folder)
            changed: dict[str, str | None] = {
                name: text for name, text in stored.items() if before.stored.get(name) != text
            }
            changed.update(dict.fromkeys(before.stored.keys() - stored.keys()))
            update = SourceUpdate(stored=changed)
        if stream not in known or update != SourceUpdate():
            updates[stream] = update
    return updates


def stored_files(folder: Path) -> dict[str, str]:
    """The content of the files that a source keeps in its folder, by their names relative to it.

    Each byte is the character of that number. Checksums and temporary files are left out.
    """
    found: dict[str, str] = {}
    for place, _, names in os.walk(folder):
        for name in sorted(names):
            if not name.startswith("."):
                path = Path(place, name)
                found[path.relative_to(folder).as_posix()] = path.read_bytes().decode("latin-1")
    return found


def local_paths(files: FileList | None, after: int) -> list[str]:
    """The paths of the local files of the batches after `after`."""
    if files is None:
        return []
    found = (one.decoded for one in files_in(files) if one.batch > after)
    return [path.removeprefix(LOCAL) for path in found if path.startswith(LOCAL)]
