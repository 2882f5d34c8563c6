"""The table of the kinds of state: every kind of group has one, and each defines how its state migrates."""

from __future__ import annotations

from typing import get_args

import pytest
from msgspec.structs import replace

from millpond.model.aggregates import Aggregate
from millpond.model.expressions import Column
from millpond.model.query import Named, Query
from millpond.model.stream import Field, Stream
from millpond.model.windows import Counted, Range, Session, Sliding, Window
from millpond.plan.groups.build import build_plan
from millpond.plan.groups.deduplication import deduplicated
from millpond.plan.groups.plan import GroupKind, GroupPlan
from millpond.runtime.fold.count_state import CountState
from millpond.runtime.fold.kinds import STATES, migrates_by_key, state_kind
from millpond.runtime.fold.session_state import SessionState
from millpond.runtime.fold.state import State
from millpond.runtime.fold.time_state import TimeState

SECOND = 1_000_000
TX = Stream("tx", (Field("ts", "timestamp"), Field("c", "string"), Field("v", "bigint")))
MINUTE = Sliding(60 * SECOND, 60 * SECOND)


def query(window: Window) -> Query:
    total = Aggregate("sum", Column("v", "bigint"), None, "bigint")
    output = (Named("n", Column("agg:0", "bigint")),)
    return Query("q", "tx", "ts", 0, window, (Column("c", "string"),), (total,), output)


def group(registered: Query) -> GroupPlan:
    return build_plan([registered]).groups[0]


def test_every_kind_of_group_has_a_state() -> None:
    assert set(STATES) == set(get_args(GroupKind))


@pytest.mark.parametrize(
    ("window", "kind", "by_key"),
    [
        (MINUTE, TimeState, True),
        (Range(5 * SECOND), TimeState, True),
        (Session(SECOND), SessionState, False),
        (Counted(3, 1), CountState, False),
    ],
)
def test_the_window_decides_the_state_and_how_it_migrates(window: Window, kind: type[State], by_key: bool) -> None:
    found = group(query(window))
    assert (state_kind(found), migrates_by_key(found)) == (kind, by_key)


def test_state_without_keys_and_events_that_wait_for_deduplication_are_rebuilt() -> None:
    assert not migrates_by_key(group(replace(query(MINUTE), keys=())))
    assert not migrates_by_key(group(deduplicated(query(MINUTE), TX, ("c", "v"), 5 * SECOND)))
