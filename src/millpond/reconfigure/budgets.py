"""Enforces budgets: a query that costs more than its budget is quarantined.

The quarantine is a change record, so the history says when and why. The query leaves the plan and its state is freed.
To drop and add it again starts it with empty state.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import msgspec

from millpond.errors import OverBudgetError
from millpond.model.budget import Budget
from millpond.model.spec import PondSpec
from millpond.plan.upstream.steps import inner_of
from millpond.reconfigure import validate
from millpond.reconfigure.change_queue import Make
from millpond.reconfigure.lifecycle import current
from millpond.runtime.inspect.costs import Cost, costs, divided_cost, staying, summed
from millpond.runtime.scheduling.committed_epoch import CommittedEpoch

PATIENCE = 3
"""The number of consecutive epochs that must take too long, because a single epoch may have had to wait."""


class Budgets:
    """Compares the costs of queries with their budgets; each driver creates its own."""

    def __init__(self) -> None:
        self._slow: dict[str, int] = {}
        self._over: dict[str, str] = {}

    def committed(self, epoch: CommittedEpoch) -> None:
        """Compare the cost of each query in an epoch with its budget; the manifest may be of any record near it."""
        spec, plan, manifest = epoch.spec, epoch.plan, epoch.manifest
        if spec is None:
            return
        limits = {query.name: query.budget for query in current(spec) if isinstance(query.budget, Budget)}
        limits = {name: budget for name, budget in limits.items() if name not in spec.effects.halted}
        self._over = {}
        if not limits:
            return
        found = with_versions(spec, staying(plan, manifest, costs(plan, manifest, epoch.record.counts)))
        for name, budget in limits.items():
            cost = found.get(name)
            if cost is None:
                continue
            slow = not isinstance(budget.time, msgspec.UnsetType) and cost.time_us > budget.time
            self._slow[name] = self._slow.get(name, 0) + 1 if slow else 0
            why = excess(budget, cost, self._slow[name] >= PATIENCE)
            if why is not None:
                self._over[name] = str(OverBudgetError(f"{name} {why}.", "Drop it; add it again with a larger budget."))

    def changes(self) -> list[Make]:
        """The changes that quarantine queries now; each is returned once."""
        return [partial(validate.halt, name=name, why=why) for name, why in self.over().items()]

    def over(self) -> dict[str, str]:
        """The queries to quarantine now, each with the reason; each query is returned once."""
        over, self._over = self._over, {}
        for name in over:
            self._slow.pop(name, None)
        return over


def excess(budget: Budget, cost: Cost, slow: bool) -> str | None:
    """The part of a cost that exceeds the budget, as text; None: nothing does."""
    if not isinstance(budget.state, msgspec.UnsetType) and cost.bytes > budget.state:
        return f"has {cost.bytes:,} bytes of state, more than its {budget.state:,}"
    if not isinstance(budget.keys, msgspec.UnsetType) and cost.keys > budget.keys:
        return f"has {cost.keys:,} keys, more than its {budget.keys:,}"
    if not isinstance(budget.time, msgspec.UnsetType) and slow:
        return f"took {cost.time_us:,} µs of an epoch, more than its {budget.time:,}, {PATIENCE} times in a row"
    return None


def with_versions(spec: PondSpec, costs: Mapping[str, Cost]) -> dict[str, Cost]:
    """The cost of each query: with its shadow, the replaced versions that still emit their last windows, and an equal
    part of each inner query that it uses.
    """
    owner = dict(spec.effects.replaced) | {shadow: name for name, shadow in spec.effects.shadows.items()}
    parts: dict[str, list[Cost]] = {}
    streams = {stream.name: stream for stream in spec.streams}
    users: dict[str, set[str]] = {}
    for query in spec.all_queries:
        for step in inner_of(query, streams):
            users.setdefault(step.name, set()).add(owner.get(query.name, query.name))
    for name, cost in costs.items():
        if name not in users:
            parts.setdefault(owner.get(name, name), []).append(cost)
            continue
        of = sorted(users[name])
        for user, part in zip(of, divided_cost(cost, len(of)), strict=True):
            parts.setdefault(user, []).append(part)
    return {name: some[0] if len(some) == 1 else summed(some) for name, some in parts.items()}
