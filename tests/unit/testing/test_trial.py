"""`Trial` as a user's test sees it; the queries are those of shop.sql, compiled once to shop.json."""

from __future__ import annotations

import gc
import subprocess
import sys
from collections.abc import Iterator
from datetime import date, datetime, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from msgspec.structs import replace

from millpond.errors import OverflowedError, QueryTypeError, UnsupportedQuery
from millpond.model.windows import Session
from millpond.plan.options.output_modes import with_mode
from millpond.testing import Trial
from millpond.testing.compiled_file import load_compiled

SHOP = Path(__file__).with_name("shop.json")
SPENT = [
    {"customer": "a", "amount": 5, "ts": "2026-01-01 00:00:01"},
    {"customer": "b", "amount": 1.5, "ts": "2026-01-01 00:20:00"},
    {"customer": "a", "amount": 2.5, "ts": "2026-01-01 00:59:59"},
]
FIRST_HOUR = {"start": "2026-01-01 00:00:00", "end": "2026-01-01 01:00:00"}


def at(hour: int, minute: int = 0) -> datetime:
    return datetime(2026, 1, 1, hour, minute, tzinfo=timezone.utc)


@pytest.fixture
def spend() -> Iterator[Trial]:
    with Trial(SHOP, only=["spend"]) as trial:
        yield trial


def test_a_window_closes_when_the_watermark_passes_its_end(spend: Trial) -> None:
    spend.feed("tx", SPENT)
    spend.advance("tx", to="2026-01-01 01:00:09.999999")
    assert spend.rows("spend") == []
    spend.advance("tx", to="2026-01-01 01:00:10")
    hour = {"start": at(0), "end": at(1)}
    assert spend.rows("spend") == [
        {"customer": "a", "w": hour, "total": 7.5},
        {"customer": "b", "w": hour, "total": 1.5},
    ]
    assert spend.rows("spend") == []
    assert spend.table("spend").num_rows == 2


def test_rows_that_may_change_are_tried_too() -> None:
    spec = load_compiled(SHOP).spec
    plain = next(query for query in spec.all_queries if query.name == "spend")
    corrected = replace(with_mode(plain, "final", 3_600_000_000), name="corrected")
    queries = [replace(with_mode(plain, "update", None), name="update"), corrected]
    with Trial.of(spec.streams, queries) as trial:
        trial.feed("tx", SPENT[:2])
        trial.expect("update", [
            {"customer": "a", "w": FIRST_HOUR, "total": 5, "_op": "upsert"},
            {"customer": "b", "w": FIRST_HOUR, "total": 1.5, "_op": "upsert"},
        ])  # fmt: skip
        trial.advance("tx", to="2026-01-01 01:30:00")
        assert {row["_revision"] for row in trial.rows("corrected")} == {0}
        trial.feed("tx", SPENT[2:])
        row = {"customer": "a", "w": FIRST_HOUR, "total": 7.5, "_op": "upsert", "_revision": 1}
        trial.expect("corrected", [row])
        assert trial.fates("corrected")["late"] == 0
        with pytest.raises(UnsupportedQuery, match="depend on the cut"):
            trial.assert_same_for_any_cut({"tx": SPENT})


def test_sessions_that_may_change_are_tried_too() -> None:
    spec = load_compiled(SHOP).spec
    plain = next(query for query in spec.all_queries if query.name == "spend")
    query = with_mode(replace(plain, window=Session(1_800_000_000)), "update", None)
    first, longer = ({"start": "2026-01-01 00:00:01", "end": f"2026-01-01 00:{end}"} for end in ("30:01", "50:00"))
    with Trial.of(spec.streams, [query]) as trial:
        trial.feed("tx", SPENT[:1])
        trial.expect("spend", [{"customer": "a", "w": first, "total": 5, "_op": "upsert"}])
        trial.feed("tx", [{"customer": "a", "amount": 1, "ts": "2026-01-01 00:20:00"}])
        trial.expect("spend", [
            {"customer": "a", "w": first, "total": 5, "_op": "delete"},
            {"customer": "a", "w": longer, "total": 6, "_op": "upsert"},
        ])  # fmt: skip


def test_time_moves_without_an_event(spend: Trial) -> None:
    spend.feed("tx", SPENT)
    spend.advance("tx", to=at(5))
    spend.advance("tx", to=at(4))  # never back
    spend.feed("tx", [{"customer": "a", "amount": 1.0, "ts": "2026-01-01 04:59:50"}])
    assert spend.fates("spend") == {"read": 4, "applied": 3, "late": 1, "dead": 0, "filtered": 0}
    spend.feed("tx", [{"customer": "a", "amount": 1.0, "ts": "2026-01-01 04:59:50.000001"}])
    assert spend.fates("spend")["applied"] == 4


def test_late_events_are_seen(spend: Trial) -> None:
    spend.advance("tx", to=at(1))
    spend.feed("tx", SPENT[:1])
    late = {"ts": datetime(2026, 1, 1, 0, 0, 1, tzinfo=timezone.utc), "customer": "a", "amount": 5.0}
    missed = datetime(2026, 1, 1, 0, 59, 50, tzinfo=timezone.utc)
    assert spend.late("spend") == [late | {"_watermark": missed}]
    assert spend.late("spend") == []
    spend.drain()
    assert spend.rows("spend") == []


def test_expected_rows_come_in_any_order_and_as_people_write_them(spend: Trial) -> None:
    spend.feed("tx", SPENT)
    spend.drain()
    spend.expect(
        "spend",
        [{"customer": "b", "w": FIRST_HOUR, "total": 1.5}, {"customer": "a", "w": FIRST_HOUR, "total": 7.5}],
    )


def test_differences_are_reported_with_times(spend: Trial) -> None:
    spend.feed("tx", SPENT[:1])
    spend.drain()
    with pytest.raises(AssertionError) as caught:
        spend.expect("spend", [{"customer": "a", "w": FIRST_HOUR, "total": 6}])
    assert "spend: 1 rows expected, 1 found: 1 missing, 1 surplus." in str(caught.value)
    assert "'start': '2026-01-01 00:00:00'" in str(caught.value)
    assert "total is 5.0" in str(caught.value)


def test_an_expected_value_of_another_type_is_an_error(spend: Trial) -> None:
    spend.feed("tx", SPENT[:1])
    spend.drain()
    with pytest.raises(QueryTypeError, match="'5' cannot be total of spend"):
        spend.expect("spend", [{"customer": "a", "w": FIRST_HOUR, "total": "5"}])


def test_a_second_driver_takes_over(spend: Trial) -> None:
    spend.feed("tx", SPENT[:2])
    spend.restart()
    spend.feed("tx", SPENT[2:])
    spend.restart()
    spend.drain()
    spend.restart()
    assert [row["total"] for row in spend.rows("spend")] == [7.5, 1.5]


def test_the_folder_is_gone_afterwards(spend: Trial) -> None:
    folder = spend._folder
    assert folder.is_dir()
    spend.close()
    assert not folder.exists()
    for use in (spend.drain, spend.restart, lambda: spend.rows("spend")):
        with pytest.raises(QueryTypeError, match="The trial is closed"):
            use()


def test_a_trial_that_is_never_closed_leaves_nothing() -> None:
    trial = Trial(SHOP, only="spend")
    folder = trial._folder
    assert folder.is_dir()
    del trial
    gc.collect()
    assert not folder.exists()


def test_values_of_every_type() -> None:
    row = {"price": Decimal("2.50"), "day": "2026-01-02", "ok": True, "ts": at(0, 10)}
    with Trial(SHOP, only=["sales"]) as trial:
        trial.feed("tx", [row, row | {"day": date(2026, 1, 2), "price": 3}, row | {"ok": False}, row | {"day": None}])
        trial.feed("tx", [row | {"ts": None}])
        trial.drain()
        rows = trial.rows("sales")
        found = {"day": date(2026, 1, 2), "n": 2, "revenue": Decimal("5.50"), "newest": at(0, 10)}
        start = datetime(2025, 12, 31, 23, 30, tzinfo=timezone.utc)
        assert rows == [found | {"start": start}, found | {"start": at(0)}]
        assert trial.fates("sales") == {"read": 5, "applied": 3, "late": 0, "dead": 1, "filtered": 1}


class Frame:
    """What polars and others look like: text as views, times without a zone."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self._table.__arrow_c_stream__(requested_schema)


FLAT = [dict(row, amount=float(row["amount"])) for row in SPENT]
DATED = pd.DataFrame(SPENT, index=[3, 1, 2]).assign(ts=lambda frame: pd.to_datetime(frame["ts"]))
FRAMES: dict[str, Any] = {
    "table": pa.Table.from_pylist(FLAT),
    "batch": pa.RecordBatch.from_pylist(FLAT),
    "pandas": DATED,
    "categories": DATED.astype({"customer": "category"}),
    "views": Frame(
        pa.table({
            "customer": pa.array([row["customer"] for row in SPENT], pa.string_view()),
            "amount": pa.array([row["amount"] for row in FLAT], pa.float32()),
            "ts": pa.array(DATED["ts"].to_numpy(), pa.timestamp("ms")),
        })
    ),
}  # fmt: skip


@pytest.mark.parametrize("form", FRAMES)
def test_rows_come_in_as_tables_and_frames(spend: Trial, form: str) -> None:
    spend.feed("tx", FRAMES[form])
    spend.drain()
    assert [row["total"] for row in spend.rows("spend")] == [7.5, 1.5]


@pytest.mark.parametrize(
    "rows, said",
    [
        ([SPENT[0], {"customer": "a", "ts": None}], "Row 1 fed to tx lacks the column amount, which spend reads"),
        ([SPENT[0] | {"amuont": 1.0}], "Row 0 fed to tx has a column amuont, which the stream does not have"),
        ([SPENT[0] | {"amount": "5"}], "Row 0 fed to tx has '5' (str) as amount. It must be a double"),
        ([SPENT[0] | {"amount": True}], "has True (bool) as amount"),
        ([SPENT[0] | {"amount": 2**53 + 1}], "as amount. It must be a double: a float, or an int that is one"),
        ([SPENT[0] | {"customer": 5}], "has 5 (int) as customer. It must be a string"),
        ([SPENT[0] | {"ts": "yesterday"}], "as ts. It must be a time like '2026-01-01 10:00:00'"),
        ([SPENT[0] | {"ts": 1.5}], "as ts. It must be a time: text, a datetime or microseconds"),
        (pa.table({"customer": ["a"]}), "The table fed to tx lacks the column amount"),
        (pa.table({"customer": [5], "amount": [1.0], "ts": ["2026-01-01"]}), "has 5 (int) as customer"),
        (
            pa.table({"customer": ["a"], "amount": [1.0], "ts": pa.array([1], pa.timestamp("ns"))}),
            "The times fed to tx as ts do not fit",
        ),
    ],
)
def test_rows_that_do_not_fit_are_reported_and_none_is_added(spend: Trial, rows: Any, said: str) -> None:
    with pytest.raises(QueryTypeError) as caught:
        spend.feed("tx", rows)
    assert said in str(caught.value)
    assert str(caught.value).startswith("[MP-TYPE] ")
    assert spend.fates("spend")["read"] == 0


def test_names_that_do_not_exist_are_reported(spend: Trial) -> None:
    with pytest.raises(QueryTypeError, match="No query reads a stream calls"):
        spend.feed("calls", [])
    for ask in (spend.rows, spend.late, spend.fates, spend.table):
        with pytest.raises(QueryTypeError, match="There is no query spent"):
            ask("spent")
    with pytest.raises(QueryTypeError, match=r"There is no query spent\. There are callers, codes"):
        Trial(SHOP, only=["spent"])
    with pytest.raises(QueryTypeError, match="cannot be moved to 'soon'"):
        spend.advance("tx", to="soon")


def test_columns_that_no_query_reads_may_be_there_or_not(spend: Trial) -> None:
    spend.feed("tx", [SPENT[0] | {"note": 5, "tags": ["x"]}, SPENT[1]])
    spend.drain()
    assert len(spend.rows("spend")) == 2


def test_an_event_that_raises_is_dead_and_counted() -> None:
    with Trial(SHOP, only=["shares", "spend"]) as trial:
        trial.feed("tx", [SPENT[0] | {"pieces": 0}, SPENT[1] | {"pieces": 3}])
        trial.drain()
        assert trial.fates("shares")["dead"] == 1
        trial.expect("shares", [{"w": FIRST_HOUR, "shares": 0.5}])
        assert len(trial.rows("spend")) == 2


def test_a_query_whose_result_raises_says_so_instead_of_having_no_rows() -> None:
    with Trial(SHOP, only=["counted"]) as trial:
        trial.feed("tx", [{"ts": at(0)}, {"ts": at(0)}])
        trial.drain()
        for ask in (trial.rows, trial.table):
            with pytest.raises(OverflowedError, match="counted is quarantined"):
                ask("counted")
        trial.feed("tx", [{"ts": at(0)}])
        assert len(trial.late("counted")) == 1  # late it is all the same


CODE = "regexp_extract(note, '([A-Z]+)', 1)"


def test_what_only_spark_evaluates_is_named() -> None:
    with Trial(SHOP, only=["codes"]) as trial, pytest.raises(UnsupportedQuery) as caught:
        trial.feed("tx", [{"note": "AB-1", "ts": at(0)}])
    assert f"Only Spark evaluates `{CODE}`, which codes reads of tx" in str(caught.value)


def test_a_test_may_give_the_values_that_only_spark_evaluates() -> None:
    with Trial(SHOP, only=["codes"]) as trial:
        trial.feed("tx", [{CODE: code, "note": "?", "ts": at(0)} for code in ("AB", "C", "AB", None)])
        trial.drain()
        trial.expect("codes", [{"code": code, "w": FIRST_HOUR, "n": n} for code, n in (("AB", 2), ("C", 1), (None, 1))])


def test_late_rows_that_cannot_be_held_are_refused_and_the_query_still_runs() -> None:
    with Trial(SHOP, only=["tagged"]) as trial:
        trial.feed("tx", [{"customer": "a", "size(tags)": 2, "ts": at(0)}] * 2)
        trial.drain()
        trial.expect("tagged", [{"customer": "a", "w": FIRST_HOUR, "n": 4}])
        with pytest.raises(UnsupportedQuery, match="tags of type array<string>"):
            trial.late("tagged")


def test_a_derived_stream_is_fed_itself() -> None:
    with Trial(SHOP, only=["rated"]) as trial:
        with pytest.raises(UnsupportedQuery, match=r"Spark makes tx_.* of tx .tx LEFT JOIN csv nor/that ON"):
            trial.feed("tx", SPENT)
        name = trial.queries["rated"].stream
        columns = [row | {"join1": row["customer"] == "a", "join1.rate": 2.0} for row in SPENT]
        trial.feed(name, columns)
        trial.drain()
        trial.expect("rated", [{"customer": "a", "w": FIRST_HOUR, "total": 15}])


CALLS = [
    {"part": part, "off": off, "who": who, "ts": f"2026-01-01 00:{minute:02}:{second:02}"}
    for part, off, who, minute, second in [
        (0, 0, "a", 0, 5), (1, 0, "b", 0, 1), (0, 1, "a", 3, 0),
        (0, 2, "c", 1, 0), (1, 1, "b", 4, 0), (1, 2, "a", 3, 55),
    ]
]  # fmt: skip


def test_the_watermark_of_an_ordered_stream_waits_for_each_source_partition() -> None:
    with Trial(SHOP, only=["callers"]) as trial:
        with pytest.raises(QueryTypeError, match="No source partition of calls is known yet"):
            trial.advance("calls", to=at(1))
        trial.feed("calls", CALLS[:2])
        trial.advance("calls", to=at(1), partition="0")
        assert trial.rows("callers") == []
        trial.advance("calls", to=at(1))
        assert len(trial.rows("callers")) == 2


def test_no_cut_changes_an_answer_of_an_ordered_stream() -> None:
    with Trial(SHOP, only=["callers"]) as trial:
        trial.assert_same_for_any_cut({"calls": CALLS}, cuts=6)
        assert trial.fates("callers")["read"] == 0  # the trial itself was not touched


def test_no_cut_changes_an_answer_where_nothing_is_late(spend: Trial) -> None:
    spend.assert_same_for_any_cut({"tx": SPENT}, cuts=6)


def test_late_events_of_an_unordered_stream_are_reported_to_depend_on_the_cut(spend: Trial) -> None:
    with pytest.raises(AssertionError, match=r"0 events are late in one epoch, [12] when cut into"):
        spend.assert_same_for_any_cut({"tx": SPENT[::-1]})


def test_events_are_fed_in_random_epochs(spend: Trial) -> None:
    spend.feed("tx", SPENT, cut=3)
    assert spend._at_work().manifest.n > 2
    spend.drain()
    assert [row["total"] for row in spend.rows("spend")] == [7.5, 1.5]


def test_a_trial_of_queries_at_hand() -> None:
    spec = load_compiled(SHOP).spec
    with Trial.of(spec.streams, spec.queries, only=["spend", "callers"], instances=3) as trial:
        assert {*trial.streams} == {"tx", "calls"} and {*trial.queries} == {"spend", "callers"}
        trial.feed("tx", SPENT)
        trial.feed("calls", CALLS)
        trial.drain()
        assert [row["total"] for row in trial.rows("spend")] == [7.5, 1.5]
        assert sum(row["n"] for row in trial.rows("callers")) == 5


def test_a_table_without_rows_has_its_types(spend: Trial) -> None:
    assert spend.table("spend").schema.field("total").type == pa.float64()


def test_no_spark_and_no_hypothesis_is_imported() -> None:
    program = f"""
import sys
from millpond.testing import Trial
with Trial({str(SHOP)!r}, only=["spend"]) as trial:
    trial.feed("tx", {SPENT!r})
    trial.drain()
    assert len(trial.rows("spend")) == 2
assert not {{"pyspark", "py4j", "hypothesis", "duckdb"}} & {{*sys.modules}}, sorted(sys.modules)
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
