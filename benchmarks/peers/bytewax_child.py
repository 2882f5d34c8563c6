"""Starts as many processes of a dataflow as there are cores, and marks their common end; see `bytewax_flow.py`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path


def main(path: str, processes: str, seconds: str) -> None:
    """Run the dataflow, its state kept in recovery files every `seconds`."""
    with tempfile.TemporaryDirectory() as recovery:
        subprocess.run([sys.executable, "-m", "bytewax.recovery", recovery, processes], check=True)
        command = [sys.executable, "-m", "bytewax.testing", "bytewax_flow:flow", "-p", processes]
        variables = {**os.environ, "BYTEWAX_SPEC": path, "PYTHONPATH": str(Path(__file__).parent)}
        subprocess.run([*command, "-r", recovery, "-s", seconds, "-b", "0"], env=variables, check=False)
        kept = sum(found.stat().st_size for found in Path(recovery).rglob("*") if found.is_file())
    print("@" + json.dumps({"mark": "end", "state_bytes": kept}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
