"""Words for queries whose windows are runs of events: what of the event log they need, and for how long."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from millpond.model.windows import Counted, Framed, Range
from millpond.plan.build import build_plan
from millpond.plan.plan import GroupPlan, QueryPlan
from millpond.plan.words import count_of, duration

_WORD_BYTES = 8


def frames_lines(group: GroupPlan) -> Iterator[str]:
    """What a group with such queries keeps; nothing of another one."""
    plans = [plan for plan in group.queries if isinstance(plan.query.window, Framed)]
    if plans and group.events is not None:
        values = count_of(len(group.events.values), "value")
        yield f"  events    each kept once, with {values}, {kept_text(plans)}"


def kept_text(plans: Sequence[QueryPlan]) -> str:
    """How long events are kept for queries of one kind, for people."""
    windows = [plan.query.window for plan in plans]
    sizes = [window.size for window in windows if isinstance(window, Counted)]
    if sizes:
        return f"of each key the last {max(sizes) - 1:,}, however old, and one count for each key and filter"
    kept = max(
        plan.query.window.preceding_us + plan.query.delay_us for plan in plans if isinstance(plan.query.window, Range)
    )
    return f"for {duration(kept)} of event time: the longest frame and its delay"


def event_bytes(plan: QueryPlan) -> int:
    """About how many bytes an event takes in the log of a query alone: slot, time, values, and a bit per filter."""
    log = build_plan([plan.query]).groups[0].events
    return 0 if log is None else _WORD_BYTES * (2 + len(log.values)) + -(-len(log.filters) // _WORD_BYTES)
