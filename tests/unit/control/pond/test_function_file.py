"""The file of the operator's functions."""

from __future__ import annotations

from pathlib import Path

import pytest

from millpond.control.pond.function_file import VARIABLE, Declared, declared_functions
from millpond.errors import SetupError

DECLARED = """{"skew": {"module": "rules.shape:skew", "kind": "holistic", "takes": ["double"], "returns": "double",
"version": "2"}}"""


def test_a_file_declares_functions_by_name(tmp_path: Path) -> None:
    file = tmp_path / "functions.json"
    file.write_text(DECLARED)
    assert declared_functions({VARIABLE: str(file)}) == {
        "skew": Declared("rules.shape:skew", "holistic", ("double",), "double", "2")
    }
    assert declared_functions({}) == {}


@pytest.mark.parametrize(
    "text", ["{", '{"f": {}}', DECLARED.replace('"kind"', '"sort"'), DECLARED.replace('["double"]', "7")]
)
def test_an_unreadable_file_is_reported_with_its_path(tmp_path: Path, text: str) -> None:
    file = tmp_path / "functions.json"
    file.write_text(text)
    with pytest.raises(SetupError, match=r"functions\.json is no file of functions"):
        declared_functions({VARIABLE: str(file)})
    with pytest.raises(SetupError, match="is no file of functions"):
        declared_functions({VARIABLE: str(tmp_path / "none")})
