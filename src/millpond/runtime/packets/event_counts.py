"""Counts the fate of events per query and source partition: read = applied + late + dead + filtered."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millpond.arrays import Ints, Mask
from millpond.kernels.evaluate import Evaluator
from millpond.log.records import Fates
from millpond.model.expressions import Expression, may_raise
from millpond.model.join import Join
from millpond.plan.groups.joins import presence_of
from millpond.plan.groups.plan import GroupPlan
from millpond.runtime.packets import packet
from millpond.runtime.task.counters import FATES, Counters, Counts

OTHERS = "*"
"""The name under which the counts of all source partitions that are not listed are summed."""

LISTED = 4096
"""The most pairs of query and source partition that a record lists; each query has at least one."""


class Sources(NamedTuple):
    """The source partitions of a chunk: their names; events `order[starts[i]]` … are those of partition i.

    `order` is None if the events are already sorted by partition.
    """

    names: list[str]
    starts: list[int]
    order: Ints | None

    @classmethod
    def of(cls, partitions: pa.Array) -> Sources:
        """Built from a text column; NULL becomes the partition with an empty name."""
        encoded = pc.fill_null(partitions, "").dictionary_encode()
        codes, names = np.asarray(encoded.indices), encoded.dictionary.to_pylist()
        starts = np.cumsum(np.bincount(codes, minlength=len(names))) - np.bincount(codes, minlength=len(names))
        order = None if bool((np.diff(codes) >= 0).all()) else np.argsort(codes, kind="stable")
        return cls(names, starts.tolist(), order)


class ChunkCounts(NamedTuple):
    """What is counted of a chunk: in all by query, and the fates by source partition, if these are known."""

    counters: Counters
    fates: list[packet.SourceFates]

    def withhold(self, rows: Mapping[str, int]) -> None:
        """Set the number of rows that HAVING of each query withholds; several queries may share their other counts."""
        for query, count in rows.items():
            self.counters[query] = msgspec.structs.replace(self.counters[query], withheld=count)


Passed: TypeAlias = Mapping[Expression | None, Sequence[int]]
"""For each filter of a group, the number of passing events up to late class 0, 1, 2, …; later classes add none."""


def count_rows(
    counts: ChunkCounts, group: GroupPlan, rows: Evaluator, timed: Mask, late: Ints, sources: Sources | None,
    known_passed: Passed | None = None,
) -> None:  # fmt: skip
    """Adds the fates of the events for each query of the group; events without a time are dead for all of them.

    An event is late if its class exceeds the query's delay, else dead if an expression of the query raises an error
    for it, else filtered if WHERE is not TRUE, else applied.
    """
    counted: dict[object, tuple[Counts, list[str]]] = {}
    read, with_time = _number(np.ones(rows.rows, bool), sources), _number(timed, sources)
    taken_by = [timed & (late <= delay) for delay in range(len(group.delays_us))]
    number_by = [_number(taken, sources) for taken in taken_by]
    if sources is not None and len(sources.names) > 1:
        known_passed = None  # it counts all partitions together
    for plan in group.queries:
        presence = group.measures[plan.presence].filter
        same = (presence, plan.query.where, plan.delay)
        if same not in counted:
            taken, number = taken_by[plan.delay], number_by[plan.delay]
            if known_passed is not None:
                applied = [known_passed[presence][min(plan.delay, len(known_passed[presence]) - 1)]]
            else:
                applied = number if presence is None else _number(taken & rows(presence).is_true(), sources)
            passing = applied
            if presence is not None and (presence != plan.query.where or may_raise(presence)):
                passing = _number(_passes_or_raises(rows, plan.query.where, taken), sources)
            found = [  # one entry per source partition; plain lists are faster, as partitions are few and queries many
                (all_, one, timed_ - some, passed - one + all_ - timed_, some - passed)
                for all_, one, timed_, some, passed in zip(read, applied, with_time, number, passing, strict=True)
            ]
            whole = Counts(*map(sum, zip(*found, strict=True)))
            names: list[str] = []
            counted[same] = whole, names
            if sources is not None:
                of_each = dict(zip(sources.names, map(list, found), strict=True))
                counts.fates.append(packet.SourceFates(names, of_each))
        whole, names = counted[same]
        names.append(plan.query.name)
        counts.counters[plan.query.name] = whole


def count_selected(
    counts: ChunkCounts, queries: Sequence[str], taken: Mask, dead: Mask, sources: Sources | None
) -> None:  # fmt: skip
    """Adds the fates of the events for stateless queries that take the same rows; no event is late for these."""
    read, applied, lost = (np.array(_number(mask, sources)) for mask in (np.ones(len(taken), bool), taken, dead))
    found = np.stack([read, applied, np.zeros_like(read), lost, read - applied - lost])
    whole = Counts(*found.sum(axis=1).tolist())
    whole.rows = whole.applied
    if sources is not None:
        of_each = dict(zip(sources.names, found.T.tolist(), strict=True))
        counts.fates.append(packet.SourceFates(list(queries), of_each))
    for query in queries:
        counts.counters[query] = whole


def count_side(
    counts: ChunkCounts, join: Join, side: str, rows: Evaluator, timed: Mask, in_time: Mask, sources: Sources | None
) -> None:  # fmt: skip
    """Adds the fates of the events for one side of a join, as for a query; a join counts both sides together."""
    of = join.sides[side]
    presence = presence_of(of)
    taken = timed & in_time
    passing = _passes_or_raises(rows, of.where, taken)
    applied = taken if presence is None else taken & rows(presence).is_true()
    masks = (np.ones(rows.rows, bool), applied, timed & ~in_time, ~timed | (passing & ~applied), taken & ~passing)
    found = np.stack([_number(mask, sources) for mask in masks])
    counts.counters.of(join.name).add(Counts(*found.sum(axis=1).tolist()))
    if sources is not None:
        # partitions of two streams may have the same names
        names = [f"{of.stream}/{name}" for name in sources.names]
        counts.fates.append(packet.SourceFates([join.name], dict(zip(names, found.T.tolist(), strict=True))))


def _number(mask: Mask, sources: Sources | None) -> list[int]:
    """The number of rows in a mask, per source partition if these are known."""
    if sources is None:
        return [int(np.count_nonzero(mask))]
    sorted_mask = mask if sources.order is None else mask[sources.order]
    pairs = zip(sources.starts, [*sources.starts[1:], len(mask)], strict=False)
    return [int(np.count_nonzero(sorted_mask[start:end])) for start, end in pairs]


def _passes_or_raises(rows: Evaluator, where: Expression | None, taken: Mask) -> Mask:
    """The rows that pass the filter or for which it raises an error."""
    if where is None:
        return taken
    values = rows(where)
    return taken & (values.is_true() | values.error)


def add_fates(total: Fates, more: Iterable[packet.SourceFates]) -> None:
    """Adds the counts per source partition that a packet carries."""
    for one in more:
        for query in one.queries:
            mine = total.setdefault(query, {})
            for partition, numbers in one.partitions.items():
                mine[partition] = [a + b for a, b in zip(mine.get(partition, [0] * len(FATES)), numbers, strict=True)]


def bounded(fates: Fates, listed: int = LISTED) -> Fates:
    """Limits the counts to `listed` lists in all (or one per query, if there are more queries).

    Each query keeps the partitions with the most late and dead events, and the sum of the others.
    """
    most = max(1, listed // max(1, len(fates)))
    return {query: _worst(partitions, most) for query, partitions in fates.items()}


def _worst(partitions: dict[str, list[int]], most: int) -> dict[str, list[int]]:
    if len(partitions) <= most:
        return partitions
    late, dead = FATES.index("late"), FATES.index("dead")
    lost = {name: numbers[late] + numbers[dead] for name, numbers in partitions.items()}
    ordered = sorted(partitions, key=lambda name: (name == OTHERS, -lost[name], name))
    kept = {name: partitions[name] for name in sorted(ordered[: most - 1])}
    rest = [partitions[name] for name in ordered[most - 1 :]]
    return kept | {OTHERS: [sum(numbers) for numbers in zip(*rest, strict=True)]}
