"""A compiled pond file of version 1 is read correctly; for `MILLPOND_GOLDEN=write` see test_formats."""

from __future__ import annotations

from kit.judges.stored_bytes import FORMATS, stored_bytes
from millpond.model import spec
from millpond.model.compiled_pond import Compiled, digest, from_json, to_json

FOLDER = FORMATS / "v1"


def test_a_compiled_file() -> None:
    stored_spec = spec.from_json((FOLDER / "spec.bin").read_text())
    compiled = Compiled(sql=digest("SELECT 1"), millpond="0.1.0", spec=stored_spec)
    stored = stored_bytes(FOLDER / "compiled.bin", to_json(compiled).encode()).decode()
    assert from_json(stored) == compiled
    assert to_json(compiled) == stored
