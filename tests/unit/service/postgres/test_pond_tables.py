"""The tables of a pond for SQL: their names and content."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import pytest
from msgspec.structs import replace

from millpond.control.wiring import pond_reader
from millpond.control.wiring.latest_rows import ServedRows
from millpond.control.wiring.pond_reader import look_up
from millpond.errors import StoreError
from millpond.followers.view import documents
from millpond.model.change_history import StoredQuery
from millpond.reconfigure.changes import Add, Pause, Resume
from millpond.service.postgres import pond_tables
from millpond.service.postgres.client_sql import statements_of
from millpond.service.postgres.pond_tables import PUBLIC, PondTables, Table
from millpond.service.postgres.sandbox import StatementError
from millpond.service.postgres.session import Session
from unit.service.postgres.conftest import ServedPond, counted


def test_queries_whose_names_differ_in_case_have_a_table_each(tmp_path: Path) -> None:
    pond = ServedPond(tmp_path, ("visits", "Visits"))
    pond.epoch("/home")
    pond.epoch("/end")
    pond.pond.change(Add(StoredQuery.of(replace(counted("hidden"), serve=False))))
    pond.store.close()
    tables = PondTables(tmp_path, "lmdb")
    names = {Table(PUBLIC, "visits"), Table(PUBLIC, "Visits_1")}
    assert {table for table in tables.listing().schemas if table.schema == PUBLIC} == names
    assert [rows["page"].to_pylist() for rows in tables.read(names).values()] == [["/home"], ["/home"]]
    assert tables.listing().unserved == frozenset({"hidden"})
    (statement,) = statements_of("SELECT * FROM hidden")
    with closing(Session(tables)) as session, pytest.raises(StatementError, match="'hidden' is not served") as caught:
        session.run(statement)
    assert caught.value.state == "42P01" and "`millpond add --serve`" in caught.value.cure
    tables.close()


def test_rows_of_an_abandoned_store_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pond_reader, "_PAUSE_SECONDS", 0)
    pond = ServedPond(tmp_path, ("visits",))
    tables, visits = PondTables(tmp_path, "lmdb"), Table(PUBLIC, "visits")
    for _ in range(2):
        pond.epoch("/home")
    pond.pond.unfollow()  # from here on, the rows are in another store
    pond.store.close()
    applied = pond.pond.manifest.n
    for _ in range(8):
        pond.epoch("/home")
    assert len(tables.read([visits])[visits]) == 1, "a store may be some epochs behind"
    tables.close()  # one process opens a store once
    assert look_up(tmp_path, "visits", ["/home"]).n == applied
    assert [len(batch) for batch in ServedRows(tmp_path, "visits").read(0, 64)] == [1]
    pond.epoch("/home")
    numbers = rf"as of record {applied}, and the newest epoch of the pond is record {pond.pond.manifest.n}\."
    for read in (
        lambda: tables.read([visits]),
        lambda: look_up(tmp_path, "visits", ["/home"]),
        lambda: [*ServedRows(tmp_path, "visits").read(0, 64)],
    ):  # fmt: skip
        with pytest.raises(StoreError, match=rf"rows\.lmdb .*{numbers}") as refused:
            read()
        assert "--store" in refused.value.cure
        tables.close()
    assert tables.read([Table("millpond", "queries")]), "the log is current"
    tables.close()


def sleep_by(monkeypatch: pytest.MonkeyPatch, do: Callable[[float], None]) -> None:
    """Readers of rows call `do` instead of sleeping; other threads of this process sleep as before."""
    for module in (pond_reader, documents):
        monkeypatch.setattr(module, "time", SimpleNamespace(sleep=do))


def test_changes_do_not_outdate_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pond may stop before its view has applied the newest changes, which contain no rows."""
    sleep_by(monkeypatch, lambda _seconds: pytest.fail("the rows are current"))
    pond = ServedPond(tmp_path, ("visits",))
    for _ in range(2):
        pond.epoch("/home")
    pond.pond.unfollow()
    pond.store.close()
    applied = pond.pond.manifest.n
    for _ in range(8):
        pond.pond.change(Pause("visits"))
        pond.pond.change(Resume("visits"))
        pond.epoch("/home")
        pond.pond.change(Pause("visits"))
        pond.pond.change(Resume("visits"))
    tables, visits = PondTables(tmp_path, "lmdb"), Table(PUBLIC, "visits")
    assert len(tables.read([visits])[visits]) == 1
    tables.close()  # one process opens a store once
    assert look_up(tmp_path, "visits", ["/home"]).n == applied
    assert [len(batch) for batch in ServedRows(tmp_path, "visits").read(0, 64)] == [1]
    pond.epoch("/home")
    pond.pond.change(Pause("visits"))
    sleep_by(monkeypatch, lambda _seconds: None)
    epoch = pond.pond.manifest.epoch_n
    with pytest.raises(StoreError, match=f"as of record {applied}, and the newest epoch of the pond is record {epoch}"):
        look_up(tmp_path, "visits", ["/home"])


def test_rows_of_a_store_that_catches_up_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pond = ServedPond(tmp_path, ("visits",))
    pond.epoch("/home")
    pond.epoch("/home")
    [view] = pond.pond.unfollow()
    for _ in range(12):
        pond.epoch("/home")
    tables, visits = PondTables(tmp_path, "lmdb"), Table(PUBLIC, "visits")

    def catch_up(_seconds: float) -> None:
        pond.pond.follow(view)
        pond.epoch("/home")

    monkeypatch.setattr(pond_tables, "open_rows", lambda *_, **__: pond.store)  # one process opens a store once
    sleep_by(monkeypatch, catch_up)
    assert len(tables.read([visits])[visits]) == 1
    tables.close()


def test_a_store_without_rows_is_named(tmp_path: Path) -> None:
    pond = ServedPond(tmp_path, ("visits",))
    pond.epoch("/home")
    tables = PondTables(tmp_path, f"lmdb:{tmp_path / 'other'}")
    with pytest.raises(StoreError, match=r"no served rows in the store .*other\.") as refused:
        tables.read([Table(PUBLIC, "visits")])
    assert "--store" in refused.value.cure
    pond.store.close()
