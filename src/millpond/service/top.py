"""A pond at a glance, for a terminal: what `millpond status` and `millpond top` show."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table

from millpond.clock import utc
from millpond.service.wire import Placed, QueryShown, Status


def picture(status: Status, queries: Sequence[QueryShown], placed: Placed | None = None) -> RenderableType:
    """Epochs, rates, followers, then a row per query."""
    return Group(_numbers(status, placed), _queries(queries))


def _numbers(status: Status, placed: Placed | None) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim")
    table.add_column(justify="right")
    table.add_row("role", status.role if status.leader is None else f"{status.role}, leader {status.leader}")
    table.add_row("epoch", f"{status.epoch:,} (record {status.record:,})")
    table.add_row("events", f"{status.events:,}")
    table.add_row("events/s", f"{status.events_per_s:,.0f}")
    table.add_row("epoch time", f"{status.epoch_s * 1e3:,.0f} ms, p99 {status.epoch_p99_s * 1e3:,.0f} ms")
    if status.since_epoch_s is not None:
        table.add_row("last epoch", f"{status.since_epoch_s:.1f} s ago")
    table.add_row("queries", f"{status.queries:,}")
    moving = f", state of {status.buckets_moving:,} buckets is on its way" if status.buckets_moving else ""
    table.add_row("instances", f"{status.instances:,}{moving}")
    if placed is not None:
        table.add_row("local hits", f"{placed.local_hit_rate:.1%}")
    for source in status.sources:
        waiting = "not known yet" if source.waiting is None else f"{source.waiting:,} {source.unit} behind"
        table.add_row(f"source {source.stream}", waiting)
    late = [one for one in status.followers if one.behind > 1 or one.error]
    for one in late:
        table.add_row(one.name, f"{one.behind:,} records of the log behind" + (f": {one.error}" if one.error else ""))
    if not late:
        table.add_row("sinks and view", f"{len(status.followers)}, up to date")
    for problem in status.problems:
        table.add_row("problem", problem)
    if (failure := status.failure) is not None:
        told = f"[{failure.code}] {failure.what} Try {failure.failures + 1} in {failure.retry_in_s:.0f} s."
        table.add_row("failure", told)
    return table


def _queries(queries: Sequence[QueryShown]) -> Table:
    table = Table(box=None, padding=(0, 2), header_style="dim")
    for name in ("query", "state"):
        table.add_column(name)
    for name in ("version", "rows", "late", "dead", "ms", "own kB", "shared kB"):
        table.add_column(name, justify="right")
    table.add_column("complete from")
    for one in sorted(queries, key=lambda query: -query.counts.get("rows", 0)):
        numbers = [f"{one.counts.get(name, 0):,}" for name in ("rows", "late", "dead")]
        costs = ("time_us", "own_bytes", "shared_bytes")
        numbers += [f"{one.counts[name] / 1e3:,.1f}" if name in one.counts else "" for name in costs]
        table.add_row(one.name, one.state, str(one.version), *numbers, utc(one.complete_from_us))
    return table
