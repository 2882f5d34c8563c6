"""A compiled pond file of version 1 is read correctly; for `MILLPOND_GOLDEN=write` see test_formats."""

from __future__ import annotations

import os
from pathlib import Path

from millpond.model import spec
from millpond.model.compiled import Compiled, digest, from_json, to_json

FOLDER = Path(__file__).parent / "formats" / "v1"


def test_a_compiled_file() -> None:
    stored_spec = spec.from_json((FOLDER / "spec.bin").read_text())
    compiled = Compiled(sql=digest("SELECT 1"), millpond="0.1.0", spec=stored_spec)
    if os.environ.get("MILLPOND_GOLDEN") == "write":
        (FOLDER / "compiled.bin").write_text(to_json(compiled))
    stored = (FOLDER / "compiled.bin").read_text()
    assert from_json(stored) == compiled
    assert to_json(compiled) == stored
