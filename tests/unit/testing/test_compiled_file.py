"""Finding the compiled form of a pond file: never that of another text, and Spark only if necessary."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from millpond.errors import CorruptError, QuerySyntaxError, QueryTypeError, StaleError
from millpond.model.compiled_pond import from_json, to_json
from millpond.testing.compiled_file import load_compiled
from millpond.version import VERSION

SHOP = Path(__file__).with_name("shop.sql")
STORED = from_json(SHOP.with_suffix(".json").read_bytes())
CURRENT = to_json(msgspec.structs.replace(STORED, millpond=VERSION))


class Desk:
    """A copy of shop.sql, a cache of its own, and a stand-in for Python that plays `millpond compile`."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sql, self.beside = folder / "shop.sql", folder / "shop.json"
        self.sql.write_text(SHOP.read_text())
        self.calls, self._python = folder / "calls", folder / "python"
        self.calls.write_text("")
        monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        monkeypatch.setattr(sys, "executable", str(self._python))
        self.play("exit 9")

    def play(self, script: str) -> None:
        """What the stand-in does; its sixth word is the file to write."""
        self._python.write_text(f'#!/bin/sh\necho "$*" >> {self.calls}\n{script}\n')
        self._python.chmod(0o755)

    def play_compiler(self) -> None:
        digest = f"$(sha256sum {self.sql} | cut -c1-64)"
        stored = self.sql.with_suffix(".stored")
        stored.write_text(CURRENT)
        self.play(f'sed "s/\\"sql\\": \\".*\\"/\\"sql\\": \\"{digest}\\"/" {stored} > "$6.new" && mv "$6.new" "$6"')

    @property
    def called(self) -> list[str]:
        return self.calls.read_text().splitlines()


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Desk:
    return Desk(tmp_path, monkeypatch)


def test_the_compiled_file_is_used_while_it_matches_the_text(desk: Desk) -> None:
    desk.beside.write_text(CURRENT)
    assert "spend" in {query.name for query in load_compiled(desk.sql).spec.queries}
    assert not desk.called


def test_the_compiled_file_is_rebuilt_when_the_text_changed(desk: Desk) -> None:
    desk.beside.write_text(CURRENT)
    desk.sql.write_text(SHOP.read_text() + "-- changed\n")
    desk.play_compiler()
    compiled = load_compiled(desk.sql)
    assert compiled.is_of(desk.sql.read_text())
    assert desk.called == [f"-m millpond compile {desk.sql} -o {desk.beside}"]
    load_compiled(desk.sql)
    assert len(desk.called) == 1


def test_another_version_compiles_again(desk: Desk) -> None:
    desk.beside.write_text(CURRENT.replace('"millpond": "', '"millpond": "0.0.'))
    desk.play_compiler()
    load_compiled(desk.sql)
    assert len(desk.called) == 1


def test_without_a_compiled_file_the_users_cache_is_used(desk: Desk) -> None:
    desk.play_compiler()
    load_compiled(desk.sql)
    load_compiled(desk.sql)
    assert len(desk.called) == 1
    assert not desk.beside.exists()
    desk.sql.write_text(SHOP.read_text() + "-- changed\n")
    load_compiled(desk.sql)
    assert len(desk.called) == 2


def test_a_file_of_another_kind_beside_is_left_alone(desk: Desk) -> None:
    desk.beside.write_text('{"mine": 1}')
    desk.play_compiler()
    load_compiled(desk.sql)
    assert desk.beside.read_text() == '{"mine": 1}'
    with pytest.raises(CorruptError, match="no compiled pond file"):
        load_compiled(desk.beside)


@pytest.mark.parametrize("said", ["[MP-JAVA] There is no Java. Install it.", "No module named pyspark"])
def test_where_spark_does_not_start_the_error_says_what_to_run(desk: Desk, said: str) -> None:
    desk.beside.write_text(CURRENT)
    desk.sql.write_text(SHOP.read_text() + "-- changed\n")
    desk.play(f"echo '{said}' >&2; exit 1")
    with pytest.raises(StaleError) as caught:
        load_compiled(desk.sql)
    assert str(caught.value).startswith(f"[MP-STALE] {desk.beside} is out of date with {desk.sql}, which cannot be")
    assert said in str(caught.value)
    assert f"`millpond compile {desk.sql} -o {desk.beside}`" in str(caught.value)


def test_a_stale_compiled_file_fails_without_recompilation(desk: Desk) -> None:
    for _ in range(2):  # missing, then stale
        with pytest.raises(StaleError, match="millpond compile"):
            load_compiled(desk.sql, recompile=False)
        desk.beside.write_text(CURRENT)
        desk.sql.write_text(SHOP.read_text() + "-- changed\n")
    assert not desk.called


def test_a_mistake_in_the_file_is_reported_unchanged(desk: Desk) -> None:
    desk.play("echo '[MP-SYNTAX] In spend (line 3 of the file): no. Mend it.' >&2; exit 1")
    with pytest.raises(QuerySyntaxError, match="line 3"):
        load_compiled(desk.sql)


def test_a_compiler_that_makes_something_else_does_not_run_for_ever(desk: Desk) -> None:
    desk.play(f'cp {SHOP.with_suffix(".json")} "$6"')  # of another text
    desk.sql.write_text("-- another\n")
    with pytest.raises(StaleError, match="another version"):
        load_compiled(desk.sql)
    assert len(desk.called) == 1


def test_a_missing_pond_file_is_reported(tmp_path: Path) -> None:
    with pytest.raises(QueryTypeError, match="cannot be read"):
        load_compiled(tmp_path / "none.sql")


def test_tests_in_parallel_compile_once(desk: Desk) -> None:
    desk.play_compiler()
    desk.play(f"sleep 0.3\n{desk._python.read_text().splitlines()[-1]}")
    program = (
        f"import sys; from pathlib import Path; python = sys.executable; sys.executable = {str(desk._python)!r}\n"
        f"from millpond.testing.compiled_file import load_compiled; load_compiled(Path({str(desk.sql)!r}))"
    )
    real = os.path.join(sys.prefix, "bin", "python")
    both = [subprocess.Popen([real, "-c", program]) for _ in range(2)]
    assert [process.wait(60) for process in both] == [0, 0]
    assert len(desk.called) == 1
