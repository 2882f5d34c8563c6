"""The table of changes that each state of a query allows, and the errors for all others."""

from __future__ import annotations

from collections.abc import Iterable

from millpond.errors import ChangeRefused, one_of
from millpond.model.change_history import ChangeEffects
from millpond.model.query import Query
from millpond.model.selection import AnyQuery, Selection
from millpond.model.spec import PondSpec
from millpond.model.stream import Stream
from millpond.plan.upstream.steps import streams_of

ABSENT, RUNNING, PAUSED, HALTED = "absent", "running", "paused", "quarantined"
SHADOWED, PROMOTED = "shadowed", "promoted"

MOVES = {
    (ABSENT, "add"): RUNNING,
    (RUNNING, "alter"): RUNNING,
    (RUNNING, "pause"): PAUSED,
    (PAUSED, "resume"): RUNNING,
    (RUNNING, "drop"): ABSENT,
    (PAUSED, "drop"): ABSENT,
    (RUNNING, "shadow"): SHADOWED,
    (SHADOWED, "promote"): PROMOTED,
    (SHADOWED, "discard"): RUNNING,
    (SHADOWED, "drop"): ABSENT,
    (PROMOTED, "rollback"): SHADOWED,
    (PROMOTED, "discard"): RUNNING,
    (PROMOTED, "drop"): ABSENT,
    (RUNNING, "halt"): HALTED,
    (PAUSED, "halt"): HALTED,
    (SHADOWED, "halt"): HALTED,
    (PROMOTED, "halt"): HALTED,
    (HALTED, "drop"): ABSENT,
}
"""(state, kind of change) -> the next state. A query whose expression raised is running; one over its budget is not.

A promoted query has its previous version as shadow. A second `promote` does not undo the first one, because it may be
a repeated request whose first response was lost.
"""

_CURES = {
    (RUNNING, "add"): "Give the new query another name, or alter this one.",
    (PAUSED, "add"): "Give the new query another name, or drop this one first.",
    (PAUSED, "alter"): "Resume it first.",
    (PAUSED, "pause"): "No change is needed.",
    (RUNNING, "resume"): "No change is needed.",
    (PAUSED, "shadow"): "Resume it first.",
    (RUNNING, "promote"): "Give it a shadow first.",
    (RUNNING, "discard"): "No change is needed.",
    (PAUSED, "promote"): "Resume it, and give it a shadow first.",
    (PAUSED, "discard"): "No change is needed.",
    (RUNNING, "rollback"): "It has no previous version: nothing was promoted, or that was discarded. Alter it instead.",
    (PAUSED, "rollback"): "Resume it, then alter it.",
    (SHADOWED, "rollback"): "Promote its shadow first, or discard it.",
    (SHADOWED, "add"): "Give the new query another name.",
    (PROMOTED, "add"): "Give the new query another name.",
    (HALTED, "halt"): "No change is needed.",
}
_READ = {
    PAUSED: "Resume that first.",
    SHADOWED: "Discard its shadow first.",
    PROMOTED: "Discard its shadow first, which is the previous version.",
    HALTED: "Drop that first; correct what the reason names before you add it again.",
}
_DEFAULT = {
    HALTED: "Drop it; correct what the reason names before you add it again.",
    SHADOWED: "Promote the shadow if it is the better version, then discard the other one.",
    PROMOTED: "Roll back if the previous version was the better one, then discard the other one.",
}


def state_of(spec: PondSpec, name: str) -> str:
    """The state of a query."""
    if all(query.name != name for query in current(spec)):
        return ABSENT
    return state_in(spec.effects, name)


def state_in(effects: ChangeEffects, name: str) -> str:
    """The state of an existing query."""
    if name in effects.shadows and name not in effects.halted:
        return PROMOTED if name in effects.promoted else SHADOWED
    return HALTED if name in effects.halted else PAUSED if name in effects.paused else RUNNING


def current(spec: PondSpec) -> tuple[AnyQuery, ...]:
    """The queries as their users see them: without shadows and without replaced versions that emit last windows."""
    hidden = {*spec.effects.replaced, *spec.effects.shadows.values()}
    return tuple(query for query in spec.all_queries if query.name not in hidden)


def query_of(spec: PondSpec, name: str) -> AnyQuery:
    """The current version of the query of that name.

    Raises:
        ChangeRefused: no query has this name.
    """
    found = next((query for query in current(spec) if query.name == name), None)
    if found is None:
        raise _refused(spec, name, "change")
    return found


def check_move(spec: PondSpec, name: str, kind: str) -> None:
    """Refuse a change that is not in the table.

    Raises:
        ChangeRefused: the message says in which state the query is, and what to do.
    """
    state = state_of(spec, name)
    if (state, kind) not in MOVES:
        raise _refused(spec, name, kind)
    if state != ABSENT:
        _check_kind(spec, query_of(spec, name), kind)


def check_compared(spec: PondSpec, name: str) -> None:
    """Refuse to compare a query that has no shadow.

    Raises:
        ChangeRefused: it has no shadow, or is quarantined.
    """
    state = state_of(spec, name)
    if state == ABSENT:
        raise _refused(spec, name, "diff")
    if state not in (SHADOWED, PROMOTED):
        cure = _CURES.get((state, "promote")) or _DEFAULT[state]
        raise ChangeRefused(f"The query {name!r} has no shadow to compare with.", cure)


def _check_kind(spec: PondSpec, query: AnyQuery, kind: str) -> None:
    """Refuse what this kind of query does not allow."""
    rows = {stream.name for stream in spec.streams if query.name in stream.upstreams}
    by_name = {stream.name: stream for stream in spec.streams}
    readers = sorted(reader.name for reader in current(spec) if rows & {*streams_of(reader, by_name)})
    if kind == "halt":
        readers = [name for name in readers if name not in spec.effects.halted]
    if readers and kind in ("drop", "pause", "alter", "shadow", "promote", "rollback", "halt"):
        raise ChangeRefused(
            f"The rows of {query.name} are read by {', '.join(readers)}: it cannot be {_DONE[kind]}.",
            f"Drop {'it' if len(readers) == 1 else 'them'} first.",
        )
    if kind == "drop":
        check_feeds(spec, query.name, _DONE[kind])
    if kind == "pause" and isinstance(query, Query) and query.changing:
        raise ChangeRefused(
            f"{query.name} has updating results, and a pause would lose retractions.",
            "Drop it, and add it again.",
        )
    if kind == "shadow" and not isinstance(query, Query | Selection):
        raise ChangeRefused(f"{query.name} is a join of two streams.", "Add it under another name.")


def check_upstream(spec: PondSpec, query: AnyQuery, streams: Iterable[Stream]) -> None:
    """Refuse a query over the rows of a query that is paused, quarantined, or has a shadow.

    Raises:
        ChangeRefused: it reads such rows.
    """
    by_name = {stream.name: stream for stream in streams}
    for stream in by_name.values():
        for upstream in stream.upstreams if stream.name in streams_of(query, by_name) else ():
            state = state_of(spec, upstream)
            if state not in (RUNNING, ABSENT):  # a query that is added by the same request is absent
                what = f"{query.name} reads the rows of {upstream}, which is {state}."
                raise ChangeRefused(what, _READ[state])


def check_feeds(spec: PondSpec, name: str, done: str) -> None:
    """Refuse a change that would end the feed of a parameter.

    Raises:
        ChangeRefused: the query feeds a parameter.
    """
    fed = sorted(parameter for parameter, feeding in spec.effects.feeds.items() if feeding.query == name)
    if fed:
        raise ChangeRefused(f"The rows of {name} feed :{', :'.join(fed)}: it cannot be {done}.", "Set it first.")


_DONE = {"add": "added", "drop": "dropped", "pause": "paused", "resume": "resumed", "alter": "altered",
         "shadow": "given a shadow", "promote": "promoted", "rollback": "rolled back",
         "discard": "separated from a shadow", "halt": "quarantined"}  # fmt: skip


def _refused(spec: PondSpec, name: str, kind: str) -> ChangeRefused:
    state = state_of(spec, name)
    if state == ABSENT:
        known = sorted(query.name for query in current(spec))
        return ChangeRefused(f"There is no query {name!r}.", one_of(name, known))
    cure = _CURES.get((state, kind)) or _DEFAULT[state]
    return ChangeRefused(f"The query {name!r} is {state}: it cannot be {_DONE[kind]}.", cure)
