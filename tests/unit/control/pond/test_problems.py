"""Causes of incomplete results: which of them fail a run, and their texts."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from millpond.control.pond.event_totals import EventCounts, EventTotals, QueryCounts
from millpond.control.pond.problems import (
    Problem,
    Problems,
    losses,
    quarantined,
    unread,
)
from millpond.log.records import EpochRecord, encode
from millpond.model.aggregates import Aggregate
from millpond.model.endpoints import Sink, Source
from millpond.model.expressions import Column
from millpond.model.query import Named, Query
from millpond.model.spec import PondSpec
from millpond.model.stream import Derivation, Field, Malformed, Stream
from millpond.model.windows import Sliding
from millpond.spark.driver.epochs import Epoch

SECOND = 1_000_000
Q = Query(
    "q", "tx", "ts", 0, Sliding(60 * SECOND, 60 * SECOND), (), (Aggregate("count", None, None, "bigint"),),
    (Named("n", Column("agg:0", "bigint")),),
)  # fmt: skip
TX = Stream("tx", (Field("ts", "timestamp"),), Source("json", (("path", "/in"),)))


class Records:
    """A log that is only read."""

    def __init__(self, *records: EpochRecord) -> None:
        self.records = records

    def describe(self, n: int) -> str:
        return f"record {n}"

    def read(self, n: int) -> bytes | None:
        return encode(self.records[n])


def record(n: int = 0, quarantined: Mapping[str, str] | None = None, **counts: int) -> EpochRecord:
    return EpochRecord(
        n=n, writer="w", prev="", at=0, spark_query="", batch=n, start={}, end={}, counts={"q": counts},
        quarantined=dict(quarantined or {}),
    )  # fmt: skip


def lost(read: int, late: int = 0, dead: int = 0, query: Query = Q) -> list[Problem]:
    counts = QueryCounts(EventCounts(read, read - late - dead, late, dead, 0), {})
    return list(losses({"q": counts}, {"q": query}, [TX]))


def test_a_few_late_events_are_a_warning_and_a_tenth_of_all_is_a_failure() -> None:
    assert lost(100) == []
    assert [one.failure for one in lost(100, late=9)] == [False]
    assert [one.failure for one in lost(100, late=6, dead=4)] == [True, True]
    assert [one.failure for one in lost(100, late=6, dead=3)] == [False, False]
    one, two = map(str, lost(8_000, late=3_999, dead=1))
    assert one == (
        "[MP-INCOMPLETE] Query q did not count 3,999 of the 8,000 events it read (late). Run `millpond why q` to see "
        "the reason."
    )
    assert "did not count 1 of the 8,000 events it read (dead)." in two


def test_queries_with_equal_losses_are_one_problem() -> None:
    parts = Stream("tx_1a2b3c4d", TX.columns, made_of=Derivation("tx WITH f(s) AS t", ("tx",), "1"))
    source = replace(TX, malformed=Malformed("dead-letter", Sink("parquet", "/dead")))
    others = [replace(Q, name=f"q{number}", stream="tx" if number % 2 else parts.name) for number in range(5)]
    alike = QueryCounts(EventCounts(100, 95, 0, 5, 0), {})
    more = QueryCounts(EventCounts(99, 79, 15, 5, 0), {})
    counts = {query.name: alike for query in others} | {"z": more}
    found = list(losses(counts, {query.name: query for query in [*others, replace(Q, name="z")]}, [source, parts]))
    assert [one.text for one in found] == [
        "5 queries (q0, q1, q2 and 2 more) did not count 5 of the 100 events each of them read (dead). Run "
        "`millpond why q0` to see the reason, and `millpond dlq list /dead` for the dead letters.",
        "Query z did not count 15 of the 99 events it read (late). Run `millpond why z` to see the reason.",
        "Query z did not count 5 of the 99 events it read (dead). Run `millpond why z` to see the reason, and "
        "`millpond dlq list /dead` for the dead letters.",
    ]
    assert [one.failure for one in found] == [False, True, True]
    whole = EventCounts(9, 8, 0, 1, 0)
    parted = {name: QueryCounts(whole, {at: whole}) for name, at in (("q0", "t-0"), ("q1", "tx:t-0"), ("q2", "t-1"))}
    found = list(losses(parted, {query.name: query for query in others}, [source, parts]))
    assert [one.about for one in found] == ["dead events of q0", "dead events of q2"], "of other partitions"


def test_late_events_that_are_kept_fail_no_run() -> None:
    kept = replace(Q, late=Sink("json", "/late"))
    assert [one.failure for one in lost(100, late=90, query=kept)] == [False]
    assert "kept by its 'late' sink" in lost(100, late=90, query=kept)[0].text
    assert [one.failure for one in lost(100, dead=10, query=kept)] == [True]


def test_a_problem_is_new_once() -> None:
    problems, tally = Problems(), EventTotals()

    def epoch(found: EpochRecord, **missing: list[str]) -> list[str]:
        tally.add(found)
        return [one.about for one in problems.add_epoch(Epoch(found, 0.1, 0.1, missing), tally, {"q": Q}, [TX])]

    assert epoch(record(read=10, applied=10, late=0, dead=0, filtered=0)) == []
    assert epoch(record(1, read=10, applied=0, late=10, dead=0, filtered=0)) == ["late events of q"]
    assert epoch(record(2, read=10, applied=0, late=10, dead=0, filtered=0)) == []
    assert epoch(record(3, {"q": "[MP-OVERFLOW] Too large."})) == ["query q"]
    assert epoch(record(4, {"q": ""})) == []  # which ends a quarantine
    assert epoch(record(5), tx=["/in/a", "/in/b"]) == ["files of tx"]
    epoch(record(6), tx=["/in/c", "/in/d"])
    (one,) = problems.of_inputs()
    assert one.failure and "4 files of stream tx disappeared" in one.text and "/in/c and 1 more" in one.text
    ahead = Epoch(record(7), 0.1, 0.1, ahead={"ev": ["/in/e"]})
    assert [one.about for one in problems.add_epoch(ahead, tally, {"q": Q}, [TX])] == ["dates of ev"]
    _, two = problems.of_inputs()
    assert not two.failure and "1 file of stream ev is dated more than seven days in the future: /in/e." in two.text


def test_a_quarantine_keeps_its_code_and_a_shadow_fails_no_run() -> None:
    one = quarantined("q@2", "[MP-BUDGET] q has 9 keys, more than its 5. => Drop it.")
    assert (one.code, one.about, one.failure) == ("MP-BUDGET", "query q", True)
    assert one.text == "Query q is quarantined and emits no more rows: q has 9 keys, more than its 5. Drop it."
    assert not quarantined("q@shadow", "[MP-OVERFLOW] Too large.").failure


def test_a_source_of_which_nothing_was_ever_read() -> None:
    read, nothing = record(0, read=3), record(0, rows=1)
    tally = EventTotals()

    def silent(*records: EpochRecord, streams: tuple[Stream, ...] = (TX,)) -> list[str]:
        log, spec = Records(*records), PondSpec.of(streams, [Q], 1)
        found = unread(spec, tally.counts(), log, len(records) - 1)  # type: ignore[arg-type]
        return [one.text for one in found if one.failure]

    assert silent(nothing) == [
        "Not one event of stream tx has been read, so nothing can come out of q. Check its path or topic."
    ]
    parts = replace(TX, source=None, made_of=Derivation("src WITH …", ("src",), "digest"))
    (text,) = silent(nothing, streams=(parts,))
    assert text.startswith("Not one event of stream src has been read")
    assert silent(read, nothing) == []  # an earlier run has
    assert len(silent(*[nothing] * 1000)) == 1 and silent(*[nothing] * 1001) == []  # older records are not searched
    tally.add(record(1, read=1, applied=1, late=0, dead=0, filtered=0))
    assert silent(nothing) == []
