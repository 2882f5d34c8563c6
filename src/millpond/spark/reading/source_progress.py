"""Reads from Spark's checkpoint what a source has read: the files of each batch, or Kafka's starting offsets.

sources/<name>/<n>            "v1", then a line of JSON per file that batch n was the first to see
sources/<name>/<n>.compact    the same for all batches up to n; the earlier files are deleted later
sources/<name>/0              for Kafka: "v1", then the starting offsets as JSON
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
from pyspark.sql import DataFrame

from millpond.errors import CorruptError, GoneError, of_machine
from millpond.log.file_lists import ListedFile
from millpond.model.stream import Stream
from millpond.runtime.inputs.backfill import PastEpoch

COMPACT = ".compact"
"""The ending of the name of a list into which Spark has compacted the earlier ones."""

_VERSION = "v1"
_TAIL_BYTES = 1 << 16
_TRIES = 3
"""Attempts to read a list: Spark may compact it and delete the compacted files while it is read."""


_decoder = msgspec.json.Decoder(ListedFile)


def list_batch(name: str) -> int:
    """The batch of a list, or the last batch that was compacted into it, from its file's name; -1 for other files.

    >>> list_batch("7"), list_batch("9.compact"), list_batch(".7.crc")
    (7, 9, -1)
    """
    text = name.removesuffix(COMPACT)
    return int(text) if text.isdecimal() else -1


def listed_files(folder: Path, after: int, upto: int) -> list[ListedFile]:
    """The files of a file source's batches after `after` and up to `upto`, in the order of batches.

    `folder` is the source's folder in a checkpoint.

    Raises:
        CorruptError: the list is lost or incomplete.
    """
    for _ in range(_TRIES - 1):
        try:
            return _listed(folder, after, upto)
        except FileNotFoundError:
            continue
    try:
        return _listed(folder, after, upto)
    except OSError as error:
        raise of_machine(error) or CorruptError(
            f"Spark's list of files cannot be read: {error}.", "Start the pond again, which makes it from the log."
        ) from error


def _listed(folder: Path, after: int, upto: int) -> list[ListedFile]:
    if upto == after + 1:
        return _batch(folder, upto)
    names = os.listdir(folder)
    merged = max((list_batch(name) for name in names if name.endswith(COMPACT)), default=-1)
    lists = [] if merged < 0 else [f"{merged}{COMPACT}"]
    later = {int(name) for name in names if name.isdecimal() and merged < int(name) <= upto}
    _check_no_gap(folder, {*range(merged + 1, upto + 1)} - later)
    lists += [str(number) for number in sorted(later)]
    found = [_file(line) for name in lists for line in _lines(folder / name)]
    found = sorted((one for one in found if after < one.batch <= upto), key=lambda one: one.batch)
    _check_no_gap(folder, {*range(after + 1, upto + 1)} - {one.batch for one in found})
    return found


def _check_no_gap(folder: Path, lacking: Collection[int]) -> None:
    if lacking:
        raise CorruptError(
            f"Spark's list of files in {folder} lacks batch {min(lacking)}.",
            "Start the pond again, which makes it from the log.",
        )


def _batch(folder: Path, batch: int) -> list[ListedFile]:
    """The files of one batch; of a list into which Spark has compacted earlier ones, only the end is read."""
    try:
        return [one for one in map(_file, _lines(folder / str(batch))) if one.batch == batch]
    except FileNotFoundError:
        path = folder / f"{batch}{COMPACT}"
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        tail = _TAIL_BYTES
        while True:
            file.seek(max(0, size - tail))
            # the first line is the version or an incomplete line
            _, *lines = file.read().decode(errors="replace").splitlines()
            found = [*map(_file, lines)]
            if tail >= size or (found and found[0].batch < batch):
                return [one for one in found if one.batch == batch]
            tail *= 8


def _lines(path: Path) -> Sequence[str]:
    version, *lines = path.read_text(encoding="utf-8").splitlines() or [""]
    if version != _VERSION:
        raise CorruptError(f"{path} is of a form this Spark does not write.", "Use Spark 4.3.")
    return lines


def _file(line: str) -> ListedFile:
    try:
        return _decoder.decode(line)
    except msgspec.MsgspecError as error:
        raise CorruptError(f"A line of Spark's list of files does not decode: {error}.", "Restore it.") from error


def has_list(offset: str) -> bool:
    """Whether the offset is the number of a file source's batch.

    >>> has_list('{"logOffset":3}'), has_list("17"), has_list('{"topic":{"0":5}}')
    (True, False, False)
    """
    return offset.startswith('{"logOffset"')


def batch_of(offset: str) -> int:
    """The newest batch in a file source's offset; -1 for the offset "", which is before the first batch.

    >>> batch_of('{"logOffset":3}'), batch_of("")
    (3, -1)
    """
    return int(json.loads(offset)["logOffset"]) if offset else -1


FILE = "__file"
"""The column with the file of an event, in a portion of files."""


class Portion(NamedTuple):
    """A part of what `epochs` have read, as a batch. How the epoch of an event is found is as in `RereadEvents`:

    `files` maps the files in the column `FILE` to positions in `epochs`; `ends` has the end offsets of each epoch by
    source partition. `share`: the part of all portions that it is, 0 … 1.
    """

    frame: DataFrame
    epochs: tuple[PastEpoch, ...]
    share: float
    files: Mapping[str, int] = {}
    ends: Mapping[str, Sequence[int]] = {}


def gone(stream: Stream, what: str) -> GoneError:
    """The error that a source no longer has what epochs have read from it."""
    return GoneError(
        f"The source of {stream.name} no longer has all the input that was read from it: {what}",
        "Backfill from a later time, from which the input is complete, or leave the backfill out.",
    )


Ranges = Mapping[str, Mapping[str, int]]
"""Topic -> partition -> offset."""


def first_offsets(folder: Path) -> Ranges:
    """The starting offsets of Kafka's partitions, from the source's folder in a checkpoint.

    Raises:
        CorruptError: they are lost.
    """
    try:
        # A byte 0 before the version prevents older versions of Spark from reading the file.
        text = (folder / "0").read_bytes().lstrip(b"\0").decode()
        version, _, offsets = text.partition("\n")
        if version != _VERSION:
            raise ValueError(f"version {version}")
        return msgspec.json.decode(offsets, type=dict[str, dict[str, int]])
    except (OSError, ValueError) as error:
        raise of_machine(error) or CorruptError(
            f"Where {folder.name} began cannot be read: {error}.",
            "Start the pond again, which makes it from the log.",
        ) from error


def offsets_of(offset: str, first: Ranges) -> Ranges:
    """Kafka's offsets from Spark's JSON; for "" the starting offsets `first`."""
    return msgspec.json.decode(offset, type=dict[str, dict[str, int]]) if offset else first


def records_in(epochs: Sequence[PastEpoch], first: Ranges) -> int:
    """The number of Kafka offsets that some consecutive epochs read."""
    if not epochs:
        return 0
    start, end = offsets_of(epochs[0].start, first), offsets_of(epochs[-1].end, first)
    return sum(
        last - start.get(topic, {}).get(partition, 0)
        for topic, partitions in end.items() for partition, last in partitions.items()
    )  # fmt: skip
