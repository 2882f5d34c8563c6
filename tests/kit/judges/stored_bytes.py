"""Reads golden files of stored formats, and writes those that do not exist yet if `MILLPOND_GOLDEN` is `write`."""

from __future__ import annotations

import os
from pathlib import Path

FORMATS = Path(__file__).parents[2] / "golden" / "formats"
"""A folder for each version of the formats."""


def stored_bytes(path: Path, written_today: bytes) -> bytes:
    """The bytes of a golden file, which is never written again.

    What an earlier version wrote stays under test, also where today's version writes other bytes of the same meaning.
    A format that is not released yet changes by deleting its file first.
    """
    if os.environ.get("MILLPOND_GOLDEN") == "write" and not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(written_today)
    return path.read_bytes()
