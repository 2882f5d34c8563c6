"""Decides which process of pytest-xdist runs a test file, so that few of them start a server or a session of Spark.

A broker of Kafka takes 8 CPU seconds to start, HDFS 12, a session of Spark about 20 until it is warm.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadFileScheduling

_SERVERS = ("kafka", "hdfs", "strict_s3")

_SERVER = re.compile(rf"(?<![.\w])({'|'.join(_SERVERS)})_(?:server|connected)\b")
"""Names of fixtures, not of modules of the kit."""

_SESSION = re.compile(r"[(, ]spark: SparkSession\b")

_LATE = ("crash", "hosts", "queries", "redis", "restart", "serve", "steps")

_LONG = {"kafka", "hdfs", *(f"tests/spark/test_{name}.py" for name in _LATE)}
"""Units that take several minutes, and files that take more than one and are late by name: one would run alone."""

_SESSIONS = 2
"""Processes with a session of Spark. One would be busy alone at the end, while its driver and Python wait in turns."""


class SharedServers(LoadFileScheduling):  # type: ignore[misc]
    """Distributes files as `--dist loadfile` does, but one process runs all files that share a server.

    Files that use a session of Spark go to two processes, as long as other files are left for the others. Long files
    come first, so that all processes end at about the same time.
    """

    def __init__(self, config: pytest.Config, log: Any = None) -> None:
        super().__init__(config, log)
        self._root = config.rootpath
        self._with_session: set[Any] = set()

    def _split_scope(self, nodeid: str) -> str:
        return unit_of_work(self._root, nodeid)

    def _assign_work_unit(self, node: Any) -> None:
        session = node in self._with_session or len(self._with_session) < _SESSIONS
        unit = next_unit(self._root, self.workqueue, session)
        if uses_session(self._root, unit):
            self._with_session.add(node)
        self.workqueue.move_to_end(unit, last=False)
        super()._assign_work_unit(node)


def unit_of_work(root: Path, nodeid: str) -> str:
    """What runs in one process: the tests that share this server, or else those of this file, relative to `root`."""
    file = nodeid.partition("::")[0]
    return _server_of(root / file) or file


def ended_server(root: Path, nodeid: str, following: str) -> str | None:
    """The server that no other process uses, nor this one after this test, because the `following` is of another unit.
    """
    unit = unit_of_work(root, nodeid)
    return unit if unit in _SERVERS and unit_of_work(root, following) != unit else None


def next_unit(root: Path, units: Iterable[str], session: bool) -> str:
    """Return the first unit that uses a session of Spark, or that uses none, long ones before others.

    If there is no such unit, it is the first one of the others.
    """
    return min(units, key=lambda unit: (uses_session(root, unit) != session, unit not in _LONG))


def uses_session(root: Path, unit: str) -> bool:
    """Whether tests of this unit use the shared session of Spark."""
    return unit in _SERVERS or _names_session(root / unit)


@cache
def _server_of(file: Path) -> str | None:
    found = _SERVER.search(file.read_text(encoding="utf-8"))
    return found[1] if found else None


@cache
def _names_session(file: Path) -> bool:
    return _SESSION.search(file.read_text(encoding="utf-8")) is not None
