"""Reports the CPU seconds of each test file at the end of `pytest -v`, the most expensive files first.

The processes that a test starts count too, with their descendants. What a process used that is killed and not waited
for is lost, so a file that ends the Java machine of earlier files may show too little. With `pytest -n` each worker
measures its own files.
"""

from __future__ import annotations

import os
from collections import defaultdict
from contextlib import suppress
from typing import Any

import pytest

_MOST = 40
"""Files that are shown."""


def used_below(root: int) -> float:
    """CPU seconds of a process and its descendants, and of those that have ended and were waited for."""
    children: dict[int, list[int]] = defaultdict(list)
    ticks = {}
    for entry in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError), open(f"/proc/{entry}/stat") as stat:  # or it has ended
            state = stat.read().rpartition(")")[2].split()  # from the third field on
            children[int(state[1])].append(int(entry))
            ticks[int(entry)] = sum(map(int, state[11:15]))
    total, left = 0, [root]
    while left:
        process = left.pop()
        total += ticks.get(process, 0)
        left += children[process]
    return total / os.sysconf("SC_CLK_TCK")


class FileCpu:
    """A plugin of pytest."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._seconds: dict[str, float] = defaultdict(float)
        self._leads = not hasattr(config, "workerinput") and config.getoption("numprocesses", None)
        self._file, self._before = "", 0.0

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """A test begins; what was used since the last file began is that file's."""
        file = nodeid.partition("::")[0]
        if file != self._file and not self._leads:
            self._close(file)

    def pytest_sessionfinish(self) -> None:
        """Close the last file, and send a worker's figures to the process that reports."""
        if not self._leads:
            self._close("")
        if hasattr(self._config, "workeroutput"):
            self._config.workeroutput["file_cpu"] = dict(self._seconds)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """A worker of pytest-xdist has ended."""
        self._seconds.update(getattr(node, "workeroutput", {}).get("file_cpu", {}))

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Print the figures."""
        terminalreporter.section(f"CPU seconds: {sum(self._seconds.values()):.0f}")
        for seconds, file in sorted(((one, file) for file, one in self._seconds.items()), reverse=True)[:_MOST]:
            terminalreporter.write_line(f"{seconds:8.1f} {file}")

    def _close(self, file: str) -> None:
        now = used_below(os.getpid())
        if self._file:
            self._seconds[self._file] += max(0.0, now - self._before)
        self._file, self._before = file, now
