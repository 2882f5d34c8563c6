"""Sinks that packages register by entry points: found by name, and refused with a reason if they are wrong."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kit.inputs.plugin_packages import install_plugin
from millpond.control.commands.doctor import check_sink_packages
from millpond.errors import RequestError, SetupError, UnsupportedQuery
from millpond.followers.record_rows import RowsReader
from millpond.followers.sinks.kinds import KINDS, declared_names, sink_kind
from millpond.followers.sinks.make_sink import sink_cursor, sink_follower
from millpond.model.endpoints import Sink
from millpond.model.query import Query
from millpond.model.windows import Sliding
from millpond.service.api.messages import check_sink_names

LINES = """
from millpond.sinks import FileDelivery, SinkContext, SinkKind

KIND = SinkKind(name="lines", opens="lines_sink:LinesSink.open", options=("color",), path="file", repeats=True)


class LinesSink(FileDelivery):
    @classmethod
    def open(cls, context):
        made = cls(context.query.name, context.rows, "The file", context.cursor_file, context.since)
        made._out = context.path
        return made

    def _hand_over(self, record, table):
        with self._out.open("a") as file:
            file.write("".join(f"{n} {row}\\n" for n, row in enumerate(table.to_pylist())))
"""

Install = Callable[..., None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Installs a package of one module `lines_sink`, with the entry points that are given, in a folder of its own."""

    def installed(text: str = LINES, package: str = "lines", **sinks: str) -> None:
        points = sinks or {"lines": "lines_sink:KIND"}
        install_plugin(tmp_path / package, monkeypatch, "millpond.sinks", points, package, lines_sink=text)

    return installed


def into(sink: Sink) -> Query:
    return Query("q", "s", "ts", 0, Sliding(1, 1), (), (), (), sink=sink)


def test_a_sink_of_a_package_is_found_opened_and_followed(
    install: Install, pond: Any, make_row: Any, tmp_path: Path
) -> None:
    with pytest.raises(UnsupportedQuery, match="There is no sink lines"):
        sink_kind("lines")
    install()
    assert "lines" in declared_names() and "lines_sink" not in sys.modules, "names are known without an import"
    query = into(Sink("lines", str(tmp_path / "out")))
    pond.claim()
    pond.epoch({"q": [make_row("a", 1.5), make_row("b", 2.5)]})
    follower = sink_follower(query, "p", RowsReader(pond.read_section), tmp_path / "cursors")
    assert sink_cursor(query, tmp_path / "cursors") == -1
    pond.feed(follower)
    assert sink_cursor(query, tmp_path / "cursors") == follower.cursor().n == 1
    assert len((tmp_path / "out").read_text().splitlines()) == 2
    assert (tmp_path / "cursors" / "q.lines").is_file()


def test_the_network_may_not_name_a_sink_of_a_package_that_does_not_say_so(install: Install) -> None:
    install()
    for unknown in (True, False):
        with pytest.raises(RequestError, match="cannot have 'lines' as its sink"):
            check_sink_names("lines", None, unknown=unknown)
    install(package="other", far="lines_sink:KIND")
    with pytest.raises(SetupError, match="has another name, lines, in its SinkKind"):
        check_sink_names("far", None, unknown=True)


def test_the_network_may_name_a_sink_of_a_package_that_says_so(install: Install) -> None:
    install(LINES.replace("repeats=True", "remote=True"))
    check_sink_names("lines", None, unknown=True)
    with pytest.raises(RequestError, match="cannot have 'lines' as its late"):
        check_sink_names(None, "lines", unknown=True)


WRONG = [
    ("import no_such_module", r"'lines' of the package lines \(lines_sink:KIND\) cannot be imported: ModuleNotFound"),
    ("1 / 0", r"'lines' of the package lines \(lines_sink:KIND\) cannot be imported: ZeroDivisionError"),
    ("", r"'lines' of the package lines \(lines_sink:KIND\) cannot be imported: AttributeError"),
    ("KIND = 'lines'", r"'lines' of the package lines \(lines_sink:KIND\) is a str, not a SinkKind"),
    (LINES.replace('"color"', '"Color"'), "lines of a package has the option Color, which must be in lower case"),
    (LINES.replace('"color"', '"serve"'), "lines of a package has the option serve, which is a property of every"),
    (LINES.replace("repeats", "in_process"), "lines of a package is in_process"),
    (LINES.replace("repeats=True", "env_options=('dsn',)"), "lines of a package has the env_option dsn"),
]


@pytest.mark.parametrize(("text", "words"), WRONG)
def test_a_package_that_is_wrong_is_refused_with_its_name(text: str, words: str, install: Install) -> None:
    install(text)
    with pytest.raises(SetupError, match=rf"\[MP-SETUP\] The sink {words}"):
        sink_kind("lines")
    found = check_sink_packages()
    assert found.verdict == "problem" and found.what.startswith("The sink ")
    assert sink_kind("parquet") is KINDS["parquet"], "other sinks are not harmed"


def test_a_name_that_is_taken_is_refused(install: Install) -> None:
    install(parquet="lines_sink:KIND")
    with pytest.raises(SetupError, match=r"'parquet' is taken twice: the package lines .*, and by Millpond itself"):
        sink_kind("parquet")
    install(package="first", lines="lines_sink:KIND")
    install(package="second", lines="lines_sink:KIND")
    with pytest.raises(SetupError, match=r"'lines' is taken twice: the package (first|second) .*, the package"):
        sink_kind("lines")


def test_a_sink_whose_module_is_missing_says_so_when_it_is_opened(install: Install, pond: Any, tmp_path: Path) -> None:
    install(LINES.replace("LinesSink.open", "Nothing"))
    query = into(Sink("lines", str(tmp_path / "out")))
    with pytest.raises(SetupError, match=r"sink lines needs lines_sink:Nothing, which cannot be imported"):
        sink_follower(query, "p", RowsReader(pond.read_section), tmp_path / "cursors")


def test_doctor_lists_the_sinks_of_packages(install: Install) -> None:
    assert check_sink_packages().what == ", ".join(KINDS)
    install()
    assert check_sink_packages().what == f"{', '.join(KINDS)}, lines"
