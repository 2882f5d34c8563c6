"""Tallies (counts by bin): counted in the gather, added up and stored by the fold, read by approximate percentiles."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from millpond.arrays import Ints, Mask
from millpond.kernels.bins import coarser, midpoints, typed
from millpond.kernels.columns import Values, to_arrow
from millpond.model.aggregates import Aggregate
from millpond.model.expressions import Expression
from millpond.plan.groups.event_log import LogPlan
from millpond.plan.groups.plan import GroupPlan, QueryPlan
from millpond.plan.groups.tallies import Tally, bits_of, keeps_tallies
from millpond.runtime.aggregates.partials import Rows
from millpond.runtime.event_log.event_aggregates import AggregateInput
from millpond.runtime.event_log.event_log import GroupLog
from millpond.runtime.event_log.retention import needed_from
from millpond.runtime.event_log.select_events import column_types, filter_name, value_name
from millpond.runtime.task.task_values import GroupState, SectionPlace, Watermark
from millpond.state.layout.delta import DeltaWriter
from millpond.state.layout.event_log import Events, joined
from millpond.state.layout.tallies import COUNT, added_up, as_stored
from millpond.state.ports.files import Files


def needs_tallies(plan: QueryPlan) -> bool:
    """Whether an aggregate of the query is computed from tallies."""
    return keeps_tallies(plan.query)


def tallies_needed_from(group: GroupPlan, mark: Watermark) -> int | None:
    """The time before which no open window needs tallies (of slices that end by then); None: all are needed."""
    return needed_from([plan for plan in group.queries if needs_tallies(plan)], mark)


def _types(tallies: Sequence[Tally]) -> dict[str, pa.DataType]:
    filters = dict.fromkeys(condition for tally in tallies for condition in tally.filters)
    log = LogPlan(tuple(tally.value for tally in tallies), tuple(filters), False)
    return column_types(log, ordered=False) | {COUNT: pa.int64()}


class TalliedRows:
    """The rows of a chunk that some tally counts, before they are assigned to instances and keys."""

    def __init__(self, tallies: Sequence[Tally], rows: Rows, starts_us: Ints, late: Ints) -> None:
        """`starts_us` (the start of its slice) and `late` (its late class) are given for each of the group's rows."""
        self._tallies, self._rows, self._starts, self._late = tallies, rows, starts_us, late
        self._masks = {condition: self._passed(condition) for tally in tallies for condition in tally.filters}
        self.index = np.flatnonzero(np.logical_or.reduce(list(self._masks.values())))

    def _passed(self, condition: Expression) -> Mask:
        passed = self._rows.passed(self._rows.filter_of(condition))
        return np.ones(self._rows.count, bool) if passed is None else np.broadcast_to(passed, (self._rows.count,))

    def events(self, chosen: Ints, keys: Ints) -> Events:
        """The tallies of the rows at `chosen` (positions among the group's rows); `keys` are their key codes."""
        parts = []
        for tally in self._tallies:
            masks = {condition: self._masks[condition][chosen] for condition in tally.filters}
            counted = np.flatnonzero(np.logical_or.reduce(list(masks.values())))
            mine = chosen[counted]
            whole = mine if self._rows.index is None else self._rows.index[mine]
            evaluator = self._rows.evaluator
            codes = np.broadcast_to(evaluator(tally.value).data, (evaluator.rows,))[whole]
            columns = {value_name(tally.value): pa.array(coarser(codes, tally.bits).astype(np.int32))}
            columns |= {filter_name(condition): pa.array(mask[counted]) for condition, mask in masks.items()}
            columns[COUNT] = pa.array(np.ones(len(mine), np.int64))
            parts.append(Events(keys[counted], self._starts[mine], self._late[mine], columns))
        return added_up(joined(parts, _types(self._tallies)))


class TallyLog(GroupLog):
    """The tallies of a group on one instance: the live ones and those of this epoch."""

    def __init__(self, files: Files, group: GroupPlan, state: GroupState, keys: Sequence[pa.RecordBatch]) -> None:
        super().__init__(files, group, LogPlan((), (), False), state, keys)
        self._types = _types(group.tallies)

    kind = "tallies"
    most_rows = None  # no limit, as a merge adds up equal tallies

    @property
    def places(self) -> tuple[SectionPlace, ...]:
        """The live sections."""
        return self._state.tallies

    def together(self, parts: Sequence[Events]) -> Events:
        """Concatenates parts of the log, and adds up equal tallies."""
        return added_up(joined(parts, self._types))

    def write(self, delta: DeltaWriter, events: Events, level: int, supersedes: tuple[str, ...]) -> None:
        """Add tallies to the delta as a section."""
        super().write(delta, as_stored(events), level, supersedes)


def percentiles(aggregate: Aggregate, inputs: AggregateInput) -> Values:
    """The midpoint of the bin that contains the percentile: the least value at or below which the fraction of all lies.

    `inputs`: the tallies of the aggregate's bins, each with its result row. Arrays of fractions give arrays of values.
    """
    assert aggregate.argument is not None
    codes, kind = np.asarray(inputs.column())[inputs.index], aggregate.argument.type
    order, bounds = inputs.sorted([codes])
    running = np.concatenate([[0], np.cumsum(np.asarray(inputs.events.columns[COUNT])[inputs.index][order])])
    before = running[bounds[:-1]]
    counts = running[bounds[1:]] - before
    found = []
    for fraction in inputs.fractions:
        rank = np.clip(np.ceil(counts * fraction).astype(np.int64) - 1, 0, np.maximum(counts - 1, 0))
        at = np.searchsorted(running, before + rank, "right") - 1
        picked = codes[order[np.minimum(at, len(order) - 1)]] if len(order) else np.zeros(inputs.size, np.int64)
        found.append(typed(midpoints(picked.astype(np.int64), bits_of(aggregate)), kind))
    if not aggregate.type.startswith("array<"):
        return Values(found[0], counts == 0)
    held = np.flatnonzero(counts > 0)
    items = to_arrow(Values(np.stack([one[held] for one in found], axis=1).reshape(-1)), kind, len(held) * len(found))
    sizes = np.where(counts > 0, len(found), 0)
    return inputs.lists(items, np.concatenate([[0], np.cumsum(sizes)]), counts == 0)
