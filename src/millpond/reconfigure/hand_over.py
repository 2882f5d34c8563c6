"""Finds the event time at which one version of a query hands its windows over to another version.

The old version emits the windows that start before this time, and the new version all others. So no window may have
closed for the new version from this time on, because a closed window is never emitted, and none that the old version
has emitted already. Sessions of the new version leave out events in those of the old one; see `own_sessions` in
`runtime.windows.sessions`.
"""

from __future__ import annotations

from millpond.clock import utc
from millpond.log.manifest import Manifest
from millpond.model.query import Query
from millpond.model.spec import PondSpec
from millpond.model.windows import Session, Sliced
from millpond.reconfigure.apply import plan_of
from millpond.reconfigure.backward_coverage import mark_of, open_from
from millpond.reconfigure.changes import Alter, Change


def can_hand_over(old: Query, new: Query) -> bool:
    """Whether each window of both versions is known by its start: windows that count events are not."""
    return all(isinstance(query.window, Sliced | Session) for query in (old, new))


def hand_over_text(change: Change) -> str:
    """Which version emits which windows after an `alter`, as a clause; "": the new version emits all later rows."""
    if not isinstance(change, Alter) or not isinstance(change.until_us, int):
        return ""
    query = change.stored.query
    shared = isinstance(query, Query) and isinstance(query.window, Session)
    more = "; unless keys, WHERE or delay differ, each event is in a session of one version" if shared else ""
    return f"windows that start before {utc(change.until_us)} are emitted as before the change{more}"


def handed_over_at(spec: PondSpec, manifest: Manifest, old: Query, new: Query, since_us: int | None) -> int | None:
    """The earliest start of a window from which on `new` can emit all windows, and `old` none; None: any start.

    `since_us`: the time from which on windows of `new` are complete (None: all are).
    """
    starts = since_us, _none_closed_from(old, manifest), _none_closed_from(new, manifest)
    known = [start for start in starts if start is not None]
    return first_start(spec, new, max(known)) if known else None


def has_closed_all(spec: PondSpec, manifest: Manifest, query: Query, until_us: int) -> bool:
    """Whether every window of a query of the pond that starts before a time has closed.

    A session may go on without limit. So sessions have closed if no new one can begin before the time, and no segment
    of their group has an earlier event; a segment whose sessions have all closed is retired soon.
    """
    if not isinstance(query.window, Session):
        open_us = open_from(query, manifest)
        return open_us is not None and open_us >= until_us
    mark = mark_of(query, manifest).at(query.late_after_us)
    if mark is None or mark < until_us - 1:
        return False
    # a quarantined query has no group, and its sessions are gone
    groups = {group.id for group in plan_of(spec).groups if query.name in {one.query.name for one in group.queries}}
    stored = (one for one in manifest.sections.values() if one.group in groups and one.kind == "segment" and one.rows)
    return all(isinstance(first := one.info.get("first"), int) and first >= until_us for one in stored)


def first_start(spec: PondSpec, query: Query, since_us: int) -> int:
    """The first start of a window of fixed size that is neither before a time nor before the first window of the
    version in force. Sessions may start at any time.
    """
    window, since_us = query.window, max(since_us, spec.since.get(query.name, since_us))
    return window.next_start(since_us) if isinstance(window, Sliced) else since_us


def _none_closed_from(query: Query, manifest: Manifest) -> int | None:
    """The time from which on no window has closed; None: no window has."""
    if not isinstance(query.window, Session):
        return open_from(query, manifest)
    mark = mark_of(query, manifest).at(query.late_after_us)
    return None if mark is None else mark + 1 - query.window.gap_us
