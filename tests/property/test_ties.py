"""All aggregates of a query use one order of events: on ties they choose values of one event."""

from __future__ import annotations

from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import UNSET

from kit.inputs.examples import examples
from kit.naive.event_aggregates import of_events
from kit.naive.expressions import evaluate, nested_order
from millpond.kernels.columns import arrow_type, to_arrow
from millpond.model.aggregates import Aggregate
from millpond.model.expressions import Column, Expression, call, struct_of
from millpond.plan.groups.event_log import logged_rows, ties_of
from millpond.runtime.event_log.event_aggregates import ResultRows, input_of_frames, input_of_windows, value_of
from millpond.runtime.event_log.event_order import in_order
from millpond.runtime.event_log.select_events import filter_name, value_name
from millpond.state.layout.event_log import OFFSET, PARTITION, Events

A, C, D, BY = Column("a", "int"), Column("c", "string"), Column("d", "double"), Column("o", "int")
_COLUMNS = (A, C, D, BY)
_FEW = st.none() | st.integers(0, 1)
_ROW = st.tuples(
    st.integers(0, 2), _FEW, st.none() | st.sampled_from("xy"), st.none() | st.sampled_from([-0.0, 0.0]), _FEW
)
"""Time, then the columns: few values, so that almost everything ties."""


def _mask(condition: Expression, values: dict[Column, list[Any]], count: int) -> list[bool]:
    rows = [{column.name: found[i] for column, found in values.items()} for i in range(count)]
    return [evaluate(condition, row) is True for row in rows]


def _events(rows: list[Any], aggregates: list[Aggregate], ordered: bool) -> Events:
    values: dict[Column, list[Any]] = {column: [row[i] for row in rows] for i, column in enumerate(_COLUMNS, 1)}
    columns = {value_name(one): pa.array(values[one], arrow_type(one.type)) for one in _COLUMNS}
    present = call("isnotnull", (C,), "boolean")
    columns[value_name(present)] = pa.array(_mask(present, values, len(rows)))
    for aggregate in aggregates:
        condition = logged_rows(aggregate, None)
        if condition is not None:
            columns[filter_name(condition)] = pa.array(_mask(condition, values, len(rows)), pa.bool_())
    if ordered:
        columns |= {PARTITION: pa.array([row[5] for row in rows]), OFFSET: pa.array([row[6] for row in rows])}
    zeros = np.zeros(len(rows), np.int64)
    return Events(zeros, np.array([row[0] for row in rows], np.int64), zeros, columns)


def _answers(aggregates: list[Aggregate], rows: list[Any], ordered: bool = False) -> list[Any]:
    """Of one window that holds all events, the same by windows and by frames."""
    made = in_order(_events(rows, aggregates, ordered), ties_of(aggregates))
    whole = ResultRows(np.array([0]), np.array([0]), np.array([10]))
    answers = []
    for one in aggregates:
        framed = input_of_frames(one, None, made, np.array([0]), np.array([len(rows)]))
        found = [value_of(taken) for taken in (input_of_windows(one, None, made, whole), framed)]
        first, second = (to_arrow(value, one.type, 1).to_pylist()[0] for value in found)
        assert repr(first) == repr(second)
        answers.append(first)
    return answers


def _aggregates(function: str, columns: tuple[Column, ...], condition: Expression | None = None) -> list[Aggregate]:
    by = BY if function.endswith("_by") else UNSET
    return [Aggregate(function, column, condition, column.type, by) for column in columns]


_CHOOSING = st.sampled_from(("min_by", "max_by", "first", "last"))
_FILTERS = st.sampled_from((None, call("isnotnull", (C,), "boolean")))


@settings(max_examples=examples(25))
@given(st.lists(_ROW, min_size=1, max_size=12), _CHOOSING, st.permutations(_COLUMNS), _FILTERS)
def test_aggregates_of_one_order_choose_one_event(
    rows: list[Any], function: str, columns: list[Column], condition: Expression | None
) -> None:
    chosen = _answers(_aggregates(function, tuple(columns), condition), rows)
    taken = [row for row in rows if (condition is None or row[2] is not None)]
    taken = [row for row in taken if row[4] is not None] if function.endswith("_by") else taken
    found = [repr([row[1 + _COLUMNS.index(column)] for column in columns]) for row in taken]
    assert repr(chosen) in found or (not taken and chosen == [None] * 4)
    if taken and function.endswith("_by"):
        best = (min if function == "min_by" else max)(row[4] for row in taken)
        assert chosen[columns.index(BY)] == best


@settings(max_examples=examples(25))
@given(st.lists(_ROW, min_size=1, max_size=8).flatmap(lambda rows: st.tuples(st.just(rows), st.permutations(rows))))
def test_what_ties_does_not_depend_on_the_order_in_which_events_come(both: Any) -> None:
    aggregates = [one for function in ("min_by", "max_by", "first", "last") for one in _aggregates(function, (C, A, D))]
    aggregates += [Aggregate("collect_list", column, None, f"array<{column.type}>") for column in (A, D)]
    one, other = (_answers(aggregates, list(rows)) for rows in both)
    assert repr(one) == repr(other)  # the sign of zero as well


@settings(max_examples=examples(15))
@given(st.lists(_ROW, min_size=1, max_size=12), st.permutations((A, C, D)))
def test_the_largest_struct_is_of_the_last_event_if_it_begins_with_the_event_time(
    rows: list[Any], columns: list[Column]
) -> None:
    timed = [(*row[:4], row[0]) for row in rows]  # the column `o` is the event time
    inside, last, by = columns
    whole = struct_of([BY, inside], f"struct<o:int,x:{inside.type}>")
    for extreme, end, function in (("max", "last", "max_by"), ("min", "first", "min_by")):
        aggregates = [Aggregate(extreme, whole, None, whole.type)]
        aggregates += [*_aggregates(end, (last,)), *_aggregates(function, (by,))]
        found, *others = _answers(aggregates, timed)
        places = [1 + _COLUMNS.index(one) for one in (inside, last, by)]
        known = [({"o": row[4], "x": row[places[0]]}, [row[place] for place in places[1:]]) for row in timed]
        best = (max if extreme == "max" else min)(nested_order(one) for one, _ in known)
        assert nested_order(found) == best
        assert repr(others) in [repr(rest) for one, rest in known if nested_order(one) == best]


_NESTED = st.tuples(
    st.integers(0, 2), _FEW, st.none() | st.sampled_from("xy"), st.none() | st.sampled_from([0.5, 0.0]), _FEW
)


@settings(max_examples=examples(20))
@given(st.lists(_NESTED, min_size=1, max_size=12))
def test_aggregates_of_structs_are_those_of_the_naive_twin(rows: list[Any]) -> None:
    inner = struct_of([C, D], "struct<c:string,d:double>", call("isnotnull", (C,), "boolean"))
    whole = struct_of([A, inner], "struct<a:int,s:struct<c:string,d:double>>")
    aggregates = [
        Aggregate(name, one, None, one.type)
        for name in ("min", "max", "first", "last", "mode")
        for one in (inner, whole)
    ]
    aggregates += [
        Aggregate(name, one, None, f"array<{one.type}>")
        for name in ("collect_list", "collect_set")
        for one in (inner, whole)
    ]
    aggregates += [Aggregate(name, whole, None, whole.type, BY) for name in ("min_by", "max_by")]
    aggregates += [Aggregate(name, BY, None, "int", inner) for name in ("min_by", "max_by")]
    aggregates.append(Aggregate("count_distinct", inner, None, "bigint"))
    found = _answers(aggregates, rows)
    named = [{column.name: row[i] for i, column in enumerate(_COLUMNS, 1)} for row in rows]
    ties = ties_of(aggregates)
    places = [
        (row[0], [nested_order(evaluate(value, event)) for value in ties])
        for row, event in zip(rows, named, strict=True)
    ]
    for one, answer in zip(aggregates, found, strict=True):
        events = [
            (place, *(evaluate(value, event) for value in one.arguments))
            for place, event in zip(places, named, strict=True)
        ]
        assert _untyped(answer) == _untyped(of_events(one, events, lambda *_: None)), one.function


def _untyped(value: Any) -> Any:
    """With structs as lists of their fields."""
    if isinstance(value, dict):
        value = list(value.values())
    return [_untyped(part) for part in value] if isinstance(value, list | tuple) else value


@settings(max_examples=examples(15))
@given(st.lists(_ROW, min_size=1, max_size=12), st.randoms())
def test_an_order_of_the_source_decides_for_all_of_them(rows: list[Any], dice: Any) -> None:
    placed = [(*row, f"p{i % 2}", i) for i, row in enumerate(rows)]
    dice.shuffle(placed)
    taken = sorted((row for row in placed if row[4] is not None), key=lambda row: (row[4], row[0], row[5], row[6]))
    expected = list(taken[0][1:4]) if taken else [None] * 3
    assert repr(_answers(_aggregates("min_by", (A, C, D)), placed, ordered=True)) == repr(expected)


@settings(max_examples=examples(15))
@given(st.lists(_ROW, min_size=1, max_size=12))
def test_duckdb_chooses_the_same_event_by_the_complete_order(rows: list[Any]) -> None:
    events = pa.table({
        "ts": [row[0] for row in rows],
        "a": pa.array([row[1] for row in rows], pa.int32()),
        "c": pa.array([row[2] for row in rows], pa.string()),
        "o": pa.array([row[4] for row in rows], pa.int32()),
    })  # fmt: skip
    for function, order in (
        ("min_by", "o, ts, a NULLS FIRST, c NULLS FIRST"),
        ("max_by", "o DESC, ts DESC, a DESC NULLS LAST, c DESC NULLS LAST"),
    ):
        text = f"SELECT a, c FROM events WHERE o IS NOT NULL ORDER BY {order} LIMIT 1"
        with duckdb.connect() as judge:
            expected = judge.register("events", events).execute(text).fetchone() or (None, None)
        assert tuple(_answers(_aggregates(function, (A, C)), rows)) == expected


def test_a_query_that_chooses_one_value_more_chooses_the_same_first_value() -> None:
    rows = [(1, 1, "x", None, 5), (1, 0, "y", None, 5)]
    assert _answers(_aggregates("min_by", (A,)), rows) == [0]
    assert _answers(_aggregates("min_by", (A, C)), rows) == [0, "y"]
    assert _answers(_aggregates("min_by", (C, A)), rows) == ["x", 1]


@settings(max_examples=examples(15))
@given(st.lists(_ROW, min_size=1, max_size=12), st.permutations(_COLUMNS), st.booleans())
def test_the_last_event_is_one_event_for_last_and_max_by_the_event_time(
    rows: list[Any], columns: list[Column], ordered: bool
) -> None:
    """And the first event for `first` and `min_by`."""
    rows = [(row[0], *row[1:5], f"p{i % 2}", i) for i, row in enumerate(rows)] if ordered else rows
    timed = [(*row[:4], row[0], *row[5:]) for row in rows]  # the column `o` is the event time
    functions = ("first", "min_by", "last", "max_by")
    mixed = [one for pair in zip(functions, columns, strict=True) for one in _aggregates(pair[0], (pair[1],))]
    first, least, last, largest = _answers(mixed, timed, ordered=ordered)
    places = [1 + _COLUMNS.index(column) for column in columns]
    pairs = [repr([row[places[0]], row[places[1]]]) for row in timed if row[0] == min(one[0] for one in timed)]
    assert repr([first, least]) in pairs
    pairs = [repr([row[places[2]], row[places[3]]]) for row in timed if row[0] == max(one[0] for one in timed)]
    assert repr([last, largest]) in pairs
