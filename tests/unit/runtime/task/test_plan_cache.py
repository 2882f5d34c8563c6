"""Transfer of plans to workers."""

from __future__ import annotations

import pickle
import random

import pytest
from msgspec.structs import replace

from kit.inputs.cases import SESSIONS, STREAM, WINDOWS, query_set
from millpond.model.expressions import Column, Parameter, call, literal
from millpond.model.join import Join, Side, Within
from millpond.model.query import Named
from millpond.model.selection import Selection
from millpond.model.windows import Counted, Range
from millpond.plan.groups.build import build_plan
from millpond.runtime.task.column_layout import ReadLayout
from millpond.runtime.task.plan_cache import pack_task, unpack_task
from millpond.runtime.task.task_values import FoldTask, GatherTask

SIDE = Side(STREAM.name, "ts", 0, (Column("k", "string"),), (Column("k", "string"),))
KEY = Named("k", Column("k", "string"))


@pytest.mark.parametrize("seed", range(5))
def test_a_task_arrives_as_it_was(seed: int) -> None:
    windows = [*WINDOWS, *SESSIONS, Range(5), Counted(3, 1)]
    queries = [replace(one, window=random.Random(seed).choice(windows)) for one in query_set(random.Random(seed), 9)]
    both = Join("both", SIDE, SIDE, "left", Within(0, 5), (Named("k", Column("left:0", "string")),))
    plan = build_plan([*queries, Selection("each", STREAM.name, (KEY,)), both], {"q1": 7, "both": 3})
    tasks = (
        GatherTask(plan, ReadLayout(()), {}, (0, 1), 2, 5),
        FoldTask("pond", "", 7, plan, {}, {}, {}, (0, 1), "me"),
    )
    for task in tasks:
        came = unpack_task(pickle.loads(pickle.dumps(pack_task(task))))
        assert came == task and came.plan.id == plan.id
        assert unpack_task(pack_task(task)).plan is came.plan


def test_a_plan_is_encoded_once_for_both_tasks() -> None:
    plan = build_plan(query_set(random.Random(1), 9))
    gathering = pack_task(GatherTask(plan, ReadLayout(()), {}, (0,), 1))
    folding = pack_task(FoldTask("pond", "", 7, plan, {}, {}, {}, (0,), "me"))
    assert gathering.plan is folding.plan and not gathering.task.plan.groups


def test_values_of_parameters_travel_apart_from_the_plan() -> None:
    """A pond whose queries use the clock has other values in each epoch, and sends the same plan."""
    least = call("ge", (Column("agg:0", "bigint"), Parameter("least", "bigint")), "boolean")
    of_clock, plain = (replace(one, having=None) for one in query_set(random.Random(1), 2))
    plan = build_plan((replace(of_clock, having=least), replace(plain, stream="other")))
    tasks = [GatherTask(plan, ReadLayout(()), {}, (0,), 1, parameters={"least": literal(n, "bigint")}) for n in (3, 4)]
    packed = [pack_task(task) for task in tasks]
    assert packed[0].plan is packed[1].plan
    first, second = (unpack_task(pickle.loads(pickle.dumps(one))).plan for one in packed)
    for number, plan in ((3, first), (4, second)):
        having = plan.of_query(of_clock.name)[1].query.having
        assert having == call("ge", (Column("agg:0", "bigint"), literal(number, "bigint")), "boolean")
    assert first.of_query(plain.name)[0] is second.of_query(plain.name)[0], "the cached values of a group without any"
