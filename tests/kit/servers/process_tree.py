"""The child processes of a process, as Linux lists them now; a process that ends meanwhile has none."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path


def children(parent: int) -> dict[int, str]:
    """Return the process ids of the children, with their command lines; both may be gone when they are used."""
    found = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # ended since the folder was listed
            if int(stat.read_text().rpartition(")")[2].split()[1]) == parent:
                words = (stat.parent / "cmdline").read_bytes().split(b"\0")
                found[int(stat.parent.name)] = b" ".join(words).decode()
    return found
