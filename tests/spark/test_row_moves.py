"""Served rows of a real pond move to other stores while it runs; readers find them across shards."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from tests.spark.test_changes import SPEND, Actions, make_input, stream

from millpond import LatestRows, Pond
from millpond.control.wiring.pond_reader import look_up
from millpond.errors import ChangeRefused
from millpond.testing.compare import rows_of

KEYS = "abc"


def last_rows(rows: list[dict[str, Any]]) -> dict[str, tuple[int, int]]:
    """For each key what its last window counts."""
    newest: dict[str, dict[str, Any]] = {}
    for row in rows:
        if row["k"] not in newest or row["w"]["end"] > newest[row["k"]]["w"]["end"]:
            newest[row["k"]] = row
    return {key: (row["n"], row["total"]) for key, row in newest.items()}


@pytest.mark.spark
def test_rows_are_read_across_shards_after_a_move(spark: SparkSession, tmp_path: Path) -> None:
    make_input(tmp_path / "in")
    moved, second, third = list[BaseException | None](), tmp_path / "second.lmdb", tmp_path / "third.lmdb"

    def move() -> None:
        try:
            pond.move("0-1023", f"lmdb:{second}", who="ann")
        except BaseException as error:
            moved.append(error)
        else:
            moved.append(None)

    thread = threading.Thread(target=move)
    actions = Actions({3: [thread.start], 5: [lambda: thread.join(0.5)]})
    with Pond(spark, tmp_path / "pond", instances=2, on_epoch=actions) as pond:
        pond.stream(stream(tmp_path / "in"))
        pond.add("spend", SPEND, serve=True)
        pond.run()
        thread.join(120)
        assert moved == [None]
        assert pond.placement().shares[0].home == str(second)
        price = pond.price_of_move("512-1023", f"lmdb:{third}")
        assert (price.cost, price.moved.buckets) == ("rows are copied", 512) and price.moved.bytes > 0
        pond.move("512-1023", f"lmdb:{third}")
        pond.move("3", "own")
        pond.run(drain=True)
        expected = last_rows(rows_of(pond.table("spend")))
        found = {key: pond.lookup("spend", key).document for key in KEYS}
        assert {key: (one["row"]["n"], one["row"]["total"]) for key, one in found.items() if one} == expected
        kinds = [(one.change.name, getattr(one.change, "why", "")) for one in pond.history()]
        assert kinds == [
            ("rows", "1 of 1,024 buckets to own"), ("rows", f"512 of 1,024 buckets to lmdb:{third}"),
            ("rows", f"1,024 of 1,024 buckets to lmdb:{second}"),
        ]  # fmt: skip
        with pytest.raises(ChangeRefused, match="names no bucket"):
            pond.move("nowhere", "own")
        assert pond.status()
    for key in KEYS:
        document = look_up(tmp_path / "pond", "spend", [key]).document
        assert document is not None and (document["row"]["n"], document["row"]["total"]) == expected[key]
    spark.dataSource.register(LatestRows)
    table = spark.read.format("millpond").option("path", str(tmp_path / "pond")).option("query", "spend").load()
    assert {row["k"]: (row["n"], row["total"]) for row in table.collect()} == expected
