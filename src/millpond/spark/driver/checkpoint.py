"""Makes Spark's checkpoints from the log, one per driver, and reads the offsets of a batch from them.

Spark plans a batch before it calls `foreachBatch`, and writes its offsets to a file of the checkpoint. With source
evolution on, `offsets/<batch>` holds "v2", a line of metadata, and then `name:offset` per source.

    <pond>/spark/<n>/                    of the driver whose claim is record n
    <pond>/spark/<n>-<m>/                of the m-th query that replaced another in that driver, see `replace_query`
        metadata, offsets/<batch>, commits/<batch>, sources/<name>/

A checkpoint belongs to one driver. Each driver makes its own from the log when it takes over, on whichever host it
runs, so that Spark continues where the log ends. Nothing in an older checkpoint is used, except by the first driver
after an upgrade (`earlier_checkpoint`). A fenced driver still writes for a moment, because Spark plans the next batch
before it calls us; in a folder of its own that is harmless.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from millpond.errors import CorruptError, OffsetGapError, PlaceError, of_machine
from millpond.faults import reached
from millpond.local_path import replaced
from millpond.log.file_lists import ListedFile, files_in
from millpond.log.manifest import Manifest
from millpond.log.port import numbered_name
from millpond.log.protocol import TICK
from millpond.log.records import FileList, Offsets
from millpond.spark.driver.earlier_checkpoint import EarlierCheckpoints
from millpond.spark.reading.source_progress import COMPACT, batch_of, has_list, list_batch
from millpond.tokens import streaming_query_id, writer_token

KEPT = 2
"""Number of drivers whose checkpoints are kept: the current one and the previous one, which may still be writing."""

_IN_ORDER = ("commits", "offsets", "sources")
"""The order in which folders are copied. Spark writes in the opposite order, so that a copy made while Spark writes
never refers to something that it lacks.
"""

_METADATA = (
    '{"batchWatermarkMs":0,"batchTimestampMs":0,'
    # Spark treats a setting that is missing here as off, and would then read every source from its beginning.
    '"conf":{"spark.sql.streaming.queryEvolution.enableSourceEvolution":"true"},"sourceMetadataInfo":{}}'
)


def make_checkpoint(
    root: Path, claim: int, manifest: Manifest, lists: Mapping[str, FileList], interval: int
) -> Path:  # fmt: skip
    """Make the checkpoint of the driver whose claim is record `claim`: the log's last epoch is its last batch.

    `lists`: the files that sources have read, by stream (see `log.file_lists`). `interval`: after how many batches
    Spark compacts its own list of files.

    Raises:
        OffsetGapError: an earlier version of Millpond wrote the log, and it lacks what a source has read.
        PlaceError, DiskFullError: it cannot be created.
    """
    mine = root / numbered_name(claim)
    try:
        _make(mine, manifest, lists, interval)
    except OSError as error:
        raise of_machine(error) or PlaceError(
            f"The checkpoint in {root.parent} failed: {error}.", "It must be a folder that the driver may write."
        ) from error
    return mine


def _make(target: Path, manifest: Manifest, lists: Mapping[str, FileList], interval: int) -> None:
    root = target.parent
    root.mkdir(parents=True, exist_ok=True)
    checkpoints = _checkpoints(root)
    older = [folder for folder in checkpoints if folder.name < target.name]
    lost = [folder for folder in checkpoints if folder.name >= target.name]  # of claims that the log no longer has
    copy = root / f".{target.name}-{writer_token()}"
    copy.mkdir()
    if manifest.batch >= 0:
        fitting = [folder for folder in reversed(checkpoints) if query_id(folder) in (manifest.spark_query, "")]
        _fill_sources(copy, manifest, lists, EarlierCheckpoints(fitting, manifest), interval)
        _fill_batches(copy, manifest)
    reached("claim.after")
    if target in lost:
        lost[lost.index(target)] = target.rename(root / f".{target.name}-{writer_token()}")
    copy.rename(target)
    for folder in lost:
        shutil.rmtree(folder, ignore_errors=True)
    claims = sorted({_claim(folder) for folder in older})
    for folder in older:
        if _claim(folder) in claims[: 1 - KEPT]:
            shutil.rmtree(folder, ignore_errors=True)
    for leftover in root.glob(".*-*"):
        if leftover.name[1:] <= target.name:
            shutil.rmtree(leftover, ignore_errors=True)


def _fill_batches(checkpoint: Path, manifest: Manifest) -> None:
    """Make the log's last epoch the last committed batch. The tick has no offset, so it starts over."""
    set_query_id(checkpoint, manifest.spark_query)
    offsets = {name: offset for name, offset in manifest.offsets.items() if name != TICK}
    lines = ["v2", _METADATA, *(f"{name}:{offset}" for name, offset in offsets.items())]
    # Spark also needs the last but one batch. It gets the same offsets, so that nothing lies between the two.
    for batch in range(max(manifest.batch - 1, 0), manifest.batch + 1):
        _write(checkpoint / "offsets" / str(batch), "\n".join(lines))
    _write(checkpoint / "commits" / str(manifest.batch), 'v1\n{"nextBatchWatermarkMs":0}')


def _fill_sources(
    checkpoint: Path, manifest: Manifest, lists: Mapping[str, FileList], earlier: EarlierCheckpoints, interval: int
) -> None:  # fmt: skip
    """Write what each source keeps in the checkpoint."""
    known = manifest.known_sources
    for stream, offset in manifest.offsets.items():
        folder, state = checkpoint / "sources" / stream, known.get(stream)
        if stream == TICK:
            continue
        if has_list(offset):
            last, batch = batch_of(offset), -1 if state is None else state.batch
            files = [one for one in files_in(lists.get(stream, FileList())) if one.batch <= last]
            if batch < last:
                files += earlier.files(stream, batch, last)
            _write_list(folder, files, last, interval)
        else:
            stored = earlier.stored(stream, offset) if state is None else state.stored
            for name, text in stored.items():
                _write(folder / name, text.encode("latin-1"))


def _write_list(folder: Path, files: Sequence[ListedFile], last: int, interval: int) -> None:
    """Write a source's list of files as Spark does: a list of each batch since the newest compaction, and that one.

    Spark expects a compaction at each batch whose successor is a multiple of `interval`. It finds the interval of an
    existing list by the numbers of its compactions, so these must be such batches.
    """
    merged = (last + 1) // interval * interval - 1
    lists: dict[str, list[ListedFile]] = {} if merged < 0 else {f"{merged}{COMPACT}": []}
    lists |= {str(batch): [] for batch in range(merged + 1, last + 1)}
    for one in files:
        lists[f"{merged}{COMPACT}" if one.batch <= merged else str(one.batch)].append(one)
    for name, some in lists.items():
        _write(folder / name, b"\n".join((b"v1", *map(_encoder.encode, some))))


_encoder = msgspec.json.Encoder()


def copy_checkpoint(current: Path) -> Path:
    """Copy a driver's checkpoint for the successor of its query, and give the copy a query id of its own.

    The driver's other checkpoints are removed.

    Raises:
        OSError: it cannot be created.
    """
    root, claim = current.parent, _claim(current)
    for folder in _checkpoints(root):
        if _claim(folder) == claim and folder != current:
            shutil.rmtree(folder, ignore_errors=True)
    number = int(current.name.partition("-")[2] or 0) + 1
    copy = root / f".{claim}-{number}-{writer_token()}"
    copy.mkdir()
    _copy(current, copy)
    set_query_id(copy, streaming_query_id())
    return copy.rename(root / f"{claim}-{number:06}")


def set_query_id(checkpoint: Path, query: str) -> None:
    """Atomically set the id of the query that a checkpoint belongs to."""
    _write(checkpoint / "metadata", json.dumps({"id": query}))


def _claim(checkpoint: Path) -> str:
    """The number of the claim whose driver owns this checkpoint, as text from the folder's name."""
    return checkpoint.name.partition("-")[0]


def _checkpoints(root: Path) -> list[Path]:
    return sorted(folder for folder in root.iterdir() if _claim(folder).isdecimal())


def _copy(source: Path, target: Path) -> None:
    for name in _IN_ORDER:
        for folder, _, names in os.walk(source / name):
            place = target / Path(folder).relative_to(source)
            place.mkdir(parents=True)
            for file in _needed(names):
                _copy_file(f"{folder}/{file}", f"{place}/{file}")
    _copy_file(f"{source}/metadata", f"{target}/metadata")


def _needed(names: Iterable[str]) -> list[str]:
    """The files of a folder that Spark needs.

    Temporary files and checksums are left out; Spark works without checksums. Of a source's list of files, everything
    before the last but one compaction is left out. Spark needs the last two compactions to compute their interval.

    >>> _needed(["9.compact", "10", "11", "19.compact", "20", "29.compact", "30", ".30.crc"])
    ['19.compact', '20', '29.compact', '30']
    """
    shown = [name for name in names if not name.startswith(".")]
    merged = sorted(list_batch(name) for name in shown if name.endswith(COMPACT))
    first = merged[-2] if len(merged) > 1 else 0
    return [name for name in shown if not 0 <= list_batch(name) < first]


def _copy_file(source: str, target: str) -> None:
    try:
        # A hard link is safe, because Spark never writes into a file that already has its final name.
        os.link(source, target)
    except FileNotFoundError:
        return  # an old file that Spark has just removed
    except OSError:
        shutil.copyfile(source, target)


class Taken(NamedTuple):
    """End offsets of a batch by source name, and when Spark determined them, by its clock in µs (0: unknown)."""

    offsets: Offsets
    at_us: int


def read_taken(checkpoint: Path, batch: int) -> Taken:
    """The end offsets that Spark planned for a batch; no offsets for the batch before the first.

    Raises:
        CorruptError: the file is missing, or has a format that this version of Spark does not write.
    """
    if batch < 0:
        return Taken({}, 0)
    path = checkpoint / "offsets" / str(batch)
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise of_machine(error) or CorruptError(
            f"Spark's offsets of batch {batch}, {path}, cannot be read: {error}.",
            "Start the pond again: its driver makes the checkpoint from the log.",
        ) from error
    if not lines or lines[0] != "v2":
        raise CorruptError(f"{path} is not keyed by stream names.", "Use Spark 4.3 with source evolution on.")
    offsets: Offsets = {}
    for line in lines[2:]:
        name, _, offset = line.partition(":")
        if offset != "-":
            offsets[name] = offset
    try:
        return Taken(offsets, int(json.loads(lines[1])["batchTimestampMs"]) * 1000)
    except (IndexError, KeyError, TypeError, ValueError):
        return Taken(offsets, 0)


def read_offsets(checkpoint: Path, batch: int) -> Offsets:
    """End offsets of a batch; raises as `read_taken`."""
    return read_taken(checkpoint, batch).offsets


def check_names(offsets: Offsets, streams: Collection[str]) -> None:
    """Check that Spark's offsets are named by `streams`; otherwise Spark has lost the positions of these streams.

    Raises:
        OffsetGapError: an offset has another name.
    """
    strangers = sorted(offsets.keys() - {*streams, TICK})
    if strangers:
        raise OffsetGapError(
            f"Spark's offsets are of {', '.join(strangers)}, not of {', '.join(sorted(streams))}.",
            "Start the pond again: its driver makes the checkpoint from the log.",
        )


def query_id(checkpoint: Path) -> str:
    """The id of the streaming query that a checkpoint belongs to; "" if it has none or cannot be read."""
    try:
        return str(json.loads((checkpoint / "metadata").read_text())["id"])
    except (OSError, ValueError, KeyError):
        return ""


def _write(path: Path, content: str | bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    # The file is replaced, not overwritten, because another checkpoint of this driver may hold a hard link to it.
    with replaced(path) as draft:
        draft.write_bytes(content.encode() if isinstance(content, str) else content)
