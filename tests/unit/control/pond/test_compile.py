"""Compiled pond files on disk: written atomically, only over their own kind; `--check` needs no Spark."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

from millpond.cli import app
from millpond.control.pond.compile import compiled_of, write_compiled
from millpond.errors import PlaceError, StaleError
from millpond.model.compiled_pond import digest, from_json, to_json
from millpond.model.endpoints import Source
from millpond.model.stream import Field, Stream

STREAM = Stream("s", (Field("ts", "timestamp"),), Source("rate"))


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    path, compiled = tmp_path / "pond.json", compiled_of([STREAM], [])
    write_compiled(path, compiled)
    write_compiled(path, compiled)
    assert from_json(path.read_bytes()) == compiled
    assert path.read_text() == to_json(compiled)
    assert path.read_text().count("\n") > 10  # in lines, for people
    assert [file.name for file in tmp_path.iterdir()] == ["pond.json"]


def test_what_has_no_text_is_of_no_text() -> None:
    assert not compiled_of([STREAM], []).is_of("")


def test_a_file_of_another_kind_is_not_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "package.json"
    path.write_text('{"name": "mine"}')
    with pytest.raises(PlaceError, match="holds something else than a compiled file"):
        write_compiled(path, compiled_of([STREAM], []))
    assert path.read_text() == '{"name": "mine"}'


def test_check_says_whether_the_compiled_file_is_of_the_text(tmp_path: Path) -> None:
    sql, path = tmp_path / "pond.sql", tmp_path / "pond.json"
    sql.write_text("-- nothing\n")
    for _ in range(2):  # missing, then of another text
        done = CliRunner().invoke(app, ["compile", str(sql), "--check"])
        assert isinstance(done.exception, StaleError)
        write_compiled(path, msgspec.structs.replace(compiled_of([STREAM], []), sql=digest("-- another\n")))
    write_compiled(path, msgspec.structs.replace(compiled_of([STREAM], []), sql=digest("-- nothing\n")))
    done = CliRunner().invoke(app, ["compile", str(sql), "--check"])
    assert (done.exit_code, done.output.strip()) == (0, f"{path} is up to date.")
