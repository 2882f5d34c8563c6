"""Every aggregate function that queries may use has measures that compute it."""

from __future__ import annotations

import pytest

from millpond.model.aggregates import LOGGED, NTH
from millpond.plan.groups.aggregate_functions import EVENT_FUNCTIONS, FUNCTIONS, event_function
from millpond.plan.groups.measure_kinds import KINDS, cell_bytes, usual_columns
from millpond.plan.groups.plan import Measure
from millpond.runtime.aggregates.finish import FINISH
from millpond.runtime.aggregates.partials import PARTIALS
from millpond.runtime.event_log.event_aggregates import _FUNCTIONS as OF_EVENTS


def test_each_function_is_answered_from_measures_or_from_events() -> None:
    assert set(FINISH) == set(FUNCTIONS)
    assert set(OF_EVENTS) == {*LOGGED, NTH, "min", "max"}
    assert {function.name for function in EVENT_FUNCTIONS} == set(LOGGED)


def test_the_event_log_knows_each_function_and_refuses_others() -> None:
    assert [one.name for one in map(event_function, LOGGED) if one.ordered] == [
        "collect_list", "first", "last", "min_by", "max_by", "listagg", "product",
    ]  # fmt: skip
    assert {one.name: one.needs for one in map(event_function, LOGGED) if one.needs is not None} == {
        "first": (), "last": (), "min_by": (1,), "max_by": (1,), "listagg": (0,), "listagg_distinct": (0,),
    }  # fmt: skip
    assert not event_function("min").ordered and event_function("max").needs is None
    assert event_function("user:f@1").ordered and event_function("user:f@1").needs == ()
    with pytest.raises(KeyError, match="no_such_function"):
        event_function("no_such_function")


def test_each_measure_of_a_function_has_a_partial_result_and_a_size() -> None:
    needed = {kind.removeprefix("other ") for function in FUNCTIONS.values() for kind in function.measures}
    assert needed == {*PARTIALS, "count"} == {*KINDS, "registers"}


def test_a_measure_of_an_unknown_kind_is_refused() -> None:
    for size in (cell_bytes, usual_columns):
        with pytest.raises(ValueError, match="no measure of the kind 'power5'"):
            size(Measure("power5", None, None))


def test_no_name_of_sql_belongs_to_two_functions() -> None:
    names = [name for function in (*FUNCTIONS.values(), *EVENT_FUNCTIONS) for name in function.sql]
    assert len(names) == len(set(names))
