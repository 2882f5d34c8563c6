"""Leaves modules without an example out of the collection of doctests, which would import each of them.

Six of seven files have no `>>>`, and `pytest -n` collects in each of its processes.
"""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path

import pytest
from _pytest.doctest import DoctestModule


class DoctestFiles:
    """A plugin of pytest."""

    @pytest.hookimpl(wrapper=True)
    def pytest_collect_file(self, file_path: Path) -> Generator[None, list[pytest.Collector], list[pytest.Collector]]:
        """Return the collectors of a file, without that of doctests if the file has no example."""
        collectors = yield
        if any(isinstance(one, DoctestModule) for one in collectors) and b">>>" not in file_path.read_bytes():
            return [one for one in collectors if not isinstance(one, DoctestModule)]
        return collectors
