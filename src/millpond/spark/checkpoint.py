"""What Spark's own checkpoint says of a batch: `foreachBatch` is told a number, the offsets stand in a file.

With source evolution on, `offsets/<batch>` is "v2", a line of metadata, then `name:offset` per source. The file
of a batch exists before its callback runs. Read through java.io or Hadoop alike: the folder may be anywhere.
"""

from __future__ import annotations

import json
from pathlib import Path

from millpond.errors import CorruptError
from millpond.log.records import Offsets


def read_offsets(checkpoint: Path, batch: int) -> Offsets:
    """End offsets of a batch by source name; {} for the batch before the first.

    Raises:
        CorruptError: the file is missing or of a form this Spark does not write.
    """
    if batch < 0:
        return {}
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
    return offsets


def query_id(checkpoint: Path) -> str:
    """The id Spark gave the streaming query when the checkpoint was made; "" before that."""
    try:
        return str(json.loads((checkpoint / "metadata").read_text())["id"])
    except (OSError, ValueError, KeyError):
        return ""
