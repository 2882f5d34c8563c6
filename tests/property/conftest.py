"""Shared fixtures of property tests."""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def _no_wait_for_disks(monkeypatch: pytest.MonkeyPatch) -> None:
    """No machine loses its power here, so nobody waits until bytes are on a disk: a tenth of the time."""
    monkeypatch.setattr(os, "fsync", lambda _file: None)


@pytest.fixture
def folders(tmp_path: Path) -> Iterator[Iterator[Path]]:
    """A new folder at each turn; those before are removed."""

    def fresh() -> Iterator[Path]:
        for i in itertools.count():
            shutil.rmtree(tmp_path / str(i - 1), ignore_errors=True)
            yield tmp_path / str(i)

    yield fresh()
