"""Spark's checkpoints: one per driver. Reads a batch's offsets, checks that they continue the log, and repairs them.

`foreachBatch` receives a batch number; the offsets are in a file that exists before the callback runs. With source
evolution on, `offsets/<batch>` holds "v2", a line of metadata, and then `name:offset` per source.

    <pond>/spark/<n>/                    of the driver whose claim is record n, made from its predecessor's
    <pond>/spark/<n>-<m>/                of its m-th query that replaced another, see `handover`
        metadata, offsets/<batch>, commits/<batch>, sources/<name>/

A fenced driver writes for a moment longer, because Spark plans the next batch before it calls us. In a folder of its
own that is harmless. In a shared folder it could end its successor's query, or decide its next batch.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import NamedTuple

from millpond.errors import CorruptError, OffsetGapError, PlaceError, of_machine
from millpond.faults import reached
from millpond.ids import streaming_query_id, writer_token
from millpond.log.manifest import Manifest
from millpond.log.port import numbered_name
from millpond.log.protocol import TICK
from millpond.log.records import Offsets
from millpond.spark.seen import COMPACT, list_batch

KEPT = 2
"""Those of the driver at work and of the one before it: whoever is overtaken may still be at work there."""

_IN_ORDER = ("commits", "offsets", "sources")
"""Spark writes them in the opposite order, so a copy made while it does never names what it lacks."""

_NO_METADATA = (
    '{"batchWatermarkMs":0,"batchTimestampMs":0,'
    # Spark takes a setting that is not named here for off, and would read every source from its beginning
    '"conf":{"spark.sql.streaming.queryEvolution.enableSourceEvolution":"true"},"sourceMetadataInfo":{}}'
)


def own_checkpoint(root: Path, claim: int, query: str = "") -> Path:
    """The checkpoint of the driver whose claim is record `claim`: a copy of the newest older one, or empty.

    It is of the query that the log is of, if any is: a newer one may be of a successor that has not taken over.

    Raises:
        PlaceError, DiskFullError: it cannot be made.
    """
    mine = root / numbered_name(claim)
    try:
        _make(mine, query)
    except OSError as error:
        raise of_machine(error) or PlaceError(
            f"The checkpoint in {root.parent} failed: {error}.", "It must be a folder that the driver may write."
        ) from error
    return mine


def _make(mine: Path, query: str) -> None:
    root = mine.parent
    root.mkdir(parents=True, exist_ok=True)
    older = [folder for folder in _checkpoints(root) if folder.name < mine.name]
    copy = root / f".{mine.name}-{writer_token()}"
    copy.mkdir()
    if older:
        _copy(max(older, key=lambda folder: (query_id(folder) == query, folder.name)), copy)
    reached("claim.after")
    copy.rename(mine)
    claims = sorted({_claim(folder) for folder in older})
    for folder in older:
        if _claim(folder) in claims[: 1 - KEPT]:
            shutil.rmtree(folder, ignore_errors=True)
    for left in root.glob(".*-*"):
        if left.name[1:] <= mine.name:
            shutil.rmtree(left, ignore_errors=True)


def next_checkpoint(current: Path) -> Path:
    """A copy of a driver's checkpoint, for the query that is to follow, with an id of its own; older ones go.

    Raises:
        OSError: it cannot be made.
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
    """Say of which query a checkpoint is, in one step."""
    _write(checkpoint / "metadata", json.dumps({"id": query}))


def _claim(checkpoint: Path) -> str:
    """The number of the claim whose driver has this checkpoint, as it stands in names."""
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
    """Those of a folder's files that Spark reads: none that is temporary or a checksum (it does without), of a source's
    list none that was merged, from the last merge but one on: the two tell Spark how far apart they are.

    >>> _needed(["9.compact", "10", "11", "19.compact", "20", "29.compact", "30", ".30.crc"])
    ['19.compact', '20', '29.compact', '30']
    """
    shown = [name for name in names if not name.startswith(".")]
    merged = sorted(list_batch(name) for name in shown if name.endswith(COMPACT))
    first = merged[-2] if len(merged) > 1 else 0
    return [name for name in shown if not 0 <= list_batch(name) < first]


def _copy_file(source: str, target: str) -> None:
    try:
        # Spark never writes into a file that has its name already
        os.link(source, target)
    except FileNotFoundError:
        return  # an old one that Spark has just removed
    except OSError:
        shutil.copyfile(source, target)


class Taken(NamedTuple):
    """End offsets of a batch by source name, and when Spark took them, by its clock (0: it does not tell)."""

    offsets: Offsets
    at_us: int


def read_taken(checkpoint: Path, batch: int) -> Taken:
    """What Spark took for a batch; nothing for the batch before the first.

    Raises:
        CorruptError: the file is missing or of a form this Spark does not write.
    """
    if batch < 0:
        return Taken({}, 0)
    path = checkpoint / "offsets" / str(batch)
    try:
        lines = path.read_text().splitlines()
    except OSError as error:
        raise CorruptError(
            f"Spark's offsets of batch {batch} cannot be read: {error}.", "Restore it."
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
    """Make sure that Spark keeps offsets by the names of `streams`; otherwise it has lost what they had read.

    Raises:
        OffsetGapError: it names something else.
    """
    strangers = sorted(offsets.keys() - {*streams, TICK})
    if strangers:
        raise OffsetGapError(
            f"Spark's offsets are of {', '.join(strangers)}, not of {', '.join(sorted(streams))}.",
            "Restore the folder `spark`, or run `millpond repair` to set it to the log.",
        )


def query_id(checkpoint: Path) -> str:
    """The id Spark gave the streaming query when the checkpoint was made; "" before that."""
    try:
        return str(json.loads((checkpoint / "metadata").read_text())["id"])
    except (OSError, ValueError, KeyError):
        return ""


def check_continues(checkpoint: Path, manifest: Manifest) -> None:
    """Make sure that Spark will go on where the log ends; offsets alone cannot tell.

    A file source calls its batches 0, 1, …, and what a number means stands in its own list of files. An older
    checkpoint may give the number in which the log ends to files that were never read.

    Raises:
        OffsetGapError: the checkpoint was lost, restored or replaced, in whole or in part.
    """
    if manifest.batch < 0:
        return
    known = query_id(checkpoint)
    if known != manifest.spark_query:
        _gap(f"it is {f'of query {known}' if known else 'gone'}, the log is of {manifest.spark_query}", manifest)
    newest = max(_batches(checkpoint / "offsets"), default=-1)
    if newest < manifest.batch:
        _gap(f"its last batch is {newest}, the log's is {manifest.batch}", manifest)
    lacking = _lacking_sources(checkpoint, manifest.offsets)
    if lacking:
        _gap(f"it lacks what {', '.join(lacking)} had read", manifest)


def repair(checkpoint: Path, manifest: Manifest) -> None:
    """Make the log's last epoch Spark's last committed batch.

    Raises:
        OffsetGapError: a source keeps a list of what it has read, and the list is lost.
    """
    if manifest.batch < 0:
        for name in ("offsets", "commits", "sources"):
            shutil.rmtree(checkpoint / name, ignore_errors=True)
        return
    listed = [name for name, offset in manifest.offsets.items() if name != TICK and _needs_list(offset)]
    lacking = _lacking_sources(checkpoint, manifest.offsets)
    if query_id(checkpoint) != manifest.spark_query:
        lacking = listed
    if lacking:
        raise OffsetGapError(
            f"Spark's checkpoint cannot be repaired: what {', '.join(sorted(lacking))} had read stands only there.",
            "Restore the folder `spark` from a copy as new as the log, or begin a new pond.",
        )
    set_query_id(checkpoint, manifest.spark_query)
    metadata = _any_metadata(checkpoint)
    for name in ("offsets", "commits"):
        shutil.rmtree(checkpoint / name, ignore_errors=True)
    offsets = {name: offset for name, offset in manifest.offsets.items() if name != TICK}
    lines = ["v2", metadata, *(f"{name}:{offset}" for name, offset in offsets.items())]
    # Spark also wants the batch before the last: with the same offsets, so nothing lies between the two
    for batch in range(max(manifest.batch - 1, 0), manifest.batch + 1):
        _write(checkpoint / "offsets" / str(batch), "\n".join(lines))
    _write(checkpoint / "commits" / str(manifest.batch), 'v1\n{"nextBatchWatermarkMs":0}')
    # without an offset, the tick begins anew
    shutil.rmtree(checkpoint / "sources" / TICK, ignore_errors=True)


def _gap(what: str, manifest: Manifest) -> None:
    raise OffsetGapError(
        f"Spark's checkpoint does not continue the log, which ends at record {manifest.n}: {what}.",
        "Restore the folder `spark`, or run `millpond repair` to set it to the log.",
    )


def _batches(folder: Path) -> list[int]:
    try:
        return [batch for name in os.listdir(folder) if (batch := list_batch(name)) >= 0]
    except FileNotFoundError:
        return []


def _needs_list(offset: str) -> bool:
    """Whether the offset means something only together with what its source keeps: files and `rate` do so.

    >>> _needs_list('{"logOffset":3}'), _needs_list("17"), _needs_list('{"topic":{"0":5}}')
    (True, True, False)
    """
    try:
        value = json.loads(offset)
    except ValueError:
        return True
    return not isinstance(value, dict) or "logOffset" in value


def _lacking_sources(checkpoint: Path, offsets: Offsets) -> list[str]:
    """Sources whose own list does not reach the offset."""
    lacking = []
    for name, offset in offsets.items():
        if name == TICK or not _needs_list(offset):
            continue
        value = json.loads(offset) if offset[:1] == "{" else {}
        if max(_batches(checkpoint / "sources" / name), default=-1) < value.get("logOffset", 0):
            lacking.append(name)
    return lacking


def _any_metadata(checkpoint: Path) -> str:
    """The second line of the newest offsets that are there: it holds settings that Spark keeps to."""
    for batch in sorted(_batches(checkpoint / "offsets"), reverse=True):
        lines = (checkpoint / "offsets" / str(batch)).read_text().splitlines()
        if lines[:1] == ["v2"] and len(lines) > 1:
            return lines[1]
    return _NO_METADATA


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.with_name(f".{path.name}.crc").unlink(missing_ok=True)
    # Not in place: the file may be linked from another driver's checkpoint.
    temporary = path.with_name(f".{path.name}-{writer_token()}")
    temporary.write_text(text)
    temporary.replace(path)
