"""The table of stores: addresses, what opens them, and stores of other packages."""

from __future__ import annotations

from pathlib import Path

import pytest

from kit.inputs.plugin_packages import install_plugin
from millpond.control.commands.doctor import check_store
from millpond.control.wiring.stores_and_followers import checked_store, instances_reach, open_store
from millpond.control.wiring.truth import open_truth
from millpond.errors import SetupError, StoreError
from millpond.log.locations.address import address_of
from millpond.plugins import imported
from millpond.state.backends.kinds import BUILT_IN, GROUP, StoreKind, forms, known_store, store_kind, store_path
from millpond.testing.conformance import check_bucket_store

STORE = """
from millpond.state.backends.kinds import StoreKind
from millpond.state.backends.memory import MemoryStore

class JarStore(MemoryStore):
    pass

def open_jar(context):
    assert context.address.startswith("jar") and context.path is not None
    context.path.parent.mkdir(parents=True, exist_ok=True)
    context.path.write_text(context.pond)
    return JarStore()

KIND = StoreKind(
    schemes=("jar",), form="`jar:PATH`", opens="millpond_jars:open_jar", reach="host", takes="path", file="jar"
)
"""


@pytest.mark.parametrize("kind", BUILT_IN, ids=lambda kind: kind.schemes[0])
def test_each_kind_can_be_imported_and_is_consistent(kind: StoreKind) -> None:
    for attribute in (kind.opens, kind.files, kind.keyed):
        assert attribute is None or callable(imported(f"the store {kind.schemes[0]}", attribute, kind.extra))
    assert (kind.takes == "path") is bool(kind.file)
    assert (kind.takes == "url") is (kind.reach == "network")
    assert {*kind.encrypted} <= {*kind.schemes}
    assert all(f"`{scheme}" in kind.form and scheme in forms() for scheme in kind.schemes)


def test_an_unknown_scheme_is_refused_and_all_are_named() -> None:
    for address in ("", "sqlite", "sqlite:x", "memory:x", "Redis://host"):
        assert known_store(address) is None
        with pytest.raises(StoreError, match="There is no store") as caught:
            store_kind(address)
        assert caught.value.cure == (
            "Use `lmdb`, `lmdb:PATH`, `redis://HOST:PORT` (or `rediss://`, `redis+sentinel://`) or `memory`."
        )
        with pytest.raises(StoreError):
            instances_reach(address)
    with pytest.raises(StoreError, match="no store 'sqlite://host'"):
        checked_store("sqlite://ann:secret@host")


def test_a_store_without_a_path_is_in_the_folder_of_the_pond(tmp_path: Path) -> None:
    assert store_path("lmdb", tmp_path) == tmp_path / "view" / "rows.lmdb"
    assert store_path(f"lmdb:{tmp_path}/x", Path("/p")) == tmp_path / "x"
    assert store_path("redis://host:1", tmp_path) is store_path("memory", tmp_path) is None


def test_a_package_registers_a_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install_plugin(tmp_path / "site", monkeypatch, GROUP, {"jar": "millpond_jars:KIND"}, millpond_jars=STORE)
    truth = open_truth(tmp_path / "pond")
    check_bucket_store(lambda: open_store("jar", truth, 1024))
    assert (tmp_path / "pond" / "view" / "jar").read_text() == truth.pond
    assert checked_store("jar:x") == f"jar:{Path.cwd()}/x"
    assert not instances_reach("jar")
    assert "`jar`" in forms()
    (tmp_path / "probe").mkdir()
    found = check_store("jar", address_of(tmp_path / "new"), tmp_path / "probe")
    assert found.what == "jar can be created, written and read"


def test_a_package_that_cannot_be_used_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    registered = {"broken": "millpond_broken:KIND", "lmdb": "millpond_jars:KIND", "text": "millpond_jars:open_jar"}
    broken = "import a_library_that_is_missing"
    install_plugin(tmp_path, monkeypatch, GROUP, registered, millpond_jars=STORE, millpond_broken=broken)
    for address, what in (
        ("broken:x", "'broken' of the package plugin .* cannot be imported: .*a_library_that_is_missing"),
        ("lmdb", "'lmdb' is taken twice: the package plugin .*, and by Millpond itself"),
        ("text", "'text' of the package plugin .* is a function, not a StoreKind"),
    ):
        with pytest.raises(SetupError, match=what) as caught:
            checked_store(address)
        assert caught.value.code == "MP-SETUP"
        assert caught.value.cure
    assert checked_store("memory") == "memory"
