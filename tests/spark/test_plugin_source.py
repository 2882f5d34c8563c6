"""A backfill reads the source of a package again, and its malformed records are counted as those of the same format."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from tests.spark.test_changes import FIELDS, SPEND, Actions, make_input

from kit.inputs.plugin_packages import install_plugin
from millpond import Pond
from millpond.model.endpoints import GROUP, Source
from millpond.model.stream import Stream
from millpond.testing.compare import assert_same_rows, rows_of

pytestmark = pytest.mark.spark

LINES = """
from millpond.model.endpoints import SourceKind

prepared = []

KIND = SourceKind(
    name="ndjson", format="json", options=("path", "mode", "maxFilesPerTrigger"), files=True, again=True,
    marks_malformed=True, prepare="millpond_lines:prepared.append",
)
"""


def ndjson(folder: Path) -> Stream:
    """The events of `make_input` as lines of JSON, one file an epoch, with a line in each that does not parse."""
    make_input(folder / "parquet")
    for file in sorted((folder / "parquet").glob("*.parquet")):
        rows = pq.read_table(file).to_pylist()
        lines = [json.dumps(row | {"ts": row["ts"].isoformat()}) for row in rows]
        (folder / f"{file.stem}.json").write_text("\n".join([*lines, '{"ts": 7']))
    options = (("maxFilesPerTrigger", "1"), ("mode", "DROPMALFORMED"), ("path", str(folder)))
    return Stream("tx", FIELDS, Source("ndjson", options))


def test_a_backfill_reads_the_source_of_a_package_again(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_plugin(tmp_path / "site", monkeypatch, GROUP, {"ndjson": "millpond_lines:KIND"}, millpond_lines=LINES)
    declared = ndjson(tmp_path / "in")
    with Pond(spark, tmp_path / "always", instances=2) as pond:
        pond.stream(declared)
        pond.add("spend", SPEND)
        pond.run()
        expected = rows_of(pond.table("spend"))
        dead = pond.counts()["spend"].whole.dead
    assert expected and dead == len(list((tmp_path / "in").glob("*.json"))), "one line of each file is malformed"

    def add() -> None:
        assert pond.price_of("add", "spend", SPEND, backfill=True).source.bytes
        pond.add("spend", SPEND, backfill=True)

    with Pond(spark, tmp_path / "pond", instances=2, on_epoch=Actions({4: [add]})) as pond:
        pond.stream(declared)
        pond.add("first", SPEND.replace("sum(v)", "min(v)"))
        pond.run()
        assert not pond.refused
        assert_same_rows(expected, rows_of(pond.table("spend")))
    from millpond_lines import prepared  # type: ignore[import-not-found]

    assert len(prepared) > 2, "the source is prepared before every read, that of the backfill too"
