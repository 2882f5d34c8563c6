"""Formats measured costs: what sharing saved in a pond, and what one more query would cost."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from millpond.control.diagnose.why_report import bar
from millpond.control.wiring.pond_reader import newest_records, read_truth
from millpond.control.wiring.truth import Truth
from millpond.log.locations.address import Given
from millpond.log.records import EpochRecord
from millpond.model.spec import PondSpec
from millpond.model.windows import Distinct, Framed, Processed
from millpond.placement.moves import maps_in
from millpond.plan.explain.event_log_text import event_bytes, kept_text
from millpond.plan.explain.price import QueryPrice
from millpond.plan.groups.build import build_plan
from millpond.plan.groups.measure_kinds import usual_columns
from millpond.plan.groups.plan import Measure
from millpond.reconfigure.apply import plan_of
from millpond.runtime.fold.state_size import WORD_BYTES
from millpond.runtime.inspect.sharing import GroupCells, Sharing, group_cells, sharing
from millpond.runtime.task.counters import WHOLE_POND

_BAR = 24


class Measured(NamedTuple):
    """A pond that has run: sums over its newest `epochs`, and the state it shares."""

    truth: Truth
    spec: PondSpec
    epochs: int
    totals: Mapping[str, int]
    sharing: Sharing


def measure(folder: Given) -> Measured:
    """Measure the pond in `folder` with its current queries; read-only.

    Raises:
        ForeignPondError: the folder contains no pond. CorruptError: the pond cannot be read.
    """
    truth, spec = read_truth(folder)
    epochs, totals, head = 0, dict.fromkeys(("events", "bytes_read", "bytes_moved"), 0), truth.manifest.n
    for _, record in newest_records(truth.log, head):
        if isinstance(record, EpochRecord):
            epochs += 1
            for name in totals:
                totals[name] += record.counts.get(WHOLE_POND, {}).get(name, 0)
    instances = maps_in(spec, truth.manifest)[0].instances
    found = truth.sections(lambda now: sharing(plan_of(spec), now, truth.files(), instances))
    return Measured(truth, spec, epochs, totals, found)


def measured_text(measured: Measured) -> str:
    """The report of the measured sharing."""
    totals, queries = measured.totals, len(measured.spec.all_queries)
    epochs = "1 epoch" if measured.epochs == 1 else f"the last {measured.epochs:,} epochs"
    lines = [
        f"measured as of record {measured.sharing.n}, over {epochs}",
        f"  read    {totals['events']:,} events once, {megabytes(totals['bytes_read'])} of Arrow; one job per query "
        f"reads {totals['events'] * queries:,} events",
        f"  moved   {megabytes(totals['bytes_moved'])} in the one shuffle",
        *state_lines(measured.sharing, "at 8 bytes a column"),
    ]
    return "\n".join(lines) + "\n"


def state_lines(sharing: Sharing, note: str) -> Iterator[str]:
    """Lines on the shared state, and on the state that each query would keep if it ran alone."""
    shared, apart, queries = sharing.shared, sharing.apart, len(sharing.alone)
    yield f"  state   as of record {sharing.n}, {note}:"
    yield (
        f"          shared {kilobytes(shared.bytes)} ({shared.cells:,} cells); {queries} separate copies "
        f"{kilobytes(apart.bytes)} ({apart.cells:,} cells): {apart.bytes / max(shared.bytes, 1):.2f} times as much"
    )
    yield f"          as stored {kilobytes(sharing.stored)}, in narrow columns, with slices that are not pruned yet"
    most = max([shared.bytes, *(size.bytes for size in sharing.alone.values())])
    width = max(map(len, sharing.alone), default=0)
    sizes = {"all, shared": shared, **{f"{name:<{width}} alone": size for name, size in sharing.alone.items()}}
    for name, size in sizes.items():
        drawn = f"{bar(size.bytes, most, _BAR):<{_BAR}} {size.cells:>10,} cells"
        yield f"          {name:<{max(width + 6, 11)}} {kilobytes(size.bytes):>10}  {drawn}"


def price_of_state(price: QueryPrice, measured: Measured | None) -> list[str]:
    """Lines on the bytes of state per key that a query would add: an estimate if the pond has run, and a maximum."""
    if isinstance(price.query.window, Framed):
        _, mine = build_plan([price.query]).of_query(price.query.name)
        if isinstance(price.query.window, Distinct | Processed):
            return [kept_text([mine])]
        return [f"about {event_bytes(mine):,} bytes for each stored event, {kept_text([mine])}; plus the keys"]
    cells = None
    if measured is not None and price.before is not None:
        truth, spec = measured.truth, measured.spec
        group, instances = price.before, maps_in(spec, truth.manifest)[0].instances
        cells = truth.sections(lambda now: group_cells(group, now, truth.files(), instances))
    kept_before = () if price.before is None else price.before.kept
    more = sum(_columns(measure, price, cells) for measure in price.group.kept if measure not in kept_before)
    lines = []
    now = f"{cells.per_key():,.0f} bytes per key now; " if cells is not None and cells.cells else ""
    if price.group.gaps_us:
        atom = sum(_columns(measure, price, cells) for measure in price.group.kept) + len(("slot", "first", "last"))
        return [
            f"{now}{atom * WORD_BYTES:,.0f} bytes for each open session of a key, plus the key: one atom, and one "
            "more for each pause that a longer gap bridges"
        ]
    if price.group.signed:
        return [f"{now}cells are split by signature: the state grows with the events, not with the number of filters"]
    if cells is not None and cells.cells:
        edges, needed = price.edges, price.kept_us
        growth = float(edges[1] / edges[0]) * needed[1] / needed[0] if edges[0] else 1.0  # else one cell for all events
        before, after = cells.per_key(), cells.per_key(growth, more)
        lines.append(
            f"about {before:,.0f} → {after:,.0f} bytes per key, from {cells.cells / cells.keys:,.1f} cells of "
            f"{cells.columns} columns for each of {cells.keys:,} keys, {more:,.0f} more columns"
            + (f", up to {growth:.3g} times the cells" if growth != 1 else "")
        )
    every = more if cells is None else cells.columns + more
    if cells is None and price.before is not None:
        every += sum(_columns(measure, price, None) for measure in kept_before)
    lines.append(
        f"at most {price.most_cells * (every + 1) * WORD_BYTES:,.0f} bytes per key, plus the key: "
        f"{price.most_cells:,} cells of {every:,.0f} columns, if it has events in every slice"
    )
    return lines


def _columns(measure: Measure, price: QueryPrice, cells: GroupCells | None) -> float:
    """The number of columns of a measure: as measured for its kind and type, otherwise the usual number."""
    if cells is not None and price.before is not None:
        alike = [one for one in price.before.kept if (one.kind, one.type) == (measure.kind, measure.type)]
        counted = [cells.of_measure[one.id] for one in alike if cells.of_measure.get(one.id)]
        if counted:
            return max(counted)
    return usual_columns(measure)


def megabytes(size: int) -> str:
    """A number of bytes as text in MB."""
    return f"{size / 1e6:,.1f} MB"


def kilobytes(size: int) -> str:
    """A number of bytes as text in kB."""
    return f"{size / 1e3:,.0f} kB"
