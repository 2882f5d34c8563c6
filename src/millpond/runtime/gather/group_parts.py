"""Makes the parts of packets for one group of queries: cells, raw rows, or events that are needed individually."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from millpond.arrays import Ints, Mask, places_of
from millpond.kernels.columns import Array
from millpond.kernels.evaluate import Evaluator
from millpond.model.expressions import Expression
from millpond.plan.groups.edges import slices_of
from millpond.plan.groups.filter_ladders import conditions_of
from millpond.plan.groups.joins import SideLog
from millpond.plan.groups.plan import GroupPlan
from millpond.runtime.aggregates.filter_sets import Bundle, classify, ranks_of_bundles, split_slices
from millpond.runtime.aggregates.partials import Partials, Rolled, Rows, coarser, piece_of_cells, roll_up
from millpond.runtime.event_log.select_events import LoggedRows
from millpond.runtime.event_log.tallies import TalliedRows
from millpond.runtime.gather.chunk_keys import ChunkKeys, Owned, keys_of_sets, only_used, owned_keys
from millpond.runtime.gather.session_atoms import atoms_of_rows, cut_atoms
from millpond.runtime.gather.top_rows import keep_first_rows
from millpond.runtime.joins.keyless_grid import dealt_events
from millpond.runtime.packets.event_counts import Passed
from millpond.runtime.packets.packet import GroupPart
from millpond.runtime.packets.raw_columns import is_smaller_raw, raw_rows
from millpond.runtime.task.task_values import GatherTask
from millpond.state.layout.cells import Slices


def group_parts(
    task: GatherTask, group: GroupPlan, evaluator: Evaluator, timed: Mask, times_us: Ints, late: Ints,
    order: tuple[pa.Array | None, Ints | None], parts: list[list[GroupPart]], withheld: dict[str, int],
) -> Passed | None:  # fmt: skip
    """Add the rows of a chunk that a group takes to each instance's packet.

    Returns how many events passed each filter, if this is known without further work.

    `withheld` gets for each query the number of rows that are left out because HAVING withholds them in any case.
    """
    chosen = Rows(evaluator, timed & (late < len(group.delays_us)))
    if not group.signed and group.deduplicated is None:  # other events may repeat an event that no query takes
        chosen = Rows(evaluator, _needed_rows(group, chosen, late))
    return _add_group(task, group, chosen, times_us, late, order, parts, withheld)


def join_parts(
    task: GatherTask, log: SideLog, rows: Rows, times_us: Ints, late: Ints,
    order: tuple[pa.Array | None, Ints | None], parts: list[list[GroupPart]],
) -> None:  # fmt: skip
    """Add the events that joins keep to each instance's packet."""
    if rows.count:
        logged = LoggedRows(log.kept, rows, times_us, late, order)
        if isinstance(log.dealt, str):
            for instance, events in dealt_events(log.kept, log.dealt, logged, task.instances):
                parts[instance].append(GroupPart(log.id, [], 1, events))
            return
        keys = owned_keys(task, log, rows)
        _add_events(log, logged, keys.owned, keys.codes, parts)


def _longest_delays(group: GroupPlan) -> dict[Expression | None, int]:
    """The longest delay of the queries with each presence filter, as a position among the delays of the group."""
    longest: dict[Expression | None, int] = {}
    for plan in group.queries:
        condition = group.measures[plan.presence].filter
        longest[condition] = max(plan.delay, longest.get(condition, 0))
    return longest


def _needed_rows(group: GroupPlan, rows: Rows, late: Ints) -> Mask:
    """The rows that some query of the group takes, as a mask over all rows.

    The keys of other rows are neither shuffled nor added to the dictionary.
    """
    classes = rows.take(late)
    needed = np.zeros(rows.count, bool)
    for condition, delay in _longest_delays(group).items():
        in_time = classes <= delay
        passed = rows.passed(rows.filter_of(condition))
        needed |= in_time if passed is None else in_time & passed
    if rows.index is None:
        return needed
    chosen = np.zeros(rows.evaluator.rows, bool)
    chosen[rows.index[needed]] = True
    return chosen


def _needed_bundles(group: GroupPlan, bundles: Sequence[Bundle], late_rows: Ints) -> list[Bundle]:
    """Like `_needed_rows`, for rows classified by the filters they pass; a row stays in all its bundles or in none."""
    longest = _longest_delays(group)
    delays = [longest.get(condition, -1) for condition in conditions_of(group.ladders)]
    needed = np.zeros(len(late_rows), bool)
    for bundle in bundles:
        needed[bundle.rows] |= bundle.most(delays, -1)[bundle.codes] >= late_rows[bundle.rows]
    if needed.all():
        return list(bundles)
    masks = [needed[bundle.rows] for bundle in bundles]
    cut_bundles = [b._replace(rows=b.rows[keep], codes=b.codes[keep]) for b, keep in zip(bundles, masks, strict=True)]
    return [bundle for bundle in cut_bundles if len(bundle.rows)]


def _add_group(
    task: GatherTask, group: GroupPlan, rows: Rows, times_us: Ints, late: Ints,
    order: tuple[pa.Array | None, Ints | None], parts: list[list[GroupPart]], withheld: dict[str, int],
) -> Passed | None:  # fmt: skip
    """Like `group_parts`, for the rows that the group takes."""
    if not rows.count:
        return None
    times, late_rows = rows.take(times_us), rows.take(late)
    logged = None if group.events is None else LoggedRows(group.events, rows, times_us, late, order)
    keys = keys_of_sets(task, group, rows)
    if group.gaps_us:
        for key_set in keys:
            _add_atoms(group, rows, key_set, times, late_rows, logged, parts)
        return None
    if logged is not None and (group.deduplicated is not None or not group.celled):
        withheld |= keep_first_rows(group, logged, keys[0].codes, times, late_rows)
        for key_set in keys:
            _add_events(group, logged, key_set.owned, key_set.codes, parts)
        return None
    starts_us, ends_us, slices = slices_of(group.cuts, times)
    tallied = TalliedRows(group.tallies, rows, starts_us[slices], late_rows) if group.tallies else None
    class_count = int(late_rows.max()) + 1
    if class_count > 1:
        slices = slices * class_count + late_rows
    slice_count = len(starts_us) * class_count
    all_slices = Slices(
        np.repeat(starts_us, class_count),
        np.repeat(ends_us, class_count),
        np.tile(np.arange(class_count), len(starts_us)),
    )
    for individual in (logged, tallied):
        if individual is not None:
            for key_set in keys:
                _add_events(group, individual, key_set.owned, key_set.codes, parts)
    if not group.signed:
        _add_sets(group, rows, keys, slices, all_slices, parts)
        return None
    passed = np.zeros((class_count, len(group.filters)), np.int64)
    for key_set in keys:
        cells, _ = places_of(key_set.codes * slice_count + slices, key_set.count * slice_count)
        bundles = classify(rows, group.ladders, len(cells))
        for bundle in bundles if key_set is keys[0] else ():  # events count once, however many grouping sets there are
            passed += bundle.counts(late_rows, class_count)
        needed = _needed_bundles(group, bundles, late_rows)
        _add_signed(group, rows, needed, key_set.owned, key_set.codes, slices, all_slices, parts)
    return dict(zip(conditions_of(group.ladders), passed.cumsum(axis=0).T.tolist(), strict=True))


def _add_atoms(
    group: GroupPlan, rows: Rows, keys: ChunkKeys, times_us: Ints, late: Ints, logged: LoggedRows | None,
    parts: list[list[GroupPart]],
) -> None:  # fmt: skip
    """Add the parts of a group of session windows to each instance's packet."""
    if logged is not None:
        _add_events(group, logged, keys.owned, keys.codes, parts)
    atoms = atoms_of_rows(group, rows, keys.codes, times_us, late)
    for own in keys.owned:
        piece = cut_atoms(atoms, own.first, own.end)
        if piece is not None:
            parts[own.instance].append(own.part(group.id, piece))


def _add_sets(
    group: GroupPlan, rows: Rows, sets: Sequence[ChunkKeys], slices: Ints, all_slices: Slices,
    parts: list[list[GroupPart]],
) -> None:  # fmt: skip
    """Add rows with `slices` (positions in `all_slices`) under the keys of each grouping set.

    The cells of a coarser set are rolled up from those of a finer one. The finest sets are sent as raw rows if these
    are smaller than cells.
    """
    slice_count = len(all_slices.start_us)
    rolled: dict[int, Rolled] = {}
    for keys in sets:
        if keys.finer is not None and keys.of_finer is not None:
            rolled[id(keys)] = coarser(rolled[id(keys.finer)], keys.of_finer, slice_count)
            _add_cells(group, rolled[id(keys)], keys.owned, all_slices, parts)
            continue
        partials = Partials(rows, keys.codes * slice_count + slices, keys.count * slice_count)
        raw = is_smaller_raw(group, rows, keys.count, len(partials.ids))
        if raw:
            _add_raw(group, rows, keys.owned, keys.codes, slices, all_slices, parts)
        if not raw or any(other.finer is keys for other in sets):
            rolled[id(keys)] = roll_up(group, partials)
        if not raw:
            _add_cells(group, rolled[id(keys)], keys.owned, all_slices, parts)


def _add_signed(
    group: GroupPlan, rows: Rows, bundles: Sequence[Bundle], owned: Sequence[Owned], codes: Ints, slices: Ints,
    all_slices: Slices, parts: list[list[GroupPart]],
) -> None:  # fmt: skip
    """Add the rows of bundles, as cells or as raw rows; one row may be in several bundles."""
    partials_of_bundles, filters = [], [name for ladder in group.ladders for name in ladder.filters]
    for bundle in bundles:
        split = split_slices(all_slices, slices[bundle.rows], bundle, filters)
        used_keys, used_codes = only_used(owned, codes[bundle.rows])
        count = len(split.slices.start_us)
        partials = Partials(rows.at(bundle.rows), used_codes * count + split.rows, used_keys[-1].end * count)
        partials_of_bundles.append((partials, used_keys, split.slices))
    if not partials_of_bundles:
        return
    in_bundle = np.zeros(rows.count, bool)
    for bundle in bundles:
        in_bundle[bundle.rows] = True
    chosen = np.flatnonzero(in_bundle)
    sizes = [(len(partials.ids), len(split.start_us)) for partials, _, split in partials_of_bundles]
    cells, signed_slices = (sum(column) for column in zip(*sizes, strict=True))
    used_keys, used_codes = only_used(owned, codes[chosen])
    # each instance gets its own slices and signatures
    signatures = sum(len(bundle.ranks) for bundle in bundles)
    header_counts = (min(cells, count * len(used_keys)) for count in (signed_slices, signatures))
    if is_smaller_raw(group, rows.at(chosen), used_keys[-1].end, cells, *header_counts):
        ranks = ranks_of_bundles(bundles, rows.count)
        chosen_ranks = [ladder_ranks[chosen] for ladder_ranks in ranks]
        _add_raw(group, rows.at(chosen), used_keys, used_codes, slices[chosen], all_slices, parts, chosen_ranks)
        return
    for partials, used_keys, split_every in partials_of_bundles:
        _add_cells(group, roll_up(group, partials), used_keys, split_every, parts)


def _add_cells(
    group: GroupPlan, rolled: Rolled, owned: Sequence[Owned], all_slices: Slices, parts: list[list[GroupPart]]
) -> None:
    slice_count = len(all_slices.start_us)
    for own in owned:
        low, high = np.searchsorted(rolled.ids, [own.first * slice_count, own.end * slice_count]).tolist()
        if low < high:
            piece = piece_of_cells(rolled, all_slices, low, high, own.first)
            parts[own.instance].append(own.part(group.id, piece))


def _add_raw(
    group: GroupPlan, rows: Rows, owned: Sequence[Owned], codes: Ints, slices: Ints, all_slices: Slices,
    parts: list[list[GroupPart]], ranks: Sequence[Array] = (),
) -> None:  # fmt: skip
    """Add raw rows; `ranks`: their rank in each ladder, if the cells of the group are split by signature."""
    used, slice_rows = places_of(slices)
    for own in owned:
        chosen = np.flatnonzero((codes >= own.first) & (codes < own.end))
        if len(chosen):
            raw = raw_rows(group, rows, chosen, all_slices.take(used), slice_rows, codes - own.first, ranks)
            parts[own.instance].append(own.part(group.id, raw))


def _add_events(
    group: GroupPlan | SideLog, logged: LoggedRows | TalliedRows, owned: Sequence[Owned], codes: Ints,
    parts: list[list[GroupPart]],
) -> None:  # fmt: skip
    used_keys, used_codes = only_used(owned, codes[logged.index])
    for own in used_keys:
        of_instance = (used_codes >= own.first) & (used_codes < own.end)
        if of_instance.any():
            events = logged.events(logged.index[of_instance], used_codes[of_instance] - own.first)
            parts[own.instance].append(own.part(group.id, events))
