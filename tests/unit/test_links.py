"""Symbolic links in a pond's folder: nothing outside is overwritten, created, or read as a file of the pond."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from millpond import local_path
from millpond.control.wiring.pond_reader import read_truth
from millpond.control.wiring.truth import open_truth
from millpond.errors import MillpondError
from millpond.followers.cursors import CursorFile
from millpond.log.cursor import Cursor
from millpond.service.api.service_files import Leader, Places
from millpond.service.server.leadership import LeadershipHints
from millpond.state.backends.lmdb import LmdbStore
from millpond.state.ports.files import Files


class Linked(NamedTuple):
    """A folder of a pond, and a file outside of it that nobody may touch."""

    pond: Path
    outside: Path


@pytest.fixture
def linked(tmp_path: Path) -> Linked:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_text("precious" * 10)
    (outside / "precious").chmod(0o600)
    (tmp_path / "pond").mkdir()
    return Linked(tmp_path / "pond", outside)


def opened(pond: Path) -> None:
    LmdbStore(pond / "view" / "rows.lmdb").close()


REFUSED: dict[str, Callable[[Path], object]] = {
    "pond.id": open_truth,
    "log/00000000000000000000": open_truth,
    "delta/00000000000000000001/0-a.arrow": lambda pond: Files(pond).write(
        "delta/00000000000000000001/0-a.arrow", [b"rows"]
    ),
    "view/rows.lmdb-lock": opened,
    "service/lock": lambda pond: LeadershipHints(Places(pond), Leader("", 0, "")).try_take_over(),
    "service/token": lambda pond: Places(pond).secret({}),
}


@pytest.mark.parametrize("to", ["precious", "absent"])
@pytest.mark.parametrize("name", REFUSED)
def test_a_file_is_not_opened_through_a_link(linked: Linked, name: str, to: str) -> None:
    if name.startswith("log"):
        open_truth(linked.pond)
    path = linked.pond / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(linked.outside / to)
    with pytest.raises(MillpondError) as error:
        REFUSED[name](linked.pond)
    if (name, to) != ("pond.id", "absent"):  # that is a folder with files and no pond
        assert error.value.code == "MP-PLACE"
        assert f"{path} is a symbolic link to {linked.outside / to}" in error.value.what
    assert path.is_symlink() and [file.name for file in linked.outside.iterdir()] == ["precious"]
    assert (linked.outside / "precious").read_text() == "precious" * 10


def test_a_client_sends_no_file_that_its_token_links_to(linked: Linked) -> None:
    places = Places(linked.pond)
    places.make()
    (places.folder / "token").symlink_to(linked.outside / "precious")
    with pytest.raises(MillpondError, match=r"MP-PLACE.*token is a symbolic link"):
        places.known_secret()


def test_of_a_file_that_is_replaced_the_link_is(linked: Linked) -> None:
    truth = open_truth(linked.pond)
    places = Places(linked.pond)
    places.make()
    (linked.pond / "cursors").mkdir()
    names = ("log/_last", "service/leader.json", "cursors/q.cursor")
    for name in names:
        (linked.pond / name).symlink_to(linked.outside / "precious")
    truth.log.write_hint(7)
    places.write_leader(Leader("http://h", 1, "t"))
    CursorFile(linked.pond / "cursors" / "q.cursor").write(Cursor(3))
    assert not any((linked.pond / name).is_symlink() for name in names)
    assert (linked.outside / "precious").read_text() == "precious" * 10


def test_a_folder_may_be_a_link_that_its_owner_made(linked: Linked) -> None:
    open_truth(linked.pond)
    opened(linked.pond)
    for name in ("log", "view"):
        (linked.pond / name).rename(linked.outside / name)
        (linked.pond / name).symlink_to(linked.outside / name)
    assert open_truth(linked.pond).manifest.n == -1
    opened(linked.pond)


@pytest.mark.parametrize("name", ["log", "delta", "view", "service", "spark", "out"])
def test_a_link_that_somebody_else_made_is_refused(linked: Linked, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    open_truth(linked.pond)
    if name == "log":
        (linked.pond / name).rename(linked.outside / name)
    (linked.pond / name).symlink_to(linked.outside / name)
    before = sorted(linked.outside.iterdir())
    monkeypatch.setattr(local_path, "_maker", lambda path: os.getuid() + 1)
    looks: list[Callable[[Path], object]] = [open_truth, read_truth] if name == "log" else [open_truth]
    looks += [lambda pond: Places(pond).secret({}), lambda pond: Places(pond).known_secret()] * (name == "service")
    for look in looks:
        with pytest.raises(MillpondError) as error:
            look(linked.pond)
        assert error.value.code == "MP-PLACE" and f"{linked.pond / name} is a symbolic link to" in error.value.what
    assert sorted(linked.outside.iterdir()) == before


def test_a_store_behind_a_link_of_another_user_is_not_opened(linked: Linked, monkeypatch: pytest.MonkeyPatch) -> None:
    (linked.outside / "empty").touch()
    (linked.outside / "rows.lmdb").symlink_to(linked.outside / "empty")
    monkeypatch.setattr(local_path, "_maker", lambda path: os.getuid() + 1)
    with pytest.raises(MillpondError, match=r"MP-PLACE.*rows.lmdb is a symbolic link to .*/empty"):
        LmdbStore(linked.outside / "rows.lmdb")
    assert (linked.outside / "empty").stat().st_size == 0
