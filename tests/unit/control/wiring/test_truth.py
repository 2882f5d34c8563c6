"""Two processes that create a pond at one address at once share it."""

from __future__ import annotations

from pathlib import Path

import pytest

from millpond.control.wiring import truth
from millpond.log.locations.address import Address


def test_two_processes_may_create_a_pond_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    others = list[truth.Truth]()
    looked = truth.holds_log

    def beside(address: Address) -> bool:
        if not others:
            monkeypatch.setattr(truth, "holds_log", looked)
            others.append(truth.open_truth(address))
        return looked(address)

    monkeypatch.setattr(truth, "holds_log", beside)
    assert truth.open_truth(tmp_path / "pond").pond == others[0].pond
