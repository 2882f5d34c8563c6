"""When tables are listed again: between two epochs, as soon as they are due."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from millpond.errors import SourceError
from millpond.spark.sources.file_tables import RefreshedTables, Table

SECOND = 1_000_000


@dataclass
class Files:
    """The list of files of a table that is not there."""

    gone: str | None = None
    listed: list[int] = field(default_factory=list)
    clock: list[int] = field(default_factory=lambda: [0])

    def missing(self) -> str | None:
        return self.gone

    def renew(self) -> None:
        self.listed.append(self.clock[0])


def test_a_list_lasts_as_long_as_requested() -> None:
    clock = [5 * SECOND]
    often, seldom, copy = (Files(clock=clock) for _ in range(3))
    looks = list[float]()
    tables = RefreshedTables(
        [Table("often", 2 * SECOND, [often, copy]), Table("often", 60 * SECOND, [seldom])],
        lambda: looks.append(clock[0] / SECOND), lambda: clock[0],
    )  # fmt: skip
    for now in (5, 6, 6.9, 7, 7.5, 12, 13.9, 64.9, 65):
        clock[0] = int(now * SECOND)
        tables.renew()
    assert [at / SECOND for at in often.listed] == [5, 7, 12, 64.9]
    assert copy.listed == often.listed, "all relations of a table at once"
    assert [at / SECOND for at in seldom.listed] == [5, 65]
    assert looks == [5, 7, 12, 64.9, 65], "whenever a table was listed"


def test_without_refreshed_tables_there_is_one_look_when_a_run_begins() -> None:
    looks = list[int]()
    tables = RefreshedTables((), lambda: looks.append(1))
    for _ in range(3):
        tables.renew()
    assert looks == [1]


def test_a_table_that_is_gone_is_not_one_without_rows() -> None:
    files = Files()
    tables = RefreshedTables([Table("dim", SECOND, [files])], clock=lambda: 0)
    files.gone = "file:/dim"
    with pytest.raises(SourceError, match=r"The table dim no longer exists: there is no file:/dim\."):
        tables.renew()
    assert files.listed == []
    files.gone = None
    tables.renew()
    assert files.listed == [0], "the list that failed does not count"
