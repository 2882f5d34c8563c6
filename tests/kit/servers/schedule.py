"""Lets one process of pytest-xdist run all test files that share a server, so that only this process starts it.

A broker of Kafka takes 8 CPU seconds to start, HDFS 12. Other files are distributed as by `--dist loadfile`.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

_SERVER = re.compile(r"(?<![.\w])(kafka|hdfs)_(?:server|connected)\b")
"""Names of fixtures, not of modules of the kit."""


def unit_of_work(root: Path, nodeid: str) -> str:
    """What runs in one process: the tests that share this server, or else those of this file, relative to `root`."""
    file = nodeid.partition("::")[0]
    return _server_of(root / file) or file


@cache
def _server_of(file: Path) -> str | None:
    found = _SERVER.search(file.read_text(encoding="utf-8"))
    return found[1] if found else None
