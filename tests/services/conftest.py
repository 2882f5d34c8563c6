"""The program that brings a sink to the head of a log, for tests that kill it."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

PROGRAM = Path(__file__).with_name("sink_program.py")


@pytest.fixture(scope="session")
def program() -> ModuleType:
    """What the program is made of: the log, its rows, its sinks."""
    spec = importlib.util.spec_from_file_location("sink_program", PROGRAM)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def bring(tmp_path: Path) -> Callable[..., subprocess.Popen[bytes]]:
    """Starts a process that brings a sink of the pond in `tmp_path` to the head of its log."""

    def started(
        form: str, path: str = "", *, faults: str = "", patience: float = 0, **options: str
    ) -> subprocess.Popen[bytes]:
        (tmp_path / "faults").mkdir(exist_ok=True)
        environ = os.environ | {"MILLPOND_FAULT": faults, "MILLPOND_FAULT_DIR": str(tmp_path / "faults")}
        words = [sys.executable, str(PROGRAM), str(tmp_path), form, path, json.dumps(options), str(patience)]
        return subprocess.Popen(words, env=environ, stderr=subprocess.PIPE)

    return started


@pytest.fixture
def bring_killed(bring: Callable[..., subprocess.Popen[bytes]], tmp_path: Path) -> Callable[..., int]:
    """Brings a sink to the head by processes that are killed as `faults` say; how many processes that took."""

    def brought(form: str, path: str = "", *, faults: str, **more: str) -> int:
        planned = faults.count(":kill")
        for turn in range(planned + 2):
            process = bring(form, path, faults=faults, **more)
            _, said = process.communicate(timeout=120)
            if process.returncode == 0:
                assert len(list((tmp_path / "faults").glob("*.kill"))) == planned
                return turn + 1
            assert process.returncode == -9, said.decode()
        raise AssertionError("it does not come to an end")

    return brought
