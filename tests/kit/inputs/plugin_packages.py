"""Installs a package with entry points into a folder, as pip would."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

import pytest


def install_plugin(
    folder: Path, monkeypatch: pytest.MonkeyPatch, group: str, points: Mapping[str, str], package: str = "plugin",
    **modules: str,
) -> None:  # fmt: skip
    """Installs a package with these modules (name and text) and entry points of one group.

    The end of the test removes the package and its modules.
    """
    described = folder / f"{package}-1.0.dist-info"
    described.mkdir(parents=True)
    (described / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    lines = [f"[{group}]", *(f"{name} = {value}" for name, value in points.items())]
    (described / "entry_points.txt").write_text("\n".join(lines) + "\n")
    for name, text in modules.items():
        (folder / f"{name}.py").write_text(text)
        monkeypatch.delitem(sys.modules, name, raising=False)
        monkeypatch.setitem(sys.modules, name, None)  # so that undo removes the module that is imported meanwhile
        del sys.modules[name]
    monkeypatch.syspath_prepend(str(folder))
