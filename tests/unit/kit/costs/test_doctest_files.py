"""Doctests are collected from files with an example only, and a file without one is not imported."""

from pathlib import Path

import pytest


@pytest.mark.parametrize(("text", "kinds"), [
    ('"""No example."""', ["Module"]),
    ('"""One.\n\n>>> 1 + 1\n2\n"""', ["DoctestModule", "Module"]),
])  # fmt: skip
def test_files_without_an_example_have_no_doctests(
    text: str, kinds: list[str], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    file = tmp_path / "test_written.py"
    file.write_text(text, encoding="utf-8")
    found = request.config.hook.pytest_collect_file(file_path=file, parent=request.session)
    assert sorted(type(one).__name__ for one in found) == kinds
