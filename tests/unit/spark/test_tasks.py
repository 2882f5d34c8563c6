"""What Spark's workers do beside gather and fold."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import gc
from millpond.spark.tasks import with_code

for task in range(5):
    with with_code():
        frozen, garbage = gc.get_freeze_count(), [task]
        garbage.append(garbage)
    del garbage
    print(frozen > 10_000, gc.collect() > 0)
"""


def test_what_a_worker_has_loaded_is_not_gone_through_again_and_garbage_still_goes() -> None:
    told = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert told.stdout.splitlines() == ["True True"] * 5
