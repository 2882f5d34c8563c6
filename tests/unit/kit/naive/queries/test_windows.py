"""The naive twin on timelines short enough to check by eye; seconds are multiplied by ten to the sixth."""

import math
from typing import Any

import pytest

from kit.naive.queries import windows
from kit.naive.queries.windows import Raised, aggregate, answer, answer_after_each, answer_by_epoch, counts
from millpond.errors import OverflowedError
from millpond.model.aggregates import Aggregate
from millpond.model.expressions import Call, Column, Expression, call, literal
from millpond.model.query import Named, Query
from millpond.model.types import WINDOW
from millpond.model.windows import Sliding

S = 1_000_000
K, V, F = Column("k", "string"), Column("v", "int"), Column("f", "double")
ONE, ZERO = literal(1, "int"), literal(0, "int")
INVERSE = Call("divide", (literal(1.0, "double"), Call("cast", (V,), "double")), "double")


def event(second: float | None, **values: Any) -> dict[str, Any]:
    return {"ts": None if second is None else int(second * S), "k": "a", "v": 1, "f": 1.0, **values}


def query(
    aggregates: tuple[Aggregate, ...] = (Aggregate("count", None, None, "bigint"),),
    keys: tuple[Expression, ...] = (),
    size: float = 10, slide: float = 10, offset: float = 0, delay: float = 0, **more: Any,
) -> Query:  # fmt: skip
    output = (
        Named("start", Column("window.start", "timestamp")),
        *(Named(f"key{i}", Column(f"key:{i}", key.type)) for i, key in enumerate(keys)),
        *(Named(f"agg{i}", Column(f"agg:{i}", agg.type)) for i, agg in enumerate(aggregates)),
    )
    return Query(
        name="q", stream="s", event_time="ts", delay_us=int(delay * S),
        window=Sliding(int(size * S), int(slide * S), int(offset * S)),
        keys=keys, aggregates=aggregates, **{"output": output, **more},
    )  # fmt: skip


def starts(rows: list[dict[str, Any]]) -> dict[float, Any]:
    return {row["start"] / S: row["agg0"] for row in rows}


def test_a_window_closes_in_the_epoch_that_lifts_the_watermark_to_its_end() -> None:
    #   time        0    5    9   14 | 15 | 20
    #   delay 5: watermark after      9   10   15
    #   window      [0 ......... 10)  ^open ^closes here
    epochs = [[event(0), event(5), event(9), event(14)], [event(15)], [event(20)]]
    emitted = answer_by_epoch(query(delay=5), epochs, drained=True)
    assert [starts(rows) for rows in emitted] == [{}, {0: 3}, {}, {10: 2, 20: 1}]
    assert starts(answer(query(delay=5), epochs)) == {0: 3}


def test_the_rows_after_each_epoch_are_those_of_a_drain_after_it() -> None:
    epochs = [[event(0), event(5), event(9), event(14)], [event(15), event(2)], [], [event(20), event(31), event(12)]]
    sliding = query(size=15, slide=5, delay=5)
    after = list(answer_after_each(sliding, epochs))
    assert after == [answer(sliding, epochs[: n + 1], drained=True) for n in range(len(epochs))]
    assert [len(rows) for rows in after] == [5, 6, 6, 9]


def test_late_is_at_or_below_the_watermark_of_the_epochs_before() -> None:
    #   epoch 1: 12 -> watermark 7     epoch 2: 7 is late, 7.000001 is not, 3 is
    epochs = [[event(12), event(3)], [event(7), event(7.000001), event(3)]]
    assert counts(query(delay=5), epochs) == {"read": 5, "applied": 3, "late": 2, "dead": 0, "filtered": 0}
    assert starts(answer(query(delay=5), epochs, drained=True)) == {0: 2, 10: 1}
    assert windows.late_marks(query(delay=5), epochs) == [False, False, True, False, True]
    assert windows.watermarks(query(delay=5), epochs) == [None, 7 * S, 7 * S]


def test_nothing_is_late_in_the_first_epoch_and_empty_epochs_change_nothing() -> None:
    epochs = [[], [event(100), event(0)], [], [event(1)]]
    assert [starts(rows) for rows in answer_by_epoch(query(), epochs)] == [{}, {0: 1}, {}, {}]


def test_the_watermark_rises_by_filtered_and_dead_events_too_but_not_without_a_time() -> None:
    where = call("gt", (V, ZERO), "boolean")
    epochs = [[event(0), event(30, v=-1), event(None)], [event(5)]]
    assert counts(query(where=where), epochs) == {
        "read": 4,
        "applied": 1,
        "late": 1,
        "dead": 1,
        "filtered": 1,
    }


def test_sliding_windows_with_an_offset_hold_an_event_before_1970() -> None:
    #            -8        -1         6        13     size 15, every 7, offset 6
    #   [-8 .............. 7)  [-1 ........... 14)  [-15 ...... 0)
    rows = answer(query(size=15, slide=7, offset=6), [[event(-0.5)]], drained=True)
    assert starts(rows) == {-15: 1, -8: 1, -1: 1}


def test_only_a_filter_that_is_true_lets_an_event_in() -> None:
    where = call("gt", (V, ZERO), "boolean")
    rows = [event(1, v=1), event(2, v=0), event(3, v=None)]
    assert starts(answer(query(where=where), [rows], drained=True)) == {0: 1}


def test_a_group_is_null_or_every_nan_or_both_zeros_shown_as_zero() -> None:
    rows = [event(1, f=f) for f in (None, None, math.nan, -math.nan, -0.0, 0.0, 1.0)]
    found = answer(query(keys=(F,)), [rows], drained=True)
    assert sorted((repr(row["key0"]), row["agg0"]) for row in found) == [
        ("0.0", 2), ("1.0", 1), ("None", 2), ("nan", 2),
    ]  # fmt: skip


def test_a_row_that_raises_anywhere_it_is_read_takes_no_part_at_all() -> None:
    positive = call("gt", (V, ZERO), "boolean")
    summed = Aggregate("sum", INVERSE, positive, "double")
    count = Aggregate("count", None, None, "bigint")
    bad_filter = Aggregate("count", None, call("gt", (INVERSE, literal(0.0, "double")), "boolean"), "bigint")
    rows = [event(1, v=2), event(2, v=0)]
    # v = 0 is not read by the sum: its filter is false
    assert starts(answer(query((count, summed)), [rows], drained=True)) == {0: 2}
    for dying in (
        query((count, Aggregate("sum", INVERSE, None, "double"))),
        query((count, bad_filter)),
        query(keys=(INVERSE,)),
        query(where=call("lt", (INVERSE, literal(5.0, "double")), "boolean")),
    ):
        assert starts(answer(dying, [rows], drained=True)) == {0: 1}
        assert counts(dying, [rows])["dead"] == 1
    # a row that WHERE keeps out is not read any further
    assert counts(query(keys=(INVERSE,), where=positive), [rows])["filtered"] == 1


@pytest.mark.parametrize(("function", "kind", "values", "expected"), [
    ("count", "bigint", [], 0), ("count", "bigint", [1, None, 2], 2), ("sum", "bigint", [None], None),
    ("sum", "bigint", [2**62, 2**62, -(2**62)], 2**62), ("sum", "double", [1e100, 1.0, -1e100], 1.0),
    ("sum", "double", [0.1] * 10, 1.0), ("sum", "double", [1e308, 1e308, -1e308], 1e308),
    ("sum", "double", [1e308, 1e308], math.inf), ("sum", "double", [math.inf, 1.0, math.inf], math.inf),
    ("sum", "double", [math.inf, -math.inf], math.nan), ("sum", "double", [math.nan, math.inf], math.nan),
    ("sum", "double", [5e-324, 5e-324], 1e-323), ("sum", "double", [], None),
    ("min", "double", [math.nan, 1.0, None], 1.0), ("min", "double", [math.nan], math.nan),
    ("max", "double", [math.nan, math.inf], math.nan), ("max", "double", [None], None),
    ("min", "string", ["b", "", "a"], ""), ("max", "boolean", [False, True], True),
    ("avg", "double", [1, 2, 2], 5 / 3), ("avg", "double", [2**53 + 1, 2**53 + 1], float(2**53 + 1)),
    ("avg", "double", [1e308, 1e308], math.inf), ("avg", "double", [None], None),
    ("var_samp", "double", [1.0], None), ("var_pop", "double", [1.0], 0.0),
    ("stddev_samp", "double", [math.inf], None),
    ("var_pop", "double", [math.inf], math.nan), ("stddev_samp", "double", [1.0, math.nan], math.nan),
    ("var_samp", "double", [1.0, 2.0, 4.0], 7 / 3), ("var_pop", "double", [1.0, 2.0, 4.0], 14 / 9),
    ("stddev_samp", "double", [1e16, 1e16 + 2], math.sqrt(2.0)), ("stddev_pop", "double", [3.0, 3.0], 0.0),
    ("var_pop", "double", [1e200, -1e200], math.inf), ("var_pop", "double", [], None),
])  # fmt: skip
def test_aggregates(function: str, kind: str, values: list[Any], expected: Any) -> None:
    found = aggregate(Aggregate(function, V, None, kind), values)
    assert type(found) is type(expected)
    assert repr(found) == repr(expected)


def test_an_integer_sum_that_leaves_its_type_is_an_error_of_the_query() -> None:
    total = query((Aggregate("sum", Column("g", "bigint"), None, "bigint"),))
    rows = [event(1, g=2**63 - 1), event(2, g=1)]
    with pytest.raises(OverflowedError):
        answer(total, [rows], drained=True)
    assert starts(answer(total, [[*rows, event(3, g=-1)]], drained=True)) == {0: 2**63 - 1}


def test_having_must_be_true_and_the_output_is_computed_above_the_aggregates() -> None:
    total = Column("agg:0", "bigint")
    output = (
        Named("w", Column("window", WINDOW)),
        Named("double", Call("add", (total, total), "bigint")),
        Named("key", Column("key:0", "string")),
    )
    having = call("gt", (total, literal(1, "bigint")), "boolean")
    rows = [event(1), event(2), event(3, k="b")]
    found = answer(query(keys=(K,), having=having, output=output), [rows], drained=True)
    assert found == [{"w": {"start": 0, "end": 10 * S}, "double": 4, "key": "a"}]


def test_an_output_or_having_that_raises_is_an_error_of_the_query() -> None:
    count = Call("cast", (Column("agg:0", "bigint"),), "double")
    raising = Call("divide", (count, literal(0.0, "double")), "double")
    with pytest.raises(Raised):
        answer(query(output=(Named("x", raising),)), [[event(1)]], drained=True)
    with pytest.raises(Raised):
        answer(query(having=Call("isnan", (raising,), "boolean")), [[event(1)]], drained=True)
    never = literal(False, "boolean")
    assert answer(query(having=never, output=(Named("x", raising),)), [[event(1)]], drained=True) == []


def test_no_events_give_no_rows() -> None:
    assert answer(query(), [], drained=True) == []
    assert answer_by_epoch(query(), [[], []]) == [[], []]
