"""The program that advances a sink to the head of a log, for tests that kill it."""

from __future__ import annotations

import json
import os
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

from kit.programs.forked_program import ForkedProgram
from kit.servers.hook_server import HookServer
from millpond.connections import VARIABLE
from millpond.testing import sink_program


@pytest.fixture(scope="session")
def program() -> ModuleType:
    """The log and its rows, and what applies it to a sink."""
    return sink_program


@pytest.fixture
def bring(tmp_path: Path) -> Callable[..., subprocess.Popen[bytes]]:
    """Starts a process that brings a sink of the pond in `tmp_path` to the head of its log."""

    def started(
        form: str, path: str = "", *, faults: str = "", patience: float = 0, **options: str
    ) -> subprocess.Popen[bytes]:
        (tmp_path / "faults").mkdir(exist_ok=True)
        environ = os.environ | {"MILLPOND_FAULT": faults, "MILLPOND_FAULT_DIR": str(tmp_path / "faults")}
        words = [str(tmp_path), form, path, json.dumps(options), str(patience)]
        return ForkedProgram(["-m", sink_program.__name__, *words], env=environ, stderr=subprocess.PIPE)

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


@pytest.fixture
def hook_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HookServer]:
    """A server of HTTP, as the only address that the settings name, with a patience of half a second."""
    with HookServer() as made:
        thread = threading.Thread(target=made.serve_forever)
        thread.start()
        url = f"http://127.0.0.1:{made.server_address[1]}/rows"
        hook = {"kind": "http", "url": url, "seconds": 0.5, "headers": {"authorization": {"env": "SECRET"}, "a": "b"}}
        (tmp_path / "connections.json").write_text(json.dumps({"hook": hook}))
        monkeypatch.setenv(VARIABLE, str(tmp_path / "connections.json"))
        monkeypatch.setenv("SECRET", "Bearer x")
        yield made
        made.closing.set()
        made.shutdown()
        thread.join()
