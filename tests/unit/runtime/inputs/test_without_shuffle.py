"""Tasks that exchange data through files in the pond's folder or in a store: completely, and with a time limit."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import sleep

import pytest

from kit.simulator.memory_files import MemoryFiles
from millpond.runtime.inputs import without_shuffle
from millpond.runtime.inputs.without_shuffle import TaskMessage, message_files, read_messages, send_message
from millpond.runtime.task.obstacle import Obstacle
from millpond.state.ports.files import CarriedFiles, Files

DELTA = "delta/00000000000000000007/0-writer-1.arrow"


@pytest.fixture(params=["a folder that every host sees", "a store"])
def hosts(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], Files]:
    """Files as a task opens them on its host."""
    if request.param != "a store":
        return lambda: Files(tmp_path)
    store, made = MemoryFiles(), iter(range(100))
    return lambda: CarriedFiles(tmp_path / f"host{next(made)}", store)


def of(task: int, size: int = 10) -> TaskMessage:
    return TaskMessage(task if task % 2 else None, [([task, 7], os.urandom(size)), ([0], b"")], task, size)


def test_each_task_hears_all_in_their_order(hosts: Callable[[], Files], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(without_shuffle, "PATIENCE", 120.0)
    names, given = message_files(7, "job", 4), [of(task, 100_000) for task in range(4)]

    def run(task: int) -> list[TaskMessage] | Obstacle:
        sleep(0.02 * (3 - task))
        files = hosts()
        send_message(files, names[task], given[task])
        return read_messages(files, names)

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(run, range(4))) == [given] * 4


def test_reading_messages_times_out(hosts: Callable[[], Files], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(without_shuffle, "PATIENCE", 0.05)
    monkeypatch.setattr(without_shuffle, "PATIENCE_PER_SECOND", 0.5)
    names = message_files(7, "job", 3)
    send_message(hosts(), message_files(7, "another", 3)[1], of(1))
    send_message(hosts(), names[1], of(1))
    assert read_messages(hosts(), names, 0.1) == Obstacle("2 of 3 tasks sent no message for 0 seconds")


def test_removing_messages_removes_nothing_else(hosts: Callable[[], Files], tmp_path: Path) -> None:
    names, other = message_files(7, "job", 3), message_files(7, "another", 1)
    for name in (*names[:2], *other):
        send_message(hosts(), name, of(0))
    hosts().write(DELTA, [b"delta"])
    hosts().remove_messages(names)
    assert hosts().read_messages([*names, *other])[:3] == [None] * 3
    assert hosts().read_messages(other) != [None]
    assert bytes(hosts().read(DELTA, 0, 5)) == b"delta"


def test_no_folder_remains(tmp_path: Path) -> None:
    names = message_files(7, "job", 1)
    send_message(Files(tmp_path), names[0], of(0))
    Files(tmp_path).remove_messages(names)
    assert os.listdir(tmp_path / "delta") == []
