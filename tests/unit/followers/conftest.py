"""A pond of a few records, made by hand, for the tests of followers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kit.inputs.hand_made_pond import HandMadePond, row_of


@pytest.fixture
def pond(tmp_path: Path) -> HandMadePond:
    return HandMadePond(tmp_path / "pond")


@pytest.fixture
def make_row() -> Any:
    return row_of
