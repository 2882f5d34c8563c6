"""The work of Spark's workers other than gather and fold."""

from __future__ import annotations

import subprocess
import sys

from millpond.spark.driver.tasks import _rows

PROGRAM = """
import gc
from millpond.spark.session.worker import worker_task

for task in range(5):
    with worker_task():
        frozen, garbage = gc.get_freeze_count(), [task]
        garbage.append(garbage)
    del garbage
    print(frozen > 10_000, gc.collect() > 0)
"""


def test_what_a_worker_has_loaded_is_not_gone_through_again_and_garbage_still_goes() -> None:
    told = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert told.stdout.splitlines() == ["True True"] * 5


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
"""


def test_a_worker_whose_jvm_has_hung_up_prints_no_trace_of_it() -> None:
    told = subprocess.run([sys.executable, "-c", HUNG_UP], capture_output=True, text=True, check=True).stderr
    assert "ValueError: an error" in told and "Broken pipe" not in told


def test_a_large_packet_brings_empty_rows_so_that_rows_bound_the_bytes_of_a_batch() -> None:
    small, large = _rows(3, b"x" * 100), _rows(3, b"y" * 1_000_000)
    assert small.num_rows == 1 and 1_000_000 / large.num_rows < 1 << 14
    assert large.column(1).drop_null().to_pylist() == [b"y" * 1_000_000] and set(large.column(0).to_pylist()) == {3}
