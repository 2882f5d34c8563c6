"""A folder with a guessable name is used only if it belongs to this user; otherwise another one is created."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from millpond.state.ports.private_folder import is_own, own_folder


def mode(folder: Path) -> int:
    return stat.S_IMODE(folder.lstat().st_mode)


@pytest.fixture
def name(tmp_path: Path) -> Path:
    return tmp_path / f"millpond-{os.getuid()}"


def test_the_own_folder_is_private_and_is_kept(tmp_path: Path, name: Path) -> None:
    assert own_folder(tmp_path) == name
    assert mode(name) == 0o700
    (name / "table").touch()
    own_folder.cache_clear()
    assert own_folder(tmp_path) == name
    assert (name / "table").exists()


def test_one_of_an_earlier_version_is_closed_to_others(tmp_path: Path, name: Path) -> None:
    name.mkdir(mode=0o755)
    assert own_folder(tmp_path) == name
    assert mode(name) == 0o700


def test_a_folder_that_others_may_write_is_not_used(tmp_path: Path, name: Path) -> None:
    name.mkdir()
    name.chmod(0o777)
    assert not is_own(name)
    made = own_folder(tmp_path)
    assert made != name and made.parent == tmp_path and mode(made) == 0o700
    assert own_folder(tmp_path) == made, "one for this process"


def test_a_link_is_not_used(tmp_path: Path, name: Path) -> None:
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    name.symlink_to(tmp_path / "elsewhere")
    assert not is_own(name)
    made = own_folder(tmp_path)
    assert made.name.startswith(f"{name.name}-")
    assert not [*(tmp_path / "elsewhere").iterdir()]


def test_somebody_elses_folder_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = os.getuid() + 1
    (tmp_path / f"millpond-{other}").mkdir(mode=0o700)  # by this user
    monkeypatch.setattr(os, "getuid", lambda: other)
    assert not is_own(tmp_path / f"millpond-{other}")
    assert own_folder(tmp_path).name.startswith(f"millpond-{other}-")


def test_what_cannot_be_made_is_not_own(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert not is_own(tmp_path / "file")
    assert not is_own(tmp_path / "file" / "below")
    assert is_own(tmp_path / "a" / "b")
