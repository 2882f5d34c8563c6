"""Events assigned to result rows, sorted and selected: compared with plain loops."""

from __future__ import annotations

import math
import random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given as drawn
from hypothesis import strategies as st
from msgspec import UNSET

from kit.naive.queries.windows import aggregate as naive_aggregate
from millpond.kernels.columns import to_arrow
from millpond.kernels.ranks import ranks
from millpond.model.aggregates import DISTINCT_VALUES, Aggregate
from millpond.model.expressions import Column, call, literal
from millpond.plan.groups.event_log import log_plan, logged_rows, ties_of
from millpond.runtime.event_log.event_aggregates import ResultRows, input_of_windows, rows_of, value_of
from millpond.runtime.event_log.event_log import among, of_slots
from millpond.runtime.event_log.event_order import in_order
from millpond.runtime.event_log.select_events import column_types, filter_name, value_name
from millpond.state.layout.event_log import OFFSET, PARTITION, Events, concatenated

X = Column("x", "double")
ANY = call("isnotnull", (X,), "boolean")


def events(slots: list[int], times: list[int], values: list[float | None], **more: pa.Array) -> Events:
    columns = {value_name(X): pa.array(values, pa.float64())}
    columns[filter_name(ANY)] = pa.array([value is not None for value in values])
    order = np.argsort(slots, kind="stable")
    made = Events(np.array(slots), np.array(times), np.zeros(len(slots), np.int64), columns | more)
    return made.take(order)


def answered(aggregate: Aggregate, given: Events, found: ResultRows) -> list[Any]:
    taken = input_of_windows(aggregate, None, in_order(given, ties_of([aggregate])), found)
    return to_arrow(value_of(taken), aggregate.type, len(found.slots)).to_pylist()


@pytest.mark.parametrize("seed", range(40))
def test_an_event_belongs_to_every_window_of_its_key_that_holds_it(seed: int) -> None:
    dice = random.Random(seed)
    size, slide = dice.choice([(10, 10), (30, 10), (7, 3), (5, 5)])
    count = dice.randrange(1, 80)
    keys, times = ([dice.randrange(most) for _ in range(count)] for most in (6, 100))
    given = events(keys, times, [1.0] * count)
    rows = sorted({(dice.randrange(6), start) for start in range(-10, 100, slide) for _ in range(2)})
    if seed % 4 == 0:  # one window of each key, as in tumbling windows
        rows = list({slot: (slot, start) for slot, start in rows}.values())
    if seed % 8 == 0:  # slots that are far apart
        rows = [(slot * 10_000, start) for slot, start in rows]
        given = given._replace(slots=given.slots * 10_000)
    dice.shuffle(rows)
    slots, starts = (np.array(column) for column in zip(*rows, strict=True))
    index, owners = rows_of(given, ResultRows(slots, starts, starts + size))
    expected = {
        (i, row)
        for i, (slot, time) in enumerate(zip(given.slots.tolist(), given.times_us.tolist(), strict=True))
        for row, (owner, start) in enumerate(rows)
        if owner == slot and start <= time < start + size
    }
    assert len(index) == len(expected)
    assert set(zip(index.tolist(), owners.tolist(), strict=True)) == expected


def test_rows_without_events_are_null_or_empty() -> None:
    found = ResultRows(np.array([0, 1]), np.array([0, 0]), np.array([10, 10]))
    given = events([0, 0], [1, 2], [None, None])
    for function, kind, nothing in (
        ("percentile", "double", None), ("mode", "double", None), ("count_distinct", "bigint", 0),
        ("collect_list", "array<double>", []), ("collect_set", "array<double>", []), ("sum_distinct", "double", None),
    ):  # fmt: skip
        aggregate = Aggregate(function, X, None, kind, parameters=(literal(0.5, "double"),))
        assert answered(aggregate, given, found) == [nothing, nothing]
        assert answered(aggregate, given.take(np.zeros(0, np.int64)), found) == [nothing, nothing]


def test_values_are_ordered_as_spark_orders_them() -> None:
    column = pa.array([math.nan, None, -0.0, math.inf, 0.0, -1.0])
    order = ranks(column, "double")
    assert order.argsort(kind="stable").tolist() == [1, 5, 2, 4, 3, 0]
    assert order[2] == order[4]
    assert ranks(pa.array(["b", None, "ä", "a", "b"]), "string").tolist()[1:] == [
        np.iinfo(np.int64).min, 2, 0, 1,
    ]  # fmt: skip


def test_the_first_is_first_by_time_then_by_partition_and_offset_else_by_value() -> None:
    found = ResultRows(np.array([0]), np.array([0]), np.array([10]))
    first, last = (Aggregate(function, X, None, "double") for function in ("first", "last"))
    bare = events([0, 0, 0], [2, 1, 1], [1.0, 5.0, 3.0])
    assert (answered(first, bare, found), answered(last, bare, found)) == ([3.0], [1.0])
    placed = events(
        [0, 0, 0], [1, 1, 1], [1.0, 5.0, 3.0],
        **{PARTITION: pa.array(["b", "a", "a"]), OFFSET: pa.array([0, 9, 7])},
    )  # fmt: skip
    assert (answered(first, placed, found), answered(last, placed, found)) == ([3.0], [1.0])


def test_a_median_of_many_keys_is_numpys() -> None:
    random_ = np.random.default_rng(3)
    slots = np.sort(random_.integers(0, 500, 20_000))
    values = random_.normal(size=20_000) * 10.0 ** random_.integers(-5, 6, 20_000)
    given = events(slots.tolist(), [1] * 20_000, values.tolist())
    found = ResultRows(np.arange(500), np.zeros(500, np.int64), np.full(500, 10))
    median = Aggregate("percentile", X, None, "double", parameters=(literal(0.5, "double"),))
    expected = [float(np.median(values[slots == slot])) for slot in range(500)]
    assert answered(median, given, found) == pytest.approx(expected, rel=1e-15)


def test_equal_values_and_filters_are_kept_once() -> None:
    queries = [
        (aggregate.arguments, logged_rows(aggregate, None))
        for function in ("percentile", "mode", "count_distinct", "first")
        for aggregate in (Aggregate(function, X, None, "double"),)
    ]
    log = log_plan(queries)
    assert log is not None
    assert (log.values, log.filters, log.takes_all) == ((X,), (ANY,), True)
    assert log_plan([]) is None
    assert list(column_types(log, ordered=True)) == [value_name(X), filter_name(ANY), PARTITION, OFFSET]


def test_a_column_that_older_events_lack_is_null() -> None:
    old = Events(np.array([0]), np.array([5]), np.array([0]), {})
    both = concatenated([old, events([1], [6], [2.0])], {value_name(X): pa.float64(), filter_name(ANY): pa.bool_()})
    assert both.columns[value_name(X)].to_pylist() == [None, 2.0]
    found = ResultRows(np.array([0, 1]), np.array([0, 0]), np.array([9, 9]))
    assert answered(Aggregate("count_distinct", X, None, "bigint"), both, found) == [0, 1]


def test_some_slots_are_selected_by_their_positions() -> None:
    given = events([3, 5, 5, 9], [1, 2, 3, 4], [1.0, 2.0, 3.0, 4.0])
    assert among(given, np.array([5, 8, 9])).slots.tolist() == [0, 0, 2]
    assert of_slots(given, 4, 3).slots.tolist() == [1, 1]
    assert among(given, np.zeros(0, np.int64)).rows == 0


def test_the_least_integer_is_no_null() -> None:
    least, most = -(1 << 63), (1 << 63) - 1
    found = ranks(pa.array([0, None, least, most, least], pa.int64()), "bigint")
    assert np.argsort(found, kind="stable").tolist() == [1, 2, 4, 0, 3]
    assert found[2] == found[4] != found[1]


def test_texts_are_joined_in_the_requested_order() -> None:
    text, number = Column("k", "string"), Column("n", "bigint")
    columns = {
        value_name(text): pa.array(["a", "b", "", "b", None, "c"]),
        value_name(number): pa.array([2, None, 1, 2, 7, 1], pa.int64()),
        filter_name(call("isnotnull", (text,), "boolean")): pa.array([True, True, True, True, False, True]),
    }
    given = Events(np.array([0, 0, 0, 0, 0, 2]), np.array([6, 5, 4, 3, 2, 1]), np.zeros(6, np.int64), columns)
    found = ResultRows(np.array([0, 1, 2]), np.zeros(3, np.int64), np.full(3, 10))

    def joined_texts(function: str, delimiter: str, *by: tuple[Column, str]) -> list[str | None]:
        parameters = tuple(literal(one, "string") for one in (delimiter, *(direction for _, direction in by)))
        columns = [column for column, _ in by]
        other, more = columns[0] if columns else UNSET, tuple(columns[1:]) or UNSET
        return answered(Aggregate(function, text, None, "string", other, parameters, more), given, found)

    assert joined_texts("listagg", "-") == ["b--b-a", None, "c"]  # in the order of time
    assert joined_texts("listagg_distinct", ", ") == [", a, b", None, "c"]
    assert joined_texts("listagg_distinct", "", (text, "desc nulls last")) == ["ba", None, "c"]
    expected = {
        "asc nulls first": "b||b|a", "asc nulls last": "|b|a|b",
        "desc nulls first": "b|b|a|", "desc nulls last": "b|a||b",
    }  # fmt: skip
    for direction, said in expected.items():
        assert joined_texts("listagg", "|", (number, direction)) == [said, None, "c"], direction
    both = ((number, "asc nulls last"), (text, "asc nulls last"))
    assert joined_texts("listagg", "|", *both) == ["|a|b|b", None, "c"]


_EQUAL = ("collect_set", "mode", "percentile", "percentile_disc", "approx_percentile", "min", "max", "sum_distinct")


@pytest.mark.parametrize("function", _EQUAL)
@pytest.mark.parametrize("values", [[0.0, -0.0, -0.0], [-0.0, -0.0, 0.0], [-0.0], [0.0]])
def test_functions_that_compare_values_show_one_zero(function: str, values: list[float]) -> None:
    kind = "array<double>" if function == "collect_set" else "double"
    parameters = (literal(0.5, "double"),) if "percentile" in function else ()
    aggregate = Aggregate(function, X, None, kind, parameters=parameters)
    found = ResultRows(np.array([0]), np.array([0]), np.array([10]))
    shown = answered(aggregate, events([0] * len(values), [1] * len(values), list(values)), found)
    assert repr(shown) == ("[[0.0]]" if function == "collect_set" else "[0.0]")


_NUMBERS = st.none() | st.sampled_from([0.0, -0.0, 1.5, -2.0, 1e200, math.nan, math.inf]) | st.floats(-9, 9)


@pytest.mark.parametrize("function", ["product", *(name for name in DISTINCT_VALUES if name != "bit_xor_distinct")])
@drawn(rows=st.lists(st.tuples(st.integers(0, 2), _NUMBERS), min_size=1, max_size=12))
def test_products_and_functions_of_distinct_values_are_those_of_the_naive_twin(
    function: str, rows: list[tuple[int, float | None]]
) -> None:
    wanted = Aggregate(function, X, None, "double")
    slots, values = [slot for slot, _ in rows], [value for _, value in rows]
    found = ResultRows(np.arange(3), np.zeros(3, np.int64), np.full(3, len(rows) + 1))
    ours = answered(wanted, events(slots, list(range(len(rows))), values), found)
    places = [[(place, value) for place, (slot, value) in enumerate(rows) if slot == own] for own in range(3)]
    assert repr(ours) == repr([naive_aggregate(wanted, own) for own in places])
