"""A slow analysis does not delay other changes, epochs, or the end of the process."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from millpond import Pond
from millpond.errors import MillpondError, NotServingError, QueryRefused
from millpond.spark.catalyst.analysis_threads import Analyses
from millpond.spark.frontend import frontend

EVENTS = "CREATE TABLE ev (k STRING, n BIGINT) USING json OPTIONS (path '{}');"
TEXT = "SELECT n, k FROM STREAM ev"


def test_an_analysis_blocks_no_others(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, began, go_on = tmp_path / "in", threading.Event(), threading.Event()
    source.mkdir()
    (source / "1.json").write_text(json.dumps({"k": "a", "n": 1}))
    extract = frontend.extract_any

    def slowly(catalyst, frame, terms, *rest):  # type: ignore[no-untyped-def]
        if terms.name == "slow":
            began.set()
            went_on.append(go_on.wait(600))
        return extract(catalyst, frame, terms, *rest)

    monkeypatch.setattr(frontend, "extract_any", slowly)
    found: list[MillpondError] = []
    went_on: list[bool] = []

    def ask(pond: Pond) -> None:
        try:
            pond.price_of("add", "slow", TEXT)
        except MillpondError as error:
            found.append(error)

    pond = Pond(spark, tmp_path / "pond", instances=1)
    pond.load(EVENTS.format(source))
    pond.add("first", TEXT)
    pond.run()
    try:
        asking = threading.Thread(target=ask, args=(pond,))
        asking.start()
        assert began.wait(120)
        pond.add("second", "SELECT n, reverse(k) AS r FROM STREAM ev")  # asks Spark for more than it reads
        assert pond.price_of("add", "third", TEXT).cost == "at once"
        (source / "2.json").write_text(json.dumps({"k": "bc", "n": 2}))
        pond.run()
        assert pond.table("second").to_pylist() == [{"n": 2, "r": "cb"}]
        pond.alter("second", "SELECT n, k AS r FROM STREAM ev WHERE n > 1")
        pond.drop("second")
        assert not found and asking.is_alive()
        pond.end()
        asking.join(120)
        assert isinstance(found[0], NotServingError) and not went_on, "the end waits for no analysis"
    finally:
        go_on.set()
        pond.end()


def test_an_analysis_that_takes_too_long_is_refused_and_leaves_nothing(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "in").mkdir()
    with Pond(spark, tmp_path / "pond", instances=1) as pond:
        pond.load(EVENTS.format(tmp_path / "in"))
        pond.add("first", TEXT)
        pond.open()
        go_on, extract = threading.Event(), frontend.extract_any

        def slowly(*given):  # type: ignore[no-untyped-def]
            go_on.wait(600)
            return extract(*given)

        with monkeypatch.context() as patch:
            patch.setattr(frontend, "extract_any", slowly)
            patch.setattr(pond._declarations, "_analyses", Analyses(seconds=0.5))
            with pytest.raises(QueryRefused, match=r"The analysis of slow was given up after 0\.5 s"):
                pond.add("slow", TEXT)
        go_on.set()
        with pytest.raises(MillpondError, match="There is no stream slow"):
            pond.add("other", "SELECT n FROM STREAM slow")
        assert [query.name for query in pond.queries] == ["first"]
