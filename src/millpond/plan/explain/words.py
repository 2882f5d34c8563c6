"""Text fragments for descriptions of plans."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from millpond.model.expressions import Expression, columns_of, render
from millpond.model.query import Query
from millpond.model.windows import (
    NEVER_LATE_US,
    RUNNING,
    Calendar,
    Counted,
    Cumulating,
    Distinct,
    Pattern,
    Processed,
    Range,
    Session,
    Window,
)
from millpond.plan.explain.amounts import count_of, duration
from millpond.plan.groups.ranked_rows import counted_rows

if TYPE_CHECKING:
    from millpond.plan.groups.plan import GroupPlan

_PEERS = "the events of the same key and time"


def keys_text(keys: Sequence[Expression]) -> str:
    """A list of keys as text.

    >>> from millpond.model.expressions import Column
    >>> keys_text([Column("shop", "string"), Column("day", "date")]), keys_text([])
    ('by shop, day', 'without a key')
    """
    return f"by {', '.join(map(render, keys))}" if keys else "without a key"


def grouping_text(of: Query | GroupPlan) -> str:
    """The keys of a query or group as text, with its grouping sets."""
    if not of.grouping_sets:
        return keys_text(of.keys)
    names = list(map(render, of.keys))
    sets = (f"({', '.join(names[i] for i in one.keys)})" for one in of.grouping_sets)
    return f"by the sets {', '.join(sets)}"


def predicate_text(filter_: Expression) -> str:
    """A filter as text."""
    text = render(filter_)
    return text if columns_of(filter_) else f"{text} (the same for every event)"


def window_text(window: Window) -> str:
    """A window as text.

    >>> from millpond.model.windows import Sliding
    >>> window_text(Sliding(3_600_000_000, 60_000_000)), window_text(Sliding(1_500_000, 1_500_000))
    ('1 hour every 1 minute', '1500 milliseconds')
    """
    if isinstance(window, Session) and window.own_end is not None:
        return f"sessions until {render(window.own_end)}"
    if isinstance(window, Session):
        return f"sessions with a gap of {duration(window.gap_us)}"
    if isinstance(window, Counted) and window.following:
        before = count_of(window.size - 1 - window.following, "event")
        return f"each event with {before} before it and {count_of(window.following, 'event')} after it"
    if isinstance(window, Counted):
        return f"the last {count_of(window.size, 'event')} every {count_of(window.every, 'event')}"
    if isinstance(window, Distinct) and window.ranked is not None:
        return f"the events of each key up to rank {window.ranked}, of all until now"
    if isinstance(window, Distinct) and window.keeps:
        return f"the {window.keeps} event of each key"
    if isinstance(window, Counted) and window.once:
        return "the earliest event of each key"
    if (counted := counted_rows(window)) is not None:
        return f"the first {count_of(counted, 'event')}"
    if isinstance(window, Distinct):
        kept = "indefinitely" if window.lasts_us is None else f"for {duration(window.lasts_us)} of event time"
        return f"the first event of each key, which is remembered {kept}"
    if isinstance(window, Processed):
        kept = "" if window.lasts_us is None else f", for {duration(window.lasts_us)} of event time"
        return f"the state of each key{kept}"
    if isinstance(window, Range):
        preceding_us = window.preceding_us + 1 - window.unit
        unit = "" if window.unit == 1 else f", counted in units of {duration(window.unit)}"
        return f"{duration(preceding_us)} before each event{unit}" if window.preceding_us else _PEERS
    if isinstance(window, Pattern):
        defined = ", ".join(f"{one.name} as {render(one.condition)}" for one in window.variables)
        text = f"matches of {window.text} within {duration(window.within_us)}, the next one after "
        then = "its first event" if window.overlapping else "its last event"
        return f"{text}{then}; {defined}" if defined else f"{text}{then}"
    if window == RUNNING:
        return "all events until now"
    if isinstance(window, Calendar):
        return f"{'day' if window.unit == 'date' else window.unit}s of {window.zone}"
    text = duration(window.size_us)
    if isinstance(window, Cumulating):
        text += f" in steps of {duration(window.step_us)}"
    elif not window.tumbling:
        text += f" every {duration(window.slide_us)}"
    return text + (f" from {duration(window.offset_us)}" if window.offset_us else "")


def waiting_text(query: Query) -> str:
    """The delay of a query as text, with its output mode if its results are updating or corrected."""
    delay = "nothing is late" if query.delay_us >= NEVER_LATE_US else f"delay {duration(query.delay_us)}"
    if query.updating:
        return f"{delay}, emits updates"
    return f"{delay}, corrected for {duration(query.corrected_for_us)} more" if query.changing else delay
