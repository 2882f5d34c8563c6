"""The work of Spark's workers other than gather and fold."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest
from pyspark import cloudpickle

from kit.inputs.cases import STREAM
from millpond.errors import SetupError, SparkError, StoreError, from_text
from millpond.log.manifest import Manifest
from millpond.log.protocol import Run
from millpond.plan.groups.build import build_plan
from millpond.runtime.epoch import Setting, fold_task, gather_task
from millpond.runtime.inputs.without_shuffle import Route
from millpond.spark.driver.store_jobs import _PerInstance
from millpond.spark.driver.tasks import NOTHING_READ, _rows, direct_deltas_of
from millpond.spark.session import worker
from millpond.spark.session.worker import VersionChecked
from millpond.state.ports.files import Files

PROGRAM = """
import gc
from millpond.spark.session.worker import worker_task

for task in range(5):
    with worker_task():
        frozen, garbage = gc.get_freeze_count(), [task]
        garbage.append(garbage)
    del garbage
    print(frozen > 3 * len(gc.get_objects()), gc.collect() > 0)
"""


def test_loaded_objects_are_frozen_and_garbage_is_still_collected() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["True True"] * 5


HUNG_UP = """
import traceback
from millpond.spark.session.worker import worker_task

with worker_task():
    pass
for error in BrokenPipeError(32, "Broken pipe"), ValueError("an error"):
    try:
        raise error
    except Exception:
        traceback.print_exc()
raise ConnectionResetError("uncaught")
"""


def test_a_worker_prints_no_traceback_for_a_lost_jvm() -> None:
    printed = subprocess.run([sys.executable, "-c", HUNG_UP], capture_output=True, text=True, check=False).stderr
    assert "ValueError: an error" in printed and "Broken pipe" not in printed and "uncaught" not in printed


def test_a_large_packet_brings_empty_rows_so_that_rows_bound_the_bytes_of_a_batch() -> None:
    small, large = _rows(3, b"x" * 100), _rows(3, b"y" * 1_000_000)
    assert small.num_rows == 1 and 1_000_000 / large.num_rows < 1 << 14
    assert large.column(1).drop_null().to_pylist() == [b"y" * 1_000_000] and set(large.column(0).to_pylist()) == {3}


class _Later(VersionChecked):
    """A task function whose state another version cannot load."""

    def __init__(self) -> None:
        self.loads = _Unknown()


class _Unknown:
    def __reduce__(self) -> tuple[object, ...]:
        return _missing, ()


def _missing() -> None:
    raise AttributeError("another version lacks this")


def test_a_task_is_loaded_by_the_version_that_made_it() -> None:
    task = _PerInstance(open, [3], "address", "pond")  # type: ignore[arg-type]
    loaded = cloudpickle.loads(cloudpickle.dumps(task))
    assert {name: loaded.__dict__[name] for name in task.__dict__} == task.__dict__


def test_another_version_refuses_a_task_before_it_loads_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    sent = cloudpickle.dumps(_Later())
    with pytest.raises(AttributeError):
        cloudpickle.loads(sent)
    monkeypatch.setattr(worker, "VERSION", "0.1.9")
    with pytest.raises(SetupError, match=r"has Millpond 0.1.9, and the driver has 0") as caught:
        cloudpickle.loads(sent)
    read = from_text(f"PythonException: Traceback\nmillpond.errors.SetupError: {caught.value}\n\tat org.apache")
    assert read is not None and read.code == "MP-SETUP" and "spark.archives" in read.cure


class Unavailable(Files):
    """Files whose store has stopped answering."""

    def remove_messages(self, files: Iterable[str]) -> None:
        raise StoreError("The store does not answer.")


class Rows:
    """Stands for the rows of a direct epoch whose job returns nothing, or fails."""

    def __init__(self, error: Exception | None) -> None:
        self._error = error

    def map(self, *_: object, **__: object) -> Rows:
        return self

    def collect(self) -> list[tuple[bytes, ...]]:
        if self._error is not None:
            raise self._error
        return []


@pytest.mark.parametrize("error", [None, SparkError("Its tasks failed.")])
def test_messages_that_cannot_be_removed_change_nothing(tmp_path: Path, error: Exception | None) -> None:
    setting = Setting("p", str(tmp_path), str(tmp_path), (STREAM,), build_plan(()), None, 1, (0,))
    run = Run(0, "", Manifest(), False)
    tasks = gather_task(setting, run), fold_task(setting, run, "w"), lambda: Unavailable(tmp_path)
    rows, route = Rows(error), Route((0,), 1, "job", 1)
    if error is None:
        assert direct_deltas_of(rows, *tasks, route) == NOTHING_READ  # type: ignore[arg-type]
    else:
        with pytest.raises(SparkError, match="Its tasks failed"):
            direct_deltas_of(rows, *tasks, route)  # type: ignore[arg-type]
