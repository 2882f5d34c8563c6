"""The report of `millpond why` and its text: bars for the fates of events, a line of event time, and the causes."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from html import escape

import msgspec

from millpond.clock import utc
from millpond.control.diagnose.facts import Facts
from millpond.control.diagnose.why_message import WIDEST, Cause, WhyShown, WindowShown
from millpond.formats.escapes import printable
from millpond.model.join import Join
from millpond.model.query import Query
from millpond.model.selection import AnyQuery, Selection
from millpond.plan.explain.join_text import join_text
from millpond.plan.explain.words import grouping_text, waiting_text, window_text
from millpond.reconfigure.inner_reports import relabelled
from millpond.runtime.fold.next_due import Due

_NARROWEST = 60
_BAR = 40
_EIGHTHS = " ▏▎▍▌▋▊▉█"


class Why(msgspec.Struct, frozen=True):
    """Why a query emits nothing (more): the facts, and the causes that follow from them, the main cause first."""

    facts: Facts
    causes: tuple[Cause, ...]

    def __repr__(self) -> str:
        return f"<Why {self.facts.query.name}: {', '.join(cause.code for cause in self.causes)}>"

    def __str__(self) -> str:
        """The report of `millpond why`."""
        return draw(self)

    def _repr_html_(self) -> str:
        """How a notebook shows the reasons: as `millpond why` does."""
        return f"<pre>{escape(str(self))}</pre>"

    def shown(self, width: int = WIDEST) -> WhyShown:
        """The report as plain fields; `width`: see `draw`."""
        facts, recent = self.facts, self.facts.recent
        return WhyShown(
            facts.query.name, facts.n, draw(self, width), self.causes, _computes(facts), facts.query.sink.format,
            recent.counts, recent.counts_since_applied, recent.epochs, recent.reaches_start, recent.at_us,
            recent.last_applied_n, recent.last_rows_n, facts.newest_us, facts.watermark_us, facts.partitions,
            _window(facts.due), _window(facts.first), facts.complete_us, facts.quarantined or None,
            facts.failure or None, facts.running, facts.sink_n, facts.errors, dict(facts.upstream),
            dict(facts.dead_letters), dict(facts.dead_reasons),
        )  # fmt: skip


def _window(due: Due | None) -> WindowShown | None:
    return None if due is None else WindowShown(*due)


def draw(why: Why, width: int = WIDEST) -> str:
    """The report as text of at most `width` columns (60 to 100), with control characters as escapes.

    Only long names and escapes may exceed the width.
    """
    facts, width = why.facts, min(WIDEST, max(_NARROWEST, width))
    lines = [*_wrapped(_title(facts), width), *_committed(facts), "", *_funnel(facts, min(_BAR, width - 27)), ""]
    lines += [*_timeline(facts, width), *_partitions(facts), ""]
    for cause in why.causes:
        first, *listed = cause.text.split("\n")
        lines += [*_wrapped(f"→ {first}", width), *(f"  {line}" for line in listed)]
    return "\n".join(map(printable, lines)) + "\n"


def computation_text(query: AnyQuery) -> str:
    """A query in a few words: its stream, grouping and window, or its join."""
    if isinstance(query, Selection):
        return f"{query.stream}, stateless"
    if isinstance(query, Join):
        return join_text(query)
    return f"{query.stream} {grouping_text(query)}, {window_text(query.window)}, {waiting_text(query)}"


def _wrapped(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, width, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)


def _title(facts: Facts) -> str:
    return f"{facts.query.name}: {_computes(facts)}, to {facts.query.sink.format}, as of record {facts.n}"


def _computes(facts: Facts) -> str:
    return relabelled(computation_text(facts.query), dict(facts.labels))


def _committed(facts: Facts) -> Iterator[str]:
    if facts.recent.at_us is not None:
        yield f"the last epoch was committed at {utc(facts.recent.at_us)}"


def _funnel(facts: Facts, width: int) -> Iterator[str]:
    """How many events reached each step, beside bars of at most `width` columns."""
    counts = facts.recent.counts
    scope = "" if facts.recent.reaches_start else f" in the last {facts.recent.epochs:,} epochs"
    yield f"events{scope}"
    for name in ("read", "late", "dead", "filtered", "applied"):
        count = getattr(counts, name)
        yield f"  {name:<9}{count:>14,}  {bar(count, counts.read, width)}".rstrip()
    updates = not isinstance(facts.query, Query) or facts.query.changing
    yield "rows" if updates else "rows of closed windows"
    for name, count in (("withheld", counts.withheld), ("emitted", counts.rows)):
        yield f"  {name:<9}{count:>14,}  {bar(count, counts.withheld + counts.rows, width)}".rstrip()


def bar(count: int, whole: int, width: int) -> str:
    """A bar of which `width` cells represent `whole`; any count above 0 is visible.

    >>> bar(1, 2, 4), bar(1, 1000, 4), bar(0, 9, 4)
    ('██', '▏', '')
    """
    if not count or not whole:
        return ""
    eighths = max(1, round(count * width * 8 / whole))
    return ("█" * (eighths // 8) + _EIGHTHS[eighths % 8]).rstrip()


def _timeline(facts: Facts, whole: int) -> Iterator[str]:
    """A time line of event time, from the start of the window that is due to the time that its rows need."""
    due = facts.due or facts.first
    if isinstance(facts.query, Selection):
        yield "event time: not used; rows are emitted in the epoch that reads their events"
        return
    if due is None or facts.newest_us is None:
        yield f"event time: newest {utc(facts.newest_us)}, watermark {utc(facts.watermark_us)}"
        return
    low, high = due.start_us, max(due.needs_us, facts.newest_us, due.start_us + 1)
    width = whole - 24

    def at(us: int) -> int:
        return min(width, max(0, round((us - low) * width / (high - low))))

    def mark(us: int, label: str) -> str:
        place = at(us)
        return " " * (place - len(label) - 1) + f"{label} ▲" if place > width // 2 else " " * place + f"▲ {label}"

    closes, needs = at(due.end_us), at(due.needs_us)
    yield "event time"
    yield "  window due  " + "━" * max(1, closes) + "╌" * (needs - closes) + "┃"
    yield "  newest      " + mark(facts.newest_us, utc(facts.newest_us))
    if facts.watermark_us is not None and facts.watermark_us >= low:
        yield "  watermark   " + mark(facts.watermark_us, utc(facts.watermark_us))
    window, needed = f"  ━ {utc(due.start_us)} to {utc(due.end_us)}", f"╌ delay   ┃ needed: {utc(due.needs_us)}"
    legend = f"{window}   {needed}"
    yield from (legend,) if len(legend) <= whole else (window, f"  {needed}")


def _partitions(facts: Facts) -> Iterator[str]:
    if not facts.partitions:
        return
    slowest = set(facts.slowest)
    width = max(9, *(len(part.name) for part in facts.partitions))
    yield f"  {'partition':<{width}}  newest"
    for part in facts.partitions:
        note = "idle: ignored" if part.idle else "waited for" if part in slowest else ""
        yield f"  {part.name:<{width}}  {utc(part.newest_us):<27}  {note}".rstrip()
