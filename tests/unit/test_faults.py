"""Faults: every step exists in the code, unknown ones fail, and a planned one happens once over all processes."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

import pytest

from millpond import faults
from millpond.faults import STEPS, FaultError, Faults, from_environment

SRC = Path(faults.__file__).parent


def steps_in_the_code() -> Counter[str]:
    """How often each step is named in a call of `reached`."""
    texts = (file.read_text(encoding="utf-8") for file in SRC.rglob("*.py"))
    calls = [
        node
        for text in texts if "reached(" in text
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "reached"
    ]
    return Counter(call.args[0].value for call in calls if isinstance(call.args[0], ast.Constant))


def test_each_fault_point_is_in_the_code_once() -> None:
    assert steps_in_the_code() == Counter(STEPS)


def test_nothing_happens_without_the_variable() -> None:
    assert from_environment({"MILLPOND_FAULT_DIR": "/nowhere"}) is None


def test_a_fault_happens_at_its_occurrence_once_over_all_processes(tmp_path: Path) -> None:
    one, other = (Faults("fold.start:3:raise", tmp_path) for _ in range(2))
    one.reached("fold.start")
    other.reached("fold.start")
    other.reached("fold.return")
    with pytest.raises(FaultError):
        one.reached("fold.start")
    other.reached("fold.start")
    assert (tmp_path / "fold.start.3.raise").exists()
    assert (tmp_path / "fold.start").stat().st_size == 4


@pytest.mark.parametrize("planned", ["fold.end:1:kill", "fold.start:x:kill", "fold.start:1:hang", "fold.start"])
def test_a_wrong_plan_is_refused(planned: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError):
        Faults(planned, tmp_path)


def test_an_unknown_step_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no step"):
        Faults("", tmp_path).reached("fold.end")
