"""The service reports what the log says, beside a writer, and after any backlog."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from kit.simulator.changing_pond import ChangingPond
from millpond.log.records import EpochRecord
from millpond.model.change_history import ALWAYS, StoredQuery
from millpond.model.change_json import Move, Scale
from millpond.model.endpoints import Sink
from millpond.model.expressions import Column, literal
from millpond.model.query import Named, Query
from millpond.model.selection import Selection
from millpond.model.stream import Derivation, Field, Stream
from millpond.model.types import WINDOW
from millpond.model.windows import Sliding
from millpond.reconfigure.catalog import history
from millpond.reconfigure.changes import Add, Alter, Discard, Drop, End, Pause, Promote, SetParameter, Shadow
from millpond.service.api.messages import ColumnShown, Event, Parameter
from millpond.service.server import log_reader
from millpond.service.server.gauges import Gauges
from millpond.service.server.log_reader import LogReader
from millpond.service.terminal.text import query_line
from millpond.spark.driver.epochs import Epoch

STREAM = Stream("tx", (Field("ts", "timestamp"), Field("v", "bigint")))


def each(name: str) -> Selection:
    return Selection(name, "tx", (Named("v", Column("v", "bigint")),), text=f"SELECT v FROM STREAM tx -- {name}")


def test_a_sink_is_shown_with_where_its_rows_go(tmp_path: Path) -> None:
    (tmp_path / "pond.id").write_text("p")
    sinks = Sink("kafka", options=(("topic", "alerts"),)), Sink("parquet", "out/b"), Sink("noop")
    ChangingPond(tmp_path, [STREAM], [replace(each(name), sink=sink) for name, sink in zip("abc", sinks, strict=True)])
    shown = [query.sink for query in LogReader(tmp_path).queries(lambda _: {})]
    assert shown == ["kafka:alerts", "parquet:out/b", "noop"]


def test_the_catalog_is_the_fold_of_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    catalog = LogReader(tmp_path)
    assert catalog.now() is None
    assert (catalog.queries(lambda _: {}), catalog.streams(), catalog.parameters(), catalog.history(9)) == ([],) * 4
    (tmp_path / "pond.id").write_text("p")
    assert catalog.now() is None, "a pond that is just being made has nothing in force"

    pond = ChangingPond(tmp_path, [STREAM], [each("one")])
    (entry,) = catalog.queries(lambda name: {"rows": len(name)})
    assert (entry.name, entry.kind, entry.state, entry.counts) == ("one", "stateless", "running", {"rows": 3})
    assert entry.columns == (ColumnShown("v", "bigint"),)
    assert [(stream.name, len(stream.columns)) for stream in catalog.streams()] == [("tx", 2)]

    pond.change(Add(StoredQuery.of(each("two")), who="ann@1"))
    pond.change(Pause("one", before=1))
    pond.change(SetParameter("least", literal(7, "bigint"), before=2))
    pond.change(Drop("two", before=3))
    assert [(query.name, query.state) for query in catalog.queries(lambda _: {})] == [("one", "paused")]
    assert catalog.parameters() == catalog.frozen().parameters() == [Parameter("least", 7, "bigint", None, 3)]
    read: list[int] = []
    monkeypatch.setattr(log_reader, "history", lambda *of: (read.append(one.n) or one for one in history(*of)))
    (unsearched,) = LogReader(tmp_path).parameters(with_records=False)
    assert (unsearched.value, unsearched.record, read) == (7, None, [])
    assert catalog.parameters()[0].record == LogReader(tmp_path).parameters()[0].record == 3
    assert read == [4, 4, 3], "the history is read once, until each parameter is found"
    monkeypatch.undo()
    found = catalog.history(9)
    assert [(event.record, event.kind, event.name) for event in found] == [
        (4, "drop", "two"), (3, "param", "least"), (2, "pause", "one"), (1, "add", "two"),
    ]  # fmt: skip
    assert found[-1] == Event(1, 0, "add", "two", "ann@1", each("two").text)
    assert found[1].value == 7
    assert catalog.history(2) == found[:2]
    assert LogReader(tmp_path).history(9) == found

    frozen = catalog.frozen()
    pond.change(Drop("one", before=4))
    assert [query.name for query in catalog.queries(lambda _: {})] == []
    assert [query.name for query in frozen.queries(lambda _: {})] == ["one"]
    assert frozen.history(9) == found


def test_a_record_that_may_not_have_set_the_current_value_is_not_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between two readings, more changes are made than a reading searches."""
    monkeypatch.setattr(log_reader, "_MOST_CHANGES", 2)
    pond, catalog = ChangingPond(tmp_path, [STREAM], [each("one")]), LogReader(tmp_path)
    (tmp_path / "pond.id").write_text("p")
    newest = [pond.change(Pause("one"))]

    def put(name: str, value: int) -> None:
        newest.append(pond.change(SetParameter(name, literal(value, "bigint"), before=newest[-1])))

    def records(reader: LogReader = catalog) -> dict[str, int | None]:
        return {one.name: one.record for one in reader.parameters()}

    put("least", 7)
    assert records() == {"least": 2}
    put("other", 1)
    assert records() == {"least": 2, "other": 3}, "all changes were read"
    put("least", 8)
    put("other", 2)
    put("other", 3)
    assert records() == records(LogReader(tmp_path)) == {"least": None, "other": 6}
    put("least", 9)
    assert records() == {"least": 7, "other": 6}
    put("other", 4)
    assert records() == {"least": 7, "other": 8}


def test_a_query_over_a_derived_stream_is_shown_over_the_declared_ones(tmp_path: Path) -> None:
    derived = Stream("tx_1a2b3c4d", STREAM.columns, made_of=Derivation("tx WITH f(s) AS e", ("tx",), "digest"))
    (tmp_path / "pond.id").write_text("local")
    ChangingPond(tmp_path, [derived], [replace(each("q"), stream=derived.name)], 1, 4)
    catalog = LogReader(tmp_path)
    assert [one.streams for one in catalog.queries(lambda _: {})] == [("tx",)]
    assert [(one.name, one.source) for one in catalog.streams()] == [("tx, with e", "derived from tx")]


def test_a_rollback_and_a_promotion_are_listed_as_such(tmp_path: Path) -> None:
    (tmp_path / "pond.id").write_text("p")
    pond, catalog, states = ChangingPond(tmp_path, [STREAM], [each("one")]), LogReader(tmp_path), []
    for change in (Shadow(StoredQuery.of(each("one"))), Promote("one"), Promote("one", "ann", back=True)):
        pond.change(change)
        states += [query.state for query in catalog.queries(lambda _: {})]
    assert states == ["shadowed", "promoted", "shadowed"]
    assert [(event.kind, event.who) for event in catalog.history(9)] == [
        ("rollback", "ann"), ("promote", ""), ("shadow", ""),
    ]  # fmt: skip


def test_a_query_that_was_backfilled_stays_whole_when_its_early_version_has_ended(tmp_path: Path) -> None:
    (tmp_path / "pond.id").write_text("p")
    window = Sliding(10_000_000, 10_000_000)
    count = Query("bf", "tx", "ts", 0, window, (), (), (Named("w", Column("window", WINDOW)),))
    pond, catalog, whole = ChangingPond(tmp_path, [STREAM], [each("one")]), LogReader(tmp_path), []
    for change in (Add(StoredQuery.of(count), since_us=18_000_000, backfill_us=ALWAYS), End("bf@0")):
        pond.change(change)
        whole += [query.complete_from_us for query in catalog.queries(lambda _: {}) if query.name == "bf"]
    assert whole == [None, None]
    texts = {event.name: event.text for event in catalog.history(9)}
    assert texts["bf@0"] == "the last window of bf from before its first own one was emitted; bf continues"


def test_a_shadow_is_no_new_version_of_its_query(tmp_path: Path) -> None:
    (tmp_path / "pond.id").write_text("p")
    window = Sliding(10_000_000, 10_000_000)
    count = Query("q", "tx", "ts", 0, window, (), (), (Named("w", Column("window", WINDOW)),))
    pond, catalog, versions = ChangingPond(tmp_path, [STREAM], [count]), LogReader(tmp_path), []
    shadow = Shadow(StoredQuery.of(count), since_us=20_000_000)
    for change in (shadow, End("q@1"), Discard("q"), shadow, Promote("q"), Promote("q", back=True)):
        pond.change(change)
        versions += [query.version for query in catalog.queries(lambda _: {})]
    assert versions == [1, 1, 1, 1, 2, 3]
    last = "the last window of q from before a change (alter, shadow, promote or rollback) was emitted; q continues"
    assert [event.text for event in catalog.history(9) if event.kind == "end"] == [last]


def test_an_earlier_version_is_shown_until_its_last_window(tmp_path: Path) -> None:
    (tmp_path / "pond.id").write_text("p")
    window, made = Sliding(10_000_000, 10_000_000), (Named("w", Column("window", WINDOW)),)
    count = Query("q", "tx", "ts", 0, window, (), (), made, text="SELECT 1")
    pond, catalog, until = ChangingPond(tmp_path, [STREAM], [count]), LogReader(tmp_path), []
    altered = Alter(StoredQuery.of(replace(count, text="SELECT 2")), since_us=20_000_000, until_us=20_000_000)
    for change in (Shadow(StoredQuery.of(count), since_us=20_000_000), End("q@1"), Discard("q"), altered, End("q@2")):
        pond.change(change)
        (shown,) = catalog.queries(lambda _: {})
        until += [shown.earlier_until_us]
        text = "an earlier version still emits windows that start before 1970-01-01 00:00:20Z"
        assert (text in query_line(shown)) == (change is altered)
    assert until == [None, None, None, 20_000_000, None], "only while it emits, and not for a version of the same text"


def test_gauges_count_rows_of_the_versions_of_a_query_as_its_own() -> None:
    gauges = Gauges(lambda: 0)
    gauges.epoch(epoch(1, 9, 0.1, {"one@0": {"rows": 24, "read": 5}, "one@shadow": {"rows": 7}, "one": {"read": 5}}))
    gauges.epoch(epoch(2, 9, 0.1, {"one": {"rows": 6, "read": 4}}))
    assert gauges.counts("one") == {"rows": 30, "read": 9, "applied": 0, "late": 0, "dead": 0, "filtered": 0}


def epoch(n: int, events: int, seconds: float, counts_by_query: dict[str, dict[str, int]] | None = None) -> Epoch:
    counts = {"*": {"events": events}, **(counts_by_query or {"one": {"rows": 2, "late": 1}})}
    record = EpochRecord(n=n, writer="", prev="", at=0, spark_query="", batch=n, start={}, end={}, counts=counts)
    return Epoch(record, seconds)


def test_gauges_report_totals_rates_and_the_slowest_epochs() -> None:
    now = [0]
    gauges = Gauges(lambda: now[0])
    assert gauges.measured().epochs == 0
    for n in range(200):
        now[0] += 1_000_000
        gauges.epoch(epoch(n, 50, 5.0 if n == 7 else 0.5))
    now[0] += 2_000_000
    values = gauges.measured()
    assert (values.epochs, values.events, values.epoch_s, values.since_epoch_s) == (200, 10_000, 0.5, 2.0)
    assert values.epoch_p99_s == 0.5
    assert 39 < values.events_per_s < 50
    now[0] += 60_000_000
    assert gauges.measured().events_per_s == 0.0
    now[0] += 3_600_000_000
    gauges.epoch(epoch(200, 1000, 0.5))
    assert gauges.measured().events_per_s == 2000.0  # without the idle hour
    assert gauges.counts("one") == {"rows": 402, "late": 201}
    assert gauges.counts("other") == {}


def test_instances_and_rows_have_their_place_in_the_history(tmp_path: Path) -> None:
    (tmp_path / "pond.id").write_text("local")
    pond = ChangingPond(tmp_path, [STREAM], [each("one")], 1, 4)
    pond.change(Scale(((0, 2), (1, 2)), "busy", 2, "autoscale"))
    pond.change(Move((("", 3), ("env:SECOND", 1)), "1 of 4 buckets to env:SECOND", "ann"))
    found = LogReader(tmp_path).history(9)
    assert [(one.kind, one.name, one.who, one.text, one.value) for one in found] == [
        ("move", "rows", "ann", "1 of 4 buckets to env:SECOND", None), ("scale", "instances", "autoscale", "busy", 2),
    ]  # fmt: skip
