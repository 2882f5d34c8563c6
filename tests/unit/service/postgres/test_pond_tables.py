"""The tables of a pond for SQL: their names and content."""

from __future__ import annotations

from pathlib import Path

from millpond.service.postgres.pond_tables import PUBLIC, PondTables, Table
from unit.service.postgres.conftest import ServedPond


def test_queries_whose_names_differ_in_case_have_a_table_each(tmp_path: Path) -> None:
    pond = ServedPond(tmp_path, ("visits", "Visits"))
    pond.epoch("/home")
    pond.epoch("/end")
    pond.store.close()
    tables = PondTables(tmp_path, "lmdb")
    names = {Table(PUBLIC, "visits"), Table(PUBLIC, "Visits_1")}
    assert {table for table in tables.listing().schemas if table.schema == PUBLIC} == names
    assert [rows["page"].to_pylist() for rows in tables.read(names).values()] == [["/home"], ["/home"]]
    tables.close()
