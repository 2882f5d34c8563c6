"""Plug-ins whose registered names lead to modules that cannot be imported: one error for stores, sources and sinks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from kit.inputs.plugin_packages import install_plugin
from millpond.control.checks.input_files import check_files
from millpond.control.wiring.stores_and_followers import files_on_network, keyed_rows, open_store
from millpond.control.wiring.truth import open_truth
from millpond.errors import SetupError, StoreError
from millpond.followers.record_rows import RowsReader
from millpond.followers.sinks.make_sink import sink_follower
from millpond.model.endpoints import Sink, Source
from millpond.model.query import Query
from millpond.model.stream import Field, Stream
from millpond.model.windows import Sliding
from millpond.plugins import imported
from millpond.spark.reading.columns_of_sources import ReadColumns
from millpond.spark.reading.read_frame import load

BROKEN = {
    "a library is missing": ("import a_library_that_is_missing", "ModuleNotFoundError.*a_library_that_is_missing"),
    "its code fails": ("1 / 0", "ZeroDivisionError"),
    "the name is wrong": ("", "AttributeError.*opens"),
}
KINDS = """
from millpond.model.endpoints import SourceKind
from millpond.sinks import SinkKind
from millpond.state.backends.kinds import StoreKind

STORE = StoreKind(
    schemes=("jar",), form="jar:PATH", opens="broken_part:opens", reach="network", takes="nothing",
    files="broken_part:opens", keyed="broken_part:opens",
)
SINK = SinkKind(name="jar", opens="broken_part:opens")
SOURCE = SourceKind(name="jar", options=("path",), files=True, prepare="broken_part:opens", look="broken_part:opens")
"""
STREAM = Stream("tx", (Field("ts", "timestamp"),), Source("jar", (("path", "/nowhere"),)))


def open_sink(tmp_path: Path) -> object:
    query = Query("q", "s", "ts", 0, Sliding(1, 1), (), (), (), sink=Sink("jar"))
    return sink_follower(query, "p", cast(RowsReader, None), tmp_path)


USES: dict[str, Callable[[Path], object]] = {
    "store": lambda folder: open_store("jar", open_truth(folder / "pond"), 1),
    "files of a store": lambda _: files_on_network("jar", "p", ("0",)),
    "rows in a store": lambda _: keyed_rows("jar", None)(),
    "sink": open_sink,
    "look of a source": lambda _: check_files([ReadColumns(STREAM, frozenset(), frozenset())]),
    "source": lambda _: load(cast(Any, None), STREAM),
}


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("broken", BROKEN)
def test_a_plugin_that_cannot_be_imported_is_a_problem_of_the_setup(
    use: str, broken: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text, reason = BROKEN[broken]
    for group, name in (("stores", "STORE"), ("sinks", "SINK"), ("sources", "SOURCE")):
        modules = {"jar_plugin": KINDS, "broken_part": text}
        points = {"jar": f"jar_plugin:{name}"}
        install_plugin(tmp_path / group, monkeypatch, f"millpond.{group}", points, group, **modules)
    what = use.split()[-1]
    with pytest.raises(SetupError, match=rf"\[MP-SETUP\] The {what} jar needs broken_part:opens.* {reason}") as caught:
        USES[use](tmp_path)
    assert "Reinstall" in caught.value.cure


def test_a_library_that_is_missing_is_named_with_its_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "needs_a_library.py").write_text("import a_library_that_is_missing")
    with pytest.raises(StoreError, match=r"library for redis is missing: .*a_library_that_is_missing"):
        imported("the store x", "needs_a_library:opens", "redis", StoreError)


def test_a_module_of_millpond_that_cannot_be_imported_is_a_bug() -> None:
    with pytest.raises(ModuleNotFoundError):
        imported("the store x", "millpond.no_such_module:opens", None)
    with pytest.raises(AttributeError):
        imported("the store x", "millpond.plugins:no_such_name", None)
