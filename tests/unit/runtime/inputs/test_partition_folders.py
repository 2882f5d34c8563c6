"""Columns in the names of folders: those that Spark takes, and what is left to Spark."""

from __future__ import annotations

import datetime as dt

import pytest

from millpond.runtime.inputs.file_parts import FileColumn, FolderValue
from millpond.runtime.inputs.partition_folders import folder_values, split_columns

DECLARED = (("ts", "timestamp"), ("day", "date"), ("hour", "int"), ("shop", "string"))


def test_the_last_columns_come_from_the_folders() -> None:
    values = folder_values("/in", "/in/day=2026-02-28/hour=-7/shop=007.a/x=1.parquet", DECLARED)
    assert values == (
        FolderValue("day", "date", "2026-02-28"), FolderValue("hour", "int", "-7"),
        FolderValue("shop", "string", "007.a"),
    )  # fmt: skip
    columns = [FileColumn(name, kind, place) for place, (name, kind) in enumerate(DECLARED)]
    stored, known = split_columns(columns, values)
    assert stored == columns[:1]
    assert {name: value.as_py() for name, value in known.items()} == {
        "day": dt.date(2026, 2, 28), "hour": -7, "shop": "007.a",
    }  # fmt: skip


@pytest.mark.parametrize("folders", ["", "other/", "a b/ü/"])
def test_other_folders_have_no_columns(folders: str) -> None:
    assert folder_values("/in", f"/in/{folders}x=1.parquet", DECLARED) == ()


@pytest.mark.parametrize("folders", [
    "shop=%61", "shop=__HIVE_DEFAULT_PARTITION__", "shop=", "shop= a", "Shop=a", "=a", "shop=a=b", "other=1",
    "more/shop=a", "shop=a/more", "hour=1", "shop=a/hour=1", "hour=1.0/shop=a", "hour=1234567890/shop=a",
    "hour=٣/shop=a",
    "day=2026-02-30/hour=1/shop=a", "day=20260228/hour=1/shop=a", "day=2026-2-28/hour=1/shop=a",
    "ts=2026-01-01/day=2026-01-01/hour=1/shop=a",
])  # fmt: skip
def test_what_spark_may_take_otherwise_is_left_to_it(folders: str) -> None:
    assert isinstance(folder_values("/in", f"/in/{folders}/0.parquet", DECLARED), str)


@pytest.mark.parametrize("base", ["/other", "/in/shop=a", "/in/*", ""])
def test_folders_outside_of_the_folder_of_the_stream_are_left_to_spark(base: str) -> None:
    assert isinstance(folder_values(base, "/in/shop=a/0.parquet", DECLARED), str)
    assert isinstance(folder_values(base, "/shop=a/0.parquet", DECLARED), str)
