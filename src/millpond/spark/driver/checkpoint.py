"""Manages Spark's checkpoints, one per driver: reads offsets, checks that they continue the log, and repairs them.

`foreachBatch` receives a batch number; the offsets are in a file that exists before the callback runs. With source
evolution on, `offsets/<batch>` holds "v2", a line of metadata, and then `name:offset` per source.

    <pond>/spark/<n>/                    of the driver whose claim is record n; copied from its predecessor's
    <pond>/spark/<n>-<m>/                of the m-th query that replaced another in that driver, see `replace_query`
        metadata, offsets/<batch>, commits/<batch>, sources/<name>/, digests.json (ours)

A fenced driver still writes for a moment, because Spark plans the next batch before it calls us. In a folder of its
own that is harmless. In a shared folder it could end the new driver's query, or determine that query's next batch.
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
from millpond.spark.reading.checkpoint_digests import DIGESTS, changed_files
from millpond.spark.reading.source_progress import COMPACT, list_batch

KEPT = 2
"""Number of drivers whose checkpoints are kept: the current one and the previous one, which may still be writing."""

_VERSION = re.compile(r"v\d+")
"""The first line of the files that Spark writes."""

_IN_ORDER = ("commits", "offsets", "sources")
"""The order in which folders are copied. Spark writes in the opposite order, so that a copy made while Spark writes
never refers to something that it lacks.
"""

_NO_METADATA = (
    '{"batchWatermarkMs":0,"batchTimestampMs":0,'
    # Spark treats a setting that is missing here as off, and would then read every source from its beginning.
    '"conf":{"spark.sql.streaming.queryEvolution.enableSourceEvolution":"true"},"sourceMetadataInfo":{}}'
)


def own_checkpoint(root: Path, claim: int, query: str = "") -> Path:
    """Create the checkpoint of the driver whose claim is record `claim`: a copy of the newest existing one, or empty.

    Checkpoints whose query id is `query`, the one in the log, or is missing are preferred, because a newer checkpoint
    may belong to a successor that never took over.

    Raises:
        PlaceError, DiskFullError: it cannot be created.
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
    lost = [folder for folder in found if folder.name >= mine.name]  # of claims that the log no longer has
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
    _copy_file(f"{source}/{DIGESTS}", f"{target}/{DIGESTS}")  # first: a newer list has no digest yet
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
    """Check that Spark's offsets are named by `streams`; otherwise Spark has lost the positions of these streams.

    Raises:
        OffsetGapError: an offset has another name.
    """
    strangers = sorted(offsets.keys() - {*streams, TICK})
    if strangers:
        raise OffsetGapError(
            f"Spark's offsets are of {', '.join(strangers)}, not of {', '.join(sorted(streams))}.",
            "Restore the folder `spark`, or run `millpond repair` to set it to the log.",
        )


def query_id(checkpoint: Path) -> str:
    """The id of the streaming query that a checkpoint belongs to; "" if it has none or cannot be read."""
    try:
        return str(json.loads((checkpoint / "metadata").read_text())["id"])
    except (OSError, ValueError, KeyError):
        return ""


def check_continues(checkpoint: Path, manifest: Manifest) -> None:
    """Check that Spark will continue where the log ends.

    Offsets alone do not show it. A file source numbers its batches 0, 1, …, and only the source's own list of files
    says what a number means. In an older checkpoint, the number at which the log ends may stand for files that were
    never read.

    Raises:
        OffsetGapError: the checkpoint was lost, damaged, restored or replaced, in whole or in part; or the log was.
    """
    if manifest.batch >= 0:
        known = query_id(checkpoint)
        if known != manifest.spark_query:
            _gap(f"{_whose(checkpoint, known)}; the log belongs to query {manifest.spark_query}", manifest)
        newest = max(_batches(checkpoint / "offsets"), default=-1)
        if newest < manifest.batch:
            _gap(f"its last batch is {newest}, the log's is {manifest.batch}", manifest)
        lacking = _lacking_sources(checkpoint, manifest.offsets)
        if lacking:
            _gap(f"it lacks the list of what {', '.join(lacking)} read", manifest)
    damaged = next(damaged_files(checkpoint), None)
    if damaged is not None:
        _gap(f"its file {damaged} is damaged", manifest)
    _check_log_is_newest(checkpoint, manifest)


def _whose(checkpoint: Path, query: str) -> str:
    if query:
        return f"it belongs to query {query}"
    path = checkpoint / "metadata"
    if path.exists():
        return f"its file {path} is damaged"
    return f"its file {path} is missing" if (checkpoint / "offsets").exists() else "it does not exist"


def _check_log_is_newest(checkpoint: Path, manifest: Manifest) -> None:
    """Check that Spark has committed no batch that the log lacks.

    Spark commits a batch only after its record was appended. So the log has lost whatever Spark has committed beyond
    it.
    """
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
    """Set the checkpoint so that the log's last epoch is Spark's last committed batch; return one sentence on what was
    done.

    Raises:
        OffsetGapError: a source keeps its own list of what it has read, and this list is lost or damaged.
    """
    newest = max(_batches(checkpoint / "commits"), default=-1)
    if manifest.batch < 0:
        for name in ("offsets", "commits", "sources"):
            shutil.rmtree(checkpoint / name, ignore_errors=True)
        (checkpoint / DIGESTS).unlink(missing_ok=True)
        return f"The log has no epoch (its last record is {manifest.n}), so Spark reads everything from the beginning."
    listed = [name for name, offset in manifest.offsets.items() if name != TICK and _needs_list(offset)]
    lacking = _lacking_sources(checkpoint, manifest.offsets)
    if query_id(checkpoint) not in ("", manifest.spark_query):  # where only the query id is lost, the lists are trusted
        lacking = listed
    damaged = [path for path in damaged_files(checkpoint) if path.parent.name in listed]
    if damaged and not lacking:
        raise OffsetGapError(
            f"Spark's checkpoint cannot be repaired: {damaged[0]} is damaged, and only it "
            f"has the list of what {damaged[0].parent.name} read.",
            "Restore that file, or the folder `spark` as new as the log, from a copy, or begin a new pond.",
        )
    if lacking:
        raise OffsetGapError(
            f"Spark's checkpoint cannot be repaired: only it has the list of what {', '.join(sorted(lacking))} read.",
            "Restore the folder `spark` from a copy as new as the log, or begin a new pond.",
        )
    set_query_id(checkpoint, manifest.spark_query)
    metadata = _any_metadata(checkpoint)
    for name in ("offsets", "commits"):
        shutil.rmtree(checkpoint / name, ignore_errors=True)
    offsets = {name: offset for name, offset in manifest.offsets.items() if name != TICK}
    lines = ["v2", metadata, *(f"{name}:{offset}" for name, offset in offsets.items())]
    # Spark also needs the last but one batch. It gets the same offsets, so that nothing lies between the two.
    for batch in range(max(manifest.batch - 1, 0), manifest.batch + 1):
        _write(checkpoint / "offsets" / str(batch), "\n".join(lines))
    _write(checkpoint / "commits" / str(manifest.batch), 'v1\n{"nextBatchWatermarkMs":0}')
    (checkpoint / DIGESTS).unlink(missing_ok=True)
    # Without an offset, the tick starts over.
    shutil.rmtree(checkpoint / "sources" / TICK, ignore_errors=True)
    before = f"from batch {newest} " if newest > manifest.batch else ""
    return (
        f"Spark's checkpoint was set {before}to batch {manifest.batch}, where the log ends (record {manifest.n}): "
        "it reads on from there."
    )


def damaged_files(checkpoint: Path) -> Iterator[Path]:
    """Files that Spark reads when it resumes from a checkpoint, and that are empty, truncated or changed.

    Spark fails at some of them, each with a different error that does not name the file, and trusts the others.
    """
    yield from changed_files(checkpoint)
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
    # The files of the Kafka source begin with a zero byte.
    return path.read_bytes().lstrip(b"\0").decode(errors="replace").splitlines()


def _are_offsets(lines: Sequence[str]) -> bool:
    return len(lines) > 2 and lines[0] == "v2" and _is_json(lines[1]) and all(map(_is_offset, lines[2:]))


def _is_offset(line: str) -> bool:
    """Whether a line has the form `source:offset`; the offset's format depends on the source and is mostly JSON."""
    _, named, offset = line.partition(":")
    return bool(named and offset) and (offset[0] not in "{[" or _is_json(offset))


def _is_commit(lines: Sequence[str]) -> bool:
    return len(lines) > 1 and _VERSION.fullmatch(lines[0]) is not None and _is_json(lines[-1])


def _is_list(lines: Sequence[str]) -> bool:
    """Whether a source's list has the right header and a complete last line; a compacted list has many lines."""
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
    """Whether the offset has a meaning only together with its source's own list, as for files and `rate`.

    >>> _needs_list('{"logOffset":3}'), _needs_list("17"), _needs_list('{"topic":{"0":5}}')
    (True, True, False)
    """
    try:
        value = json.loads(offset)
    except ValueError:
        return True
    return not isinstance(value, dict) or "logOffset" in value


def _lacking_sources(checkpoint: Path, offsets: Offsets) -> list[str]:
    """Sources whose own list ends before the offset."""
    lacking = []
    for name, offset in offsets.items():
        if name == TICK or not _needs_list(offset):
            continue
        value = json.loads(offset) if offset[:1] == "{" else {}
        if max(_batches(checkpoint / "sources" / name), default=-1) < value.get("logOffset", 0):
            lacking.append(name)
    return lacking


def _any_metadata(checkpoint: Path) -> str:
    """The second line of the newest readable offsets file: it holds settings that Spark keeps for the query's life."""
    for batch in sorted(_batches(checkpoint / "offsets"), reverse=True):
        lines = _lines(checkpoint / "offsets" / str(batch))
        if lines[:1] == ["v2"] and len(lines) > 1 and _is_json(lines[1]):
            return lines[1]
    return _NO_METADATA


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.with_name(f".{path.name}.crc").unlink(missing_ok=True)
    # The file is replaced, not overwritten, because another driver's checkpoint may hold a hard link to it.
    temporary = path.with_name(f".{path.name}-{writer_token()}")
    temporary.write_text(text)
    temporary.replace(path)
