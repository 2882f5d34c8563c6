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
import re
import shutil
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from millpond.errors import CorruptError, OffsetGapError, PlaceError, of_machine
from millpond.faults import reached
from millpond.ids import streaming_query_id, writer_token
from millpond.log.manifest import Manifest
from millpond.log.port import numbered_name
from millpond.log.protocol import TICK, same_offset
from millpond.log.records import Offsets
from millpond.spark.reading.source_progress import COMPACT, list_batch

KEPT = 2
"""Those of the driver at work and of the one before it: whoever is overtaken may still be at work there."""

_VERSION = re.compile(r"v\d+")
"""The first line of what Spark writes."""

_IN_ORDER = ("commits", "offsets", "sources")
"""Spark writes them in the opposite order, so a copy made while it does never names what it lacks."""

_NO_METADATA = (
    '{"batchWatermarkMs":0,"batchTimestampMs":0,'
    # Spark takes a setting that is not named here for off, and would read every source from its beginning
    '"conf":{"spark.sql.streaming.queryEvolution.enableSourceEvolution":"true"},"sourceMetadataInfo":{}}'
)


def own_checkpoint(root: Path, claim: int, query: str = "") -> Path:
    """The checkpoint of the driver whose claim is record `claim`: a copy of the newest older one, or empty.

    It is of the query that the log is of, or does not say, if any is: a newer one may be of a successor that has not
    taken over.

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
    found = _checkpoints(root)
    older = [folder for folder in found if folder.name < mine.name]
    lost = [folder for folder in found if folder.name >= mine.name]  # of claims that the log does not have any more
    copy = root / f".{mine.name}-{writer_token()}"
    copy.mkdir()
    if found:
        _copy(max(found, key=lambda folder: (query_id(folder) in (query, ""), folder.name)), copy)
    reached("claim.after")
    if mine in lost:
        lost[lost.index(mine)] = mine.rename(root / f".{mine.name}-{writer_token()}")
    copy.rename(mine)
    for folder in lost:
        shutil.rmtree(folder, ignore_errors=True)
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
    except (OSError, UnicodeDecodeError) as error:
        raise CorruptError(
            f"Spark's offsets of batch {batch}, {path}, cannot be read: {error}.", "Restore that file from a copy."
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
        OffsetGapError: the checkpoint was lost, damaged, restored or replaced, in whole or in part; or the log was.
    """
    if manifest.batch >= 0:
        known = query_id(checkpoint)
        if known != manifest.spark_query:
            _gap(f"{_whose(checkpoint, known)}, the log is of {manifest.spark_query}", manifest)
        newest = max(_batches(checkpoint / "offsets"), default=-1)
        if newest < manifest.batch:
            _gap(f"its last batch is {newest}, the log's is {manifest.batch}", manifest)
        lacking = _lacking_sources(checkpoint, manifest.offsets)
        if lacking:
            _gap(f"it lacks what {', '.join(lacking)} had read", manifest)
    damaged = next(damaged_files(checkpoint), None)
    if damaged is not None:
        _gap(f"its file {damaged} is damaged", manifest)
    _check_log_is_newest(checkpoint, manifest)


def _whose(checkpoint: Path, query: str) -> str:
    if query:
        return f"it is of query {query}"
    path = checkpoint / "metadata"
    if path.exists():
        return f"its file {path} is damaged"
    return f"its file {path} is missing" if (checkpoint / "offsets").exists() else "it is gone"


def _check_log_is_newest(checkpoint: Path, manifest: Manifest) -> None:
    """A batch is committed after its record was appended: what Spark has committed beyond the log, the log has lost."""
    batch = max(_batches(checkpoint / "commits"), default=-1)
    if batch < max(manifest.batch, 0) or not (checkpoint / "offsets" / str(batch)).exists():
        return
    ends = read_offsets(checkpoint, batch)
    more = sorted(name for name in ends.keys() - {TICK} if not same_offset(manifest.offsets.get(name), ends[name]))
    if more:
        raise OffsetGapError(
            f"The log is older than Spark's checkpoint: it ends at record {manifest.n}, and Spark has committed its "
            f"batch {batch}, which read more of {', '.join(more)}. The newest records of the log were lost, or it was "
            "restored from an older copy.",
            "Restore the folder `log` from a newer copy; or run `millpond repair`, which lets Spark go back to where "
            "the log ends and read the events of the lost records again, and compares the sinks with the log.",
        )


def repair(checkpoint: Path, manifest: Manifest) -> str:
    """Make the log's last epoch Spark's last committed batch; says what was done, in a sentence.

    Raises:
        OffsetGapError: a source keeps a list of what it has read, and the list is lost or damaged.
    """
    newest = max(_batches(checkpoint / "commits"), default=-1)
    if manifest.batch < 0:
        for name in ("offsets", "commits", "sources"):
            shutil.rmtree(checkpoint / name, ignore_errors=True)
        return f"The log has no epoch (its last record is {manifest.n}), so Spark reads everything from the beginning."
    listed = [name for name, offset in manifest.offsets.items() if name != TICK and _needs_list(offset)]
    lacking = _lacking_sources(checkpoint, manifest.offsets)
    if query_id(checkpoint) not in ("", manifest.spark_query):  # where only the name is lost, lists are believed
        lacking = listed
    damaged = [path for path in damaged_files(checkpoint) if path.parent.name in listed]
    if damaged and not lacking:
        raise OffsetGapError(
            f"Spark's checkpoint cannot be repaired: {damaged[0]} is damaged, and what {damaged[0].parent.name} had "
            "read stands only there.",
            "Restore that file, or the folder `spark` as new as the log, from a copy, or begin a new pond.",
        )
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
    before = f"from batch {newest} " if newest > manifest.batch else ""
    return (
        f"Spark's checkpoint was set {before}to batch {manifest.batch}, where the log ends (record {manifest.n}): "
        "it reads on from there."
    )


def damaged_files(checkpoint: Path) -> Iterator[Path]:
    """Those files that Spark reads when it goes on from a checkpoint, and that are empty or cut short.

    Spark itself fails with an error of its own at each of them, and does not say which.
    """
    metadata = checkpoint / "metadata"
    if metadata.exists() and not query_id(checkpoint):
        yield metadata
    for name, newest, is_whole in (("offsets", 2, _are_offsets), ("commits", 1, _is_commit)):
        for batch in sorted(_batches(checkpoint / name))[-newest:]:
            if not is_whole(_lines(checkpoint / name / str(batch))):
                yield checkpoint / name / str(batch)
    for folder in sorted((checkpoint / "sources").glob("*")):
        for name in _needed(os.listdir(folder)):
            if list_batch(name) >= 0 and not _is_list(_lines(folder / name)):
                yield folder / name


def _lines(path: Path) -> list[str]:
    # Kafka's own begin with a zero byte
    return path.read_bytes().lstrip(b"\0").decode(errors="replace").splitlines()


def _are_offsets(lines: Sequence[str]) -> bool:
    return len(lines) > 2 and lines[0] == "v2" and _is_json(lines[1]) and all(map(_is_offset, lines[2:]))


def _is_offset(line: str) -> bool:
    """Whether a line names a source and where it was; the text of that is its source's own, mostly JSON."""
    _, named, offset = line.partition(":")
    return bool(named and offset) and (offset[0] not in "{[" or _is_json(offset))


def _is_commit(lines: Sequence[str]) -> bool:
    return len(lines) > 1 and _VERSION.fullmatch(lines[0]) is not None and _is_json(lines[-1])


def _is_list(lines: Sequence[str]) -> bool:
    """Whether a source's list begins as one does, and its last line is whole; a merged list has many lines."""
    return bool(lines) and _VERSION.fullmatch(lines[0]) is not None and (len(lines) == 1 or _is_json(lines[-1]))


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


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
        lines = _lines(checkpoint / "offsets" / str(batch))
        if lines[:1] == ["v2"] and len(lines) > 1 and _is_json(lines[1]):
            return lines[1]
    return _NO_METADATA


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.with_name(f".{path.name}.crc").unlink(missing_ok=True)
    # Not in place: the file may be linked from another driver's checkpoint.
    temporary = path.with_name(f".{path.name}-{writer_token()}")
    temporary.write_text(text)
    temporary.replace(path)
