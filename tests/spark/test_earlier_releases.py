"""A pond that an earlier release left unfinished is opened by this one, and ends with the right rows.

After the first epoch of this release it no longer needs Spark's checkpoint.
"""

from __future__ import annotations

import csv
import json
import os
import shutil
from pathlib import Path

import duckdb
import pytest
from pyspark.sql import SparkSession

from millpond import Pond
from millpond.errors import OffsetGapError

PONDS = sorted(path.parent for path in (Path(__file__).parents[1] / "golden" / "ponds").glob("*/pond.sql"))


def copied(golden: Path, here: Path) -> None:
    """A copy in the current folder, with the paths of that folder and files in the order of their names."""
    shutil.copytree(golden, here, dirs_exist_ok=True)
    for number, path in enumerate(sorted((here / "in").iterdir())):
        os.utime(path, (1_767_614_400 + 60 * number,) * 2)
    for path in (here / "pond.pond" / "spark").glob("*/sources/*/*"):
        path.write_text(path.read_text().replace("file:///POND/", f"{here.as_uri()}/"))


def rows_of(folder: Path) -> list[str]:
    """The rows of a sink, as text, sorted."""
    parts = sorted(folder.glob("part-*"))
    match parts[0].suffix:
        case ".parquet":
            found = duckdb.read_parquet([str(part) for part in parts]).fetchall()
            return sorted(map(str, found))
        case ".json":
            return sorted(str(json.loads(line)) for part in parts for line in part.read_text().splitlines())
        case _:
            with_ends = [line for part in parts for line in part.read_text().splitlines(keepends=True)]
            assert all(len(row) == 3 for row in csv.reader(with_ends))
            return sorted(with_ends)


@pytest.mark.parametrize("golden", PONDS, ids=lambda path: path.name)
def test_a_pond_of_an_earlier_release_goes_on(spark: SparkSession, here: Path, golden: Path) -> None:
    copied(golden, here)
    expected = json.loads((golden / "expected.json").read_text())
    text, newest = (here / "pond.sql").read_text(), max((here / "in").iterdir())
    newest.rename(here / newest.name)
    with Pond(spark, "pond.pond", instances=2) as pond:
        pond.load(text)
        pond.run(once=True)  # writes the lists of files to the log
    shutil.rmtree(here / "pond.pond" / "spark")  # so that it goes on without, as on another host
    (here / newest.name).rename(newest)
    with Pond(spark, "pond.pond", instances=2) as pond:
        before = here / "pond.pond" / "log"
        records = len(list(before.iterdir()))
        pond.load(text)
        pond.run(once=True, drain=True)
        assert pond.lookup("spend", "card1").document["row"]["n"] == 1  # the view is made again from the log
        assert len(list(before.iterdir())) > records
    found = {name: rows_of(here / "out" / name) for name in expected}
    assert {name: len(rows) for name, rows in found.items()} == {name: len(rows) for name, rows in expected.items()}
    assert found == expected


def test_the_lists_of_files_of_an_earlier_release_are_only_in_its_checkpoint(spark: SparkSession, here: Path) -> None:
    copied(PONDS[-1], here)
    shutil.rmtree(here / "pond.pond" / "spark")
    with Pond(spark, "pond.pond", instances=2) as pond:
        pond.load((here / "pond.sql").read_text())
        with pytest.raises(OffsetGapError, match=r"does not have what \w+ read, because .* before 0\.3 wrote it"):
            pond.open()
