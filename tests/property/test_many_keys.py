"""A million keys, and ten million, in one pond on one machine: counted, sampled, and their memory measured."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("many_keys_program.py")


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "keys",
    [pytest.param(1_000_000, marks=pytest.mark.slow), pytest.param(10_000_000, marks=pytest.mark.exhaustive)],
)
def test_a_pond_holds_very_many_text_keys_in_bounded_memory(keys: int, tmp_path: Path) -> None:
    # Seen: 219 MB for a million keys of two columns, 1.34 GB for ten, mapped files and all rows of the query included.
    run = subprocess.run([sys.executable, PROGRAM, tmp_path, str(keys)], check=True, capture_output=True, text=True)
    found = json.loads(run.stdout)
    again = range(0, keys, 999)
    assert found["rows"] == {"all": keys, "twice": len(again)}
    assert found["twice"] == [
        {"k": f"Kundin-{i}", "g": None if i % 5 == 0 else i % 7, "n": 2, "total": 2 * (i / 100)} for i in again
    ]
    assert found["key_rows"] == keys
    assert found["key_sections"] <= 3 * 8
    assert found["table_bytes"] <= 16 * keys + 4096
    assert found["peak_bytes"] < 250e6 + 150 * keys
