"""The stores of a pond are opened together, or none is left open."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from millpond.control.wiring.stores_and_followers import open_rows
from millpond.control.wiring.truth import open_truth
from millpond.errors import StoreError
from millpond.model.change_history import ChangeEffects
from millpond.model.spec import PondSpec


def test_a_store_that_is_away_leaves_the_others_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    truth = open_truth(tmp_path)
    spec = replace(PondSpec((), (), 1, 4), changed=ChangeEffects(places=(("", 2), ("env:SECOND", 2))))
    monkeypatch.setenv("SECOND", "redis://127.0.0.1:1")
    for _ in range(2):
        with pytest.raises(StoreError, match=r"127\.0\.0\.1:1"):
            open_rows("lmdb", truth, spec)
    monkeypatch.setenv("SECOND", "memory")
    open_rows("lmdb", truth, spec).close()
