"""One more query costs only what it changes, and caches never change a plan."""

from __future__ import annotations

import random

import pytest
from msgspec.structs import replace

from kit.inputs.cases import query, query_set
from millpond.model.change_history import ChangeEffects
from millpond.model.expressions import Column
from millpond.model.windows import RUNNING
from millpond.plan.groups import build
from millpond.plan.groups.build import build_plan
from millpond.plan.groups.plan import Plan


def forget() -> None:
    """As in a new process."""
    for memo in (build._planned, build._needs_of, build._named, build.logged_of, build.presence_filter):
        memo.cache_clear()
    build._groups.clear()


@pytest.mark.parametrize("seed", range(6))
def test_a_plan_after_changes_is_the_plan_of_a_new_process(seed: int) -> None:
    dice = random.Random(seed)
    active = {one.name: one for one in query_set(dice, 12)}
    since: dict[str, int] = {}
    effects = ChangeEffects()
    changed: list[tuple[Plan, object]] = []
    for step in range(12):
        name = dice.choice((f"q{dice.randrange(12)}", f"n{step}"))
        since.pop(name, None)
        if name in active and dice.random() < 0.4 and len(active) > 1:
            del active[name]
        else:
            active[name] = replace(query(dice, name), window=dice.choice((RUNNING, query(dice).window)), emit="update")
            since |= {name: dice.randrange(1000)} if dice.random() < 0.7 else {}
        plan = build_plan(active.values(), since, effects)
        changed.append((plan, (list(active.values()), dict(since), effects)))
        kept = [group.id for group in plan.groups if dice.random() < 0.2]
        apart = [name for name in active if dice.random() < 0.1]
        until = {name: 5000 for name in active if dice.random() < 0.1}
        effects = ChangeEffects(signed=tuple(kept), apart=tuple(apart), until_us=until)
    for plan, (queries, begun, behind) in changed:  # type: ignore[misc]
        forget()
        assert build_plan(random.sample(queries, len(queries)), begun, behind) == plan


def test_groups_that_a_change_leaves_alone_are_the_same_values() -> None:
    dice = random.Random(1)
    first = query(dice, "a0")
    others = [replace(first, name=f"b{i}", keys=(Column(f"c{i}", "int"),)) for i in range(20)]
    before = build_plan([first, *others])
    after = build_plan([first, *others, replace(first, name="a1")], {"a1": 5})
    made = [group for group in after.groups if all(group is not known for known in before.groups)]
    assert len(made) == 1 and {plan.query.name for plan in made[0].queries} == {"a0", "a1"}
    assert build_plan([*others, first]) is before
