"""Attributes the cost of a pond to its queries: time, and bytes of state of groups and joins (not retained events).

The parts sum exactly to the total. Each cost is measured once, for a group or for all queries. What only one query
needs is its own cost; what several queries need is divided among them. In an epoch's counts, `group_us` is the time of
a group over all tasks; the rest of `gather_us` and `fold_us` is divided equally among all queries.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeVar

from millpond.log.manifest import LiveSection, Manifest
from millpond.log.records import STATE
from millpond.plan.groups.plan import GroupPlan, Plan, QueryPlan
from millpond.plan.groups.tallies import keeps_tallies
from millpond.runtime.event_log.event_aggregates import needs_events
from millpond.runtime.migration.move_state import key_counts
from millpond.runtime.task.counters import WHOLE_POND
from millpond.state.layout.segments import MEASURE_DIGITS, parse_sizes

_ONE = 1 << 40
"""The weight of a measure, large enough to be divided among many queries in integers."""


class Cost(NamedTuple):
    """The cost of one query: time in an epoch (µs), rows emitted in it, bytes of state, and keys of its group.

    `own_bytes` are needed by no other query; they are freed if this query is dropped, as soon as segments are merged.
    `shared_bytes` are its equal part of the state that it shares with other queries, and of the state of dropped
    queries that is not merged away yet. `group_queries`: the number of queries of its group, whose time is measured
    as a whole.
    """

    time_us: int = 0
    rows: int = 0
    own_bytes: int = 0
    shared_bytes: int = 0
    keys: int = 0
    group_queries: int = 0

    @property
    def bytes(self) -> int:
        """Its own bytes and its part of shared bytes."""
        return self.own_bytes + self.shared_bytes


def costs(plan: Plan, manifest: Manifest, counts: Mapping[str, Mapping[str, int]]) -> dict[str, Cost]:
    """The cost of each query of the plan, from the counts of an epoch and the live state."""
    times, (own, shared), keys = _times(plan, counts), _bytes(plan, manifest), _keys(plan, manifest)
    sharing = {query.query.name: len(group.queries) for group in plan.groups for query in group.queries}
    return {
        name: Cost(
            times.get(name, 0), counts.get(name, {}).get("rows", 0), own.get(name, 0), shared.get(name, 0),
            keys.get(name, 0), sharing.get(name, 0),
        )
        for name in (query.name for query in plan.all_queries)
    }  # fmt: skip


def total_time_us(counts: Mapping[str, Mapping[str, int]]) -> int:
    """The time of all workers in an epoch, in microseconds."""
    whole = counts.get(WHOLE_POND, {})
    return whole.get("gather_us", 0) + whole.get("fold_us", 0)


def state_of(plan: Plan, manifest: Manifest) -> dict[str, list[LiveSection]]:
    """The live sections of state for each group or log of the plan, by its id."""
    ids = [*(group.id for group in plan.groups), *(log.id for log in plan.joins.logs)]
    found: dict[str, list[LiveSection]] = {name: [] for name in ids}
    for section in manifest.sections.values():
        if section.kind in STATE and section.group in found:
            found[section.group].append(section)
    return found


def _times(plan: Plan, counts: Mapping[str, Mapping[str, int]]) -> dict[str, int]:
    names, left = [query.name for query in plan.all_queries], total_time_us(counts)
    times = dict.fromkeys(names, 0)
    for group in plan.groups:
        spent = min(left, counts.get(group.id, {}).get("group_us", 0))
        left -= spent
        _add(times, divided(spent, _weights(group)))
    _share(times, left, names)
    return times


def _bytes(plan: Plan, manifest: Manifest) -> tuple[dict[str, int], dict[str, int]]:
    own, shared = {query.name: 0 for query in plan.all_queries}, {query.name: 0 for query in plan.all_queries}
    live = state_of(plan, manifest)
    for group in plan.groups:
        names = [query.query.name for query in group.queries]
        for readers, size in _cells(group, live[group.id]):
            users = sorted(readers) or names
            _share(own if len(users) == 1 else shared, size, users)
        for kind in ("keys", "events", "tallies"):
            users = [query.query.name for query in group.queries if _uses(query, kind)] or names
            size = sum(section.size for section in live[group.id] if section.kind == kind)
            _share(own if len(users) == 1 else shared, size, users)
    for log in plan.joins.logs:
        users = [join.name for join, _ in plan.joins.users_of(log)]
        size = sum(section.size for section in live[log.id])
        _share(own if len({*users}) == 1 else shared, size, users)
    return own, shared


def _cells(group: GroupPlan, sections: Iterable[LiveSection]) -> Iterator[tuple[set[str], int]]:
    """Bytes of segments with the queries that read them; an empty set: all queries, or only dropped ones."""
    readers: dict[str, set[str]] = {}
    for measure, names in zip(group.measures, group.readers, strict=True):
        id = measure.base.id if group.signed else measure.id
        readers.setdefault(id[:MEASURE_DIGITS], set()).update(names)
    sizes = Counter[frozenset[str]]()
    for section in sections:
        if section.kind == "segment":
            left = section.size
            for ids, size in parse_sizes(str(section.info.get("bytes", ""))):
                left -= size
                sizes[frozenset(ids)] += size
            sizes[frozenset()] += left
    for some, size in sizes.items():
        yield {name for id in some for name in readers.get(id, ())}, size


def staying(plan: Plan, manifest: Manifest, costs: Mapping[str, Cost]) -> dict[str, Cost]:
    """The `costs` without state of moved keys, which remains on the old instance until it is merged away."""
    stays = dict.fromkeys(costs, 1.0)
    for names, count, left in _counted(plan, manifest):
        stays.update(dict.fromkeys(names, 1 - left / count if count else 1.0))
    return {
        name: cost._replace(
            own_bytes=round(cost.own_bytes * stays[name]), shared_bytes=round(cost.shared_bytes * stays[name])
        )
        for name, cost in costs.items()
    }  # fmt: skip


def _counted(plan: Plan, manifest: Manifest) -> Iterator[tuple[list[str], int, int]]:
    """For each group its queries, the number of keys on its instances, and how many of these have moved away."""
    keys, left = map(_by_group, key_counts(manifest))
    for group in plan.groups:
        yield [query.query.name for query in group.queries], keys[group.id], left[group.id]


def _by_group(counted: Counter[tuple[int, str]]) -> Counter[str]:
    """Sums counts per instance and group over all instances."""
    found = Counter[str]()
    for (_, group), count in counted.items():
        found[group] += count
    return found


def _keys(plan: Plan, manifest: Manifest) -> dict[str, int]:
    live = state_of(plan, manifest)
    found = {}
    for names, count, left in _counted(plan, manifest):
        found.update(dict.fromkeys(names, count - left))
    for plan_of_join in plan.joins.plans:
        logs = {plan.joins.logs[at].id for at in plan_of_join.logs.values()}
        found[plan_of_join.join.name] = sum(s.rows for log in logs for s in live[log] if s.kind == "keys")
    return found


def _uses(query: QueryPlan, kind: str) -> bool:
    if kind == "keys":
        return True
    return needs_events(query) if kind == "events" else keeps_tallies(query.query)


def _weights(group: GroupPlan) -> dict[str, int]:
    """The weight of each query in a group's work: each measure has `_ONE`, divided among the queries that read it."""
    weights = {query.query.name: 0 for query in group.queries}
    for readers in group.readers:
        _share(weights, _ONE, readers)
    return weights


_T = TypeVar("_T", bound=Hashable)


def divided(whole: int, weights: Mapping[_T, int]) -> dict[_T, int]:
    """Divides a number into integers in proportion to the weights; the parts sum to it, unless there are no weights.

    >>> divided(10, {"a": 1, "b": 1, "c": 2})
    {'a': 2, 'b': 3, 'c': 5}
    """
    total, before, parts = sum(weights.values()), 0, {}
    for name, weight in weights.items():
        parts[name] = whole * (before + weight) // total - whole * before // total
        before += weight
    return parts


def _share(totals: dict[str, int], whole: int, names: Sequence[str]) -> None:
    """Add equal parts of a number to the totals of the names, which may repeat."""
    if len(names) == 1:  # usual, and then a division into parts takes most of the time
        totals[names[0]] += whole
    else:
        _add(totals, divided(whole, dict.fromkeys(names, 1)))


def _add(totals: dict[str, int], parts: Mapping[str, int]) -> None:
    for name, part in parts.items():
        totals[name] += part


def divided_cost(cost: Cost, users: int) -> list[Cost]:
    """Equal parts of the cost of an inner query for each query that uses it; its rows are rows of none of them."""
    if users == 1:
        return [cost._replace(rows=0)]
    weights = dict.fromkeys(range(users), 1)
    times, sizes = divided(cost.time_us, weights), divided(cost.bytes, weights)
    return [Cost(times[user], 0, 0, sizes[user], cost.keys) for user in weights]


def summed(found: Iterable[Cost]) -> Cost:
    """The sum of costs; for figures of groups, which are shared, it is the maximum."""
    every: Sequence[Cost] = list(found)
    times, rows, own, shared = (sum(getattr(one, name) for one in every) for name in Cost._fields[:4])
    return Cost(times, rows, own, shared, *(max((one[at] for one in every), default=0) for at in (4, 5)))
