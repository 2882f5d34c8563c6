"""Tallies (counts of values or bins): counted in the gather, added up and stored by the fold, read by aggregates."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from msgspec import UNSET

from millpond.arrays import Ints, Mask
from millpond.kernels.bins import coarser_bins, midpoints, typed
from millpond.kernels.columns import Values, arrow_type, to_arrow
from millpond.model.aggregates import Aggregate
from millpond.model.expressions import Expression
from millpond.plan.groups.event_log import LogPlan, logged_rows
from millpond.plan.groups.plan import GroupPlan, QueryPlan, fingerprint
from millpond.plan.groups.tallies import Tally, bits_of, keeps_tallies, tallied
from millpond.runtime.aggregates.partials import Rows
from millpond.runtime.event_log.event_aggregates import AggregateInput, ResultRows, needs_events, rows_of
from millpond.runtime.event_log.event_log import EventLog
from millpond.runtime.event_log.retention import needed_from
from millpond.runtime.event_log.select_events import column_of, filter_name, value_name
from millpond.runtime.task.task_values import GroupState, SectionPlace, Watermark
from millpond.state.layout.delta import DeltaWriter
from millpond.state.layout.event_log import Events, concatenated
from millpond.state.layout.tallies import COUNT, added_up, as_stored
from millpond.state.ports.files import Files


def needs_tallies(plan: QueryPlan) -> bool:
    """Whether an aggregate of the query is computed from tallies."""
    return keeps_tallies(plan.query)


def tallies_needed_from(group: GroupPlan, mark: Watermark) -> int | None:
    """The time before which no open window needs tallies (of slices that end by then); None: all are needed."""
    return needed_from([plan for plan in group.queries if needs_tallies(plan)], mark)


def uncounted_needed_from(group: GroupPlan, mark: Watermark) -> int | None:
    """Events before this time that no tally has counted yet (see `TallyLog`) can be dropped. None: none can."""
    return needed_from([plan for plan in group.queries if needs_tallies(plan) or needs_events(plan)], mark)


def tally_filter(tally: Tally, condition: Expression) -> str:
    """The name of the column that states whether a tally's events pass a filter, the same in every plan.

    Names of tallies of values contain the values, as one filter may select events for several tallies.
    """
    return filter_name(condition) if tally.bits else f"f:{fingerprint((tally.values, condition))}"


def _types(tallies: Sequence[Tally]) -> dict[str, pa.DataType]:
    types = {value_name(value): arrow_type(value.type) for tally in tallies for value in tally.values}
    types |= {tally_filter(tally, condition): pa.bool_() for tally in tallies for condition in tally.filters}
    return types | {COUNT: pa.int64()}


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

    def _values(self, tally: Tally, whole: Ints) -> dict[str, pa.Array]:
        """The counted values of rows of the chunk."""
        evaluator = self._rows.evaluator
        if tally.bits:
            codes = np.broadcast_to(evaluator(tally.value).data, (evaluator.rows,))[whole]
            return {value_name(tally.value): pa.array(coarser_bins(codes, tally.bits).astype(np.int32))}
        return {value_name(one): column_of(evaluator, one).take(pa.array(whole)) for one in tally.values}

    def events(self, chosen: Ints, keys: Ints) -> Events:
        """The tallies of the rows at `chosen` (positions among the group's rows); `keys` are their key codes."""
        parts = []
        for tally in self._tallies:
            masks = {condition: self._masks[condition][chosen] for condition in tally.filters}
            counted = np.flatnonzero(np.logical_or.reduce(list(masks.values())))
            mine = chosen[counted]
            columns = self._values(tally, mine if self._rows.index is None else self._rows.index[mine])
            columns |= {tally_filter(tally, condition): pa.array(mask[counted]) for condition, mask in masks.items()}
            columns[COUNT] = pa.array(np.ones(len(mine), np.int64))
            parts.append(added_up(Events(keys[counted], self._starts[mine], self._late[mine], columns)))
        return concatenated(parts, _types(self._tallies))


class TallyLog(EventLog):
    """The tallies of a group on one instance: the live ones and those of this epoch.

    Ponds of version 0.2 stored the events of queries that tallies of values answer now. These events are read as
    tallies, until `adopt` has counted them.
    """

    def __init__(self, files: Files, group: GroupPlan, state: GroupState, keys: Sequence[pa.RecordBatch]) -> None:
        super().__init__(files, group, LogPlan((), (), False), state, keys)
        self._tallies, self._types = group.tallies, _types(group.tallies)
        self.uncounted = tuple(place for place in state.events if not place.counted)

    kind = "tallies"
    most_rows = None  # no limit, as a merge adds up equal tallies

    @property
    def places(self) -> tuple[SectionPlace, ...]:
        """The live sections."""
        return (*self._state.tallies, *self.uncounted)

    def section(self, place: SectionPlace) -> Events:
        """The tallies of a section, or of its events; see `EventLog.section`."""
        if place.id not in self._read and place in self.uncounted:
            self._read[place.id] = self._counted(super().section(place))
        return super().section(place)

    def _counted(self, events: Events) -> Events:
        """Events of the log as tallies."""
        parts = []
        for tally in self._tallies:
            names = {filter_name(condition): tally_filter(tally, condition) for condition in tally.filters}
            values = [value_name(one) for one in tally.values]
            if tally.bits or not {*values} <= {*events.columns}:
                continue
            masks = {new: events.columns[old].fill_null(False) for old, new in names.items() if old in events.columns}
            if masks:
                columns = {name: events.columns[name] for name in values} | masks
                columns[COUNT] = pa.array(np.ones(events.rows, np.int64))
                passed = np.logical_or.reduce([mask.to_numpy(zero_copy_only=False) for mask in masks.values()])
                parts.append(events._replace(columns=columns).take(passed))
        return concatenated(parts, self._types)

    def concat_stored(self, parts: Sequence[Events]) -> Events:
        """Concatenates parts of the log, and adds up equal tallies."""
        return added_up(self.concat_expanded(parts))

    def concat_expanded(self, parts: Sequence[Events]) -> Events:
        """Concatenates parts of the log; equal tallies stay apart, as aggregates add up their counts."""
        return concatenated(parts, self._types)

    def write(self, delta: DeltaWriter, events: Events, level: int, supersedes: tuple[str, ...]) -> None:
        """Add tallies to the delta as a section."""
        super().write(delta, as_stored(events), level, supersedes)

    def adopt(self, delta: DeltaWriter, log: EventLog | None, horizon_us: int | None) -> None:
        """Replaces events that are not counted yet by their tallies, and by events that other queries need.

        `horizon_us`: neither tallies nor events before this time are needed.
        """
        ending = self.expired_ids(horizon_us)
        places = [place for place in self.uncounted if place.id not in ending]
        if not places:
            return
        level, replaced = max(place.level for place in places), tuple(place.id for place in places)
        tallies = self.concat_stored([self.section(place) for place in places])
        tallies = tallies if horizon_us is None else tallies.take(tallies.times_us >= horizon_us)
        if log is not None:
            events = log.concat_stored([log.section(place) for place in places])
            events = events if horizon_us is None else events.take(events.times_us >= horizon_us)
            log.write(delta, events, level, replaced)
        self.write(delta, tallies, level, () if log is not None else replaced)


def input_of_tallies(
    aggregate: Aggregate, presence: Expression | None, tallies: Events, rows: ResultRows
) -> AggregateInput:  # fmt: skip
    """The tallies that an aggregate takes, with their result rows; `tallies`: all that are in time, sorted by slot."""
    made = tallied(aggregate)
    condition = logged_rows(made, presence)
    assert condition is not None
    tally = Tally(made.arguments[0], bits_of(aggregate), (), made.arguments[1:] or UNSET)
    name = filter_name(condition) if tally.bits else tally_filter(tally, condition)
    passed = tallies.take(tallies.columns[name].fill_null(False).to_numpy(zero_copy_only=False))
    index, result_rows = rows_of(passed, rows)
    return AggregateInput(made, passed, index, result_rows, len(rows.slots))


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
