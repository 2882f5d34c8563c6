"""Draws the overview of a pond for `millpond status` and `millpond top`."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple, NoReturn

import typer
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.live import Live
from rich.table import Table
from rich.text import Text

from millpond.clock import utc
from millpond.formats.escapes import printable
from millpond.model.endpoints import READ
from millpond.plan.explain.amounts import about, backlog, remaining_text
from millpond.service.api.messages import Placed, QueryShown, Status, failure_text
from millpond.service.terminal.text import instances_text, listed_problems

_NO_EDGE = 10_000
_PARTS = ("ms", "shared kB")


def console() -> Console:
    """A console for tables. Outside a terminal it is so wide that no table is cut."""
    made = Console(highlight=False, markup=False)
    return made if made.is_terminal else Console(highlight=False, markup=False, width=_NO_EDGE)


def picture(status: Status, queries: Sequence[QueryShown], placed: Placed | None = None) -> RenderableType:
    """The overview: epochs, rates, followers, and a table with a row per query."""
    return Group(_numbers(status, placed), _Queries(queries))


def text_of(shown: RenderableType, console: Console) -> str:
    """What a console would print, without spaces at the ends of lines."""
    with console.capture() as printed:
        console.print(shown)
    return "\n".join(map(str.rstrip, printed.get().splitlines()))


def redraw(state: Callable[[], RenderableType], console: Console, every: float) -> NoReturn:
    """Draw the state every `every` seconds: on the screen of a terminal, or one below the other in a pipe."""
    if not console.is_terminal:
        while True:
            typer.echo(text_of(state(), console) + "\n")
            time.sleep(every)
    with Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            live.update(state(), refresh=True)
            time.sleep(every)


def _role(status: Status) -> str:
    """The role of the process that answers, and who leads.

    >>> _role(Status("starting", "p", 7, 5, 2, "http://killed", starting_s=12.3))
    'starting, since 12 s: it reads events and takes changes when it leads'
    >>> _role(Status("leader", "p", 7, 5, 2, "http://a")), _role(Status("standby", "p", 7, 5, 2, "http://a"))
    ('leader, at http://a', 'standby; the leader is at http://a')
    """
    if status.starting_s is not None:
        return f"{status.role}, since {status.starting_s:.0f} s: it reads events and takes changes when it leads"
    if status.leader is None:
        return status.role
    return f"{status.role}, at {status.leader}" if status.role == "leader" else (
        f"{status.role}; the leader is at {status.leader}"
    )  # fmt: skip


def _numbers(status: Status, placed: Placed | None) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column()
    table.add_row("role", _role(status))
    if status.standbys:
        table.add_row("standbys", ", ".join(status.standbys))
    epoch = "none is committed yet" if status.epoch < 0 else f"{status.epoch:,} (record {status.record:,})"
    table.add_row("epoch", epoch)
    table.add_row("events", f"{status.events:,} since this process leads, as all counts and problems here")
    table.add_row("events/s", f"{status.events_per_s:,.0f}")
    table.add_row("epoch time", f"{status.epoch_s * 1e3:,.0f} ms, p99 {status.epoch_p99_s * 1e3:,.0f} ms")
    if status.since_epoch_s is not None:
        table.add_row("last epoch", f"{status.since_epoch_s:.1f} s ago")
    table.add_row("queries", f"{status.queries:,}")
    table.add_row("instances", instances_text(status))
    for follower in status.followers:
        shown = follower.name in ("shards", "move", "backfill") or follower.name.startswith(READ)
        if shown and follower.note is not None:
            table.add_row(follower.name, follower.note)
    if placed is not None:
        if placed.aligned is not None:
            table.add_row("aligned", f"{placed.aligned:.1%} of buckets")
        if placed.local_hit_rate is not None:
            table.add_row("local hits", f"{placed.local_hit_rate:.1%} of {placed.requests:,} requests")
    reads_one = sum(source.unit == "records" for source in status.sources) == 1  # the rate is that of all of them
    for source in status.sources:
        waiting = backlog(source.waiting, source.unit) + (" behind" if source.waiting is not None else "")
        if source.waiting and source.unit == "records" and status.events_per_s >= 1 and reads_one:
            waiting += f", {about(1e6 * source.waiting / status.events_per_s)} at this rate"
        table.add_row(f"source {source.stream}", waiting)
    late = [follower for follower in status.followers if follower.behind > 1 or follower.error]
    for follower in late:
        more = f": {printable(follower.error)}" if follower.error else remaining_text(follower.remaining_s)
        table.add_row(follower.name, f"{follower.behind:,} records of the log behind{more}")
    if not late:
        count = sum(not follower.name.startswith(READ) for follower in status.followers)
        table.add_row("sinks and view", f"{count}, up to date")
    for problem in listed_problems(status):
        table.add_row("problem", problem)
    if (failure := status.failure) is not None:
        again = f"Try {failure.failures + 1} in {failure.retry_in_s:.0f} s."
        table.add_row("failure", printable(f"{failure_text(failure)} {again}"))
    return table


class _Column(NamedTuple):
    """A column of the table of queries; on a narrow terminal, columns of higher rank are left out first."""

    name: str
    cells: Sequence[str]
    rank: int
    right: bool = True

    @property
    def width(self) -> int:
        """The width of its widest cell."""
        return max(map(cell_len, (self.name, *self.cells)))


class _Queries:
    """A row per query, with as many columns as fit the terminal; only names are truncated."""

    def __init__(self, queries: Sequence[QueryShown]) -> None:
        self._queries = sorted(queries, key=lambda query: -query.counts.get("rows", 0))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        shown = fitting(self._columns(), options.max_width)
        table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", pad_edge=False)
        for column in shown:
            table.add_column(
                column.name, justify="right" if column.right else "left", no_wrap=True,
                min_width=None if column.rank == 0 else column.width,
            )  # fmt: skip
        for row in zip(*(column.cells for column in shown), strict=True):
            table.add_row(*row)
        yield table
        if self._queries and any(column.name in _PARTS for column in shown):
            yield Text(f"{' and '.join(_PARTS)}: parts of what queries share; own kB is freed by a drop", style="dim")
        hidden = [column.name for column in self._columns() if column.name not in {one.name for one in shown}]
        if hidden and self._queries:
            yield Text(f"More in a wider terminal, or with --json: {', '.join(hidden)}", style="dim")

    def _columns(self) -> list[_Column]:
        queries = self._queries

        def count(name: str) -> list[str]:
            return [f"{query.counts.get(name, 0):,}" for query in queries]

        def cost(name: str) -> list[str]:
            return [f"{query.counts[name] / 1e3:,.1f}" if name in query.counts else "" for query in queries]

        return [
            _Column("query", [query.name for query in queries], 0, right=False),
            _Column("state", [query.state for query in queries], 1, right=False),
            _Column("version", [str(query.version) for query in queries], 8),
            _Column("rows", count("rows"), 1),
            _Column("late", count("late"), 2),
            _Column("dead", count("dead"), 3),
            _Column("ms", cost("time_us"), 4),
            _Column("own kB", cost("own_bytes"), 5),
            _Column("shared kB", cost("shared_bytes"), 6),
            _Column("complete from", [utc(query.complete_from_us) for query in queries], 7),
            *self._earlier(),
        ]

    def _earlier(self) -> list[_Column]:
        """The starts of the windows that earlier versions still emit, if any do."""
        until = [query.earlier_until_us for query in self._queries]
        return [_Column("earlier version until", [utc(one) for one in until], 9)] if any(until) else []


def fitting(columns: Sequence[_Column], width: int) -> list[_Column]:
    """The columns that fit into a width, chosen by rank; if not all fit, empty columns are left out."""
    shown = list(columns)
    while sum(column.width + 2 for column in shown) > width and len(shown) > 1:
        empty = [column for column in shown if column.rank and not any(cell.strip("-") for cell in column.cells)]
        shown.remove(max(empty or shown, key=lambda column: column.rank))
    return shown
