"""Shows the progress of a running pond: a live table on a terminal, otherwise at most one line per second."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence

from rich.console import Console
from rich.live import Live
from rich.table import Table

from millpond.clock import Clock, lap_us, utc
from millpond.control.pond.event_totals import EventTotals
from millpond.control.pond.report import QUERY
from millpond.followers.prune import PruneFollower
from millpond.followers.runner import FollowerStatus
from millpond.model.selection import is_inner
from millpond.plan.explain.amounts import backlog, remaining_text
from millpond.plan.groups.plan import Plan
from millpond.runtime.gather.lateness import ANY_PARTITION
from millpond.runtime.task.counters import WHOLE_POND
from millpond.runtime.task.task_values import Watermark
from millpond.spark.driver.epochs import Epoch
from millpond.spark.reading.intake import Behind

_EPOCHS_OF_RATE = 8
_LINE_EVERY_US = 1_000_000


class Progress:
    """The progress of a run; pass `epoch` to the pond, and use the object as a context manager around the run.

    `status` returns the state of the followers, `behind` the backlog of the sources. `labels`: what users call streams.
    Numbers count from the start of this process.
    """

    def __init__(
        self, plan: Plan, status: Callable[[], Sequence[FollowerStatus]], console: Console, clock: Clock = lap_us,
        behind: Callable[[], Sequence[Behind]] = tuple, labels: Mapping[str, str] | None = None,
    ) -> None:  # fmt: skip
        self._status, self._behind, self._console, self._clock = status, behind, console, clock
        groups = [group for group in plan.groups if not is_inner(group.stream)]
        self._delays = {group.stream: 0 for group in groups}
        for group in groups:
            self._delays[group.stream] = max(self._delays[group.stream], *group.delays_us)
        self._labels = labels or {}
        self._marks = dict.fromkeys(self._delays, Watermark())
        self.rows = {query.name: 0 for query in plan.all_queries if not is_inner(query.name)}
        self._quarantined: set[str] = set()
        self.events = self.bytes_read = self.bytes_moved = self.late = self.dead = 0
        self._totals = EventTotals()
        self.epoch_n: int | None = None
        self.epochs = 0
        self._recent: deque[tuple[int, int]] = deque(maxlen=_EPOCHS_OF_RATE)
        self._line_due = 0
        self._unsaid = False
        self._lock = threading.RLock()
        self._live: Live | None = None
        self._ended = threading.Event()
        self._ticker: threading.Thread | None = None

    def epoch(self, epoch: Epoch) -> None:
        """Add a committed epoch."""
        with self._lock:
            self._count(epoch)
            self._unsaid = True
            if self._live is None and self._clock() >= self._line_due:
                self._say_line()

    def _count(self, epoch: Epoch) -> None:
        record, now = epoch.record, self._clock()
        whole = record.counts.get(WHOLE_POND, {})
        if not self._recent:
            self._recent.append((now - round(epoch.seconds * 1e6), 0))
        self._recent.append((now, whole.get("events", 0)))
        self.epoch_n, self.epochs = record.n, self.epochs + 1
        self.events += whole.get("events", 0)
        self.bytes_read += whole.get("bytes_read", 0)
        self.bytes_moved += whole.get("bytes_moved", 0)
        for query in self.rows.keys() & record.counts.keys():
            found = record.counts[query]
            self.rows[query] += found.get("rows", 0)
            self.late += found.get("late", 0)
            self.dead += found.get("dead", 0)
        self._quarantined |= {name for name, why in record.quarantined.items() if why}
        self._totals.add(record)
        for stream, times in record.max_time.items():
            self._marks[stream] = self._marks.get(stream, Watermark()).advanced(times.get(ANY_PARTITION))
        for stream, floor in record.watermark_floor.items():
            self._marks[stream] = Watermark(self._marks[stream].max_time_us, floor)

    def events_per_second(self) -> float:
        """The rate over the last few epochs and the time since."""
        with self._lock:
            if not self._recent:
                return 0.0
            seconds = (self._clock() - self._recent[0][0]) / 1e6
            return sum(events for _, events in list(self._recent)[1:]) / max(seconds, 1e-3)

    def watermarks(self) -> dict[str, str]:
        """The watermark of each stream, in UTC."""
        with self._lock:
            marks = ((name, self._marks[name].at(delay)) for name, delay in self._delays.items())
            return {self._labels.get(name, name): utc(mark) for name, mark in marks}

    def lag(self) -> str:
        """The backlog of the pond's sources, and that of the sinks and the view with what delays them."""
        return f"{behind_text(self._behind())}{self.sinks()}"

    def sinks(self) -> str:
        """How many records of the log the sinks and the view are behind, what delays them, and what they repaired."""
        status = [one for one in self._status() if not one.name.startswith(QUERY)]
        notes = "".join(f"; {one.name}: {one.note}" for one in status if one.note)
        # a backlog of one record is the record that was just committed
        behind = [one for one in status if one.name != PruneFollower.name and (one.behind > 1 or one.error)]
        if not behind:
            return f"sinks up to date{notes}"
        worst = max(behind, key=lambda one: (one.error is not None, one.behind))
        more = f": {worst.error}" if worst.error else remaining_text(worst.remaining_s)
        return f"{worst.name} {worst.behind:,} records of the log behind{more}{notes}"

    def __enter__(self) -> Progress:
        if self._console.is_terminal:
            self._live = Live(get_renderable=self.table, console=self._console, refresh_per_second=4)
            self._live.start()
        else:
            self._ticker = threading.Thread(target=self._tick, name="millpond-progress", daemon=True)
            self._ticker.start()
        return self

    def __exit__(self, *_error: object) -> None:
        if self._live is not None:
            self._live.stop()
        self._ended.set()
        if self._ticker is not None:
            self._ticker.join()
            if self._unsaid:
                self._say_line()

    def _tick(self) -> None:
        """Print a line that was held back, even if no epoch follows for a long time."""
        while not self._ended.wait(_LINE_EVERY_US / 1e6):
            with self._lock:
                if self._unsaid:
                    self._say_line()

    def _say_line(self) -> None:
        self._line_due, self._unsaid = self._clock() + _LINE_EVERY_US, False
        rows = "  ".join(f"{name} {self._rows_of(name)}" for name in self.rows)
        losses = self._totals.losses_line()
        marks = ", ".join(f"{name} to {time}" for name, time in self.watermarks().items())
        self._console.print(
            f"epoch {self.epoch_n}  {self.events:,} events  {self.events_per_second():,.0f}/s  {marks}  "
            f"rows: {rows}  {self.lag()}{losses and f'  {losses}'}",
            soft_wrap=True, highlight=False, markup=False,
        )  # fmt: skip

    def table(self) -> Table:
        """The live table of the progress."""
        with self._lock:
            table = Table.grid(padding=(0, 2))
            table.add_column(style="dim", no_wrap=True)
            table.add_column()
            table.add_row("epoch", "-" if self.epoch_n is None else str(self.epoch_n))
            table.add_row("events", f"{self.events:,}")
            table.add_row("events/s", f"{self.events_per_second():,.0f}")
            for stream, time in self.watermarks().items():
                table.add_row(f"watermark of {stream}", time)
            for name in self.rows:
                table.add_row(f"rows of {name}", self._rows_of(name))
            table.add_row("late and dead", self._totals.losses_line() or "none")
            for one in self._behind():
                table.add_row(f"behind {one.stream}", backlog(one.waiting, one.unit))
            table.add_row("sinks", self.sinks().removeprefix("sinks "))
            return table

    def _rows_of(self, name: str) -> str:
        return f"{self.rows[name]:,}" + (" (quarantined)" if name in self._quarantined else "")


def behind_text(behind: Sequence[Behind]) -> str:
    """The backlog of a pond's sources, for the middle of a line; empty if no source reports one.

    >>> behind_text([Behind("tx", "records", 100_000), Behind("in", "files", 0)])
    'tx 100,000 records behind, in 0 files behind  '
    """
    known = [f"{one.stream} {backlog(one.waiting, one.unit)} behind" for one in behind if one.waiting is not None]
    return ", ".join(known) + "  " if known else ""
