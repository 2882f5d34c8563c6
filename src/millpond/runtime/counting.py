"""What became of the events of a chunk, per query: read = applied + late + dead + filtered."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import numpy as np

from millpond.arrays import Ints, Mask
from millpond.model.expressions import Expression, may_raise
from millpond.plan.plan import GroupPlan
from millpond.runtime.evaluate import Evaluator

Passed: TypeAlias = Mapping[Expression | None, Sequence[int]]
"""For each filter of a group how many events of late classes 0, 0 … 1, 0 … 2, … pass it; none are of later ones."""


def count_rows(
    group: GroupPlan, rows: Evaluator, timed: Mask, late: Ints, known_passed: Passed | None = None
) -> dict[str, dict[str, int]]:
    """Counts by query name; events without a time are dead for every query.

    An event is late if its class exceeds the query's delay, else dead if something the query evaluates for it
    raises, else filtered if WHERE is not TRUE, else applied.
    """
    known: dict[object, dict[str, int]] = {}
    counts: dict[str, dict[str, int]] = {}
    untimed = rows.rows - int(np.count_nonzero(timed))
    taken_by = [timed & (late <= delay) for delay in range(len(group.delays_us))]
    read_by = [int(np.count_nonzero(taken)) for taken in taken_by]
    for plan in group.queries:
        presence = group.measures[plan.presence].filter
        same = (presence, plan.query.where, plan.delay)
        if same not in known:
            taken, read = taken_by[plan.delay], read_by[plan.delay]
            if known_passed is not None:
                passed = known_passed[presence][min(plan.delay, len(known_passed[presence]) - 1)]
            else:
                passed = read if presence is None else _true(rows, presence, taken)
            dead = 0
            if presence is not None and (presence != plan.query.where or may_raise(presence)):
                dead = _raised(rows, plan.query.where, taken) - passed
            known[same] = {
                "read": rows.rows,
                "applied": passed,
                "late": rows.rows - untimed - read,
                "dead": dead + untimed,
                "filtered": read - passed - dead,
            }
        counts[plan.query.name] = known[same]
    return counts


def _true(rows: Evaluator, condition: Expression, taken: Mask) -> int:
    return int(np.count_nonzero(rows(condition).is_true() & taken))


def _raised(rows: Evaluator, where: Expression | None, taken: Mask) -> int:
    """Rows that pass, or would if nothing raised."""
    if where is None:
        return int(np.count_nonzero(taken))
    values = rows(where)
    return int(np.count_nonzero((values.is_true() | values.error) & taken))
