"""Validates requested changes against the catalog, and computes the time from which they take effect.

Both are decided between two epochs, from the manifest before the record of the change.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from millpond.errors import ChangeRefused, one_of
from millpond.log.manifest import Manifest
from millpond.model.change_history import ALWAYS, StoredQuery
from millpond.model.join import Join
from millpond.model.query import Query
from millpond.model.selection import AnyQuery, Selection
from millpond.model.spec import PondSpec
from millpond.model.stream import Stream, inner_queries
from millpond.model.types import has_json
from millpond.model.windows import RUNNING, Distinct, Sliced
from millpond.plan.groups.build import check_event_times, presence_filter
from millpond.plan.groups.ranked_rows import counted_rows
from millpond.plan.options.clock_parameters import clock_value
from millpond.plan.options.complete_column import has_complete_column, with_complete
from millpond.plan.options.live_parameters import Constant, another_value, as_double, named_in
from millpond.plan.options.output_modes import BY_JOIN, BY_WINDOW, FINAL, UPDATE, with_late_by, with_mode
from millpond.plan.upstream.late_sinks import check_late
from millpond.plan.upstream.parameter_feeds import fed_type, member_type, newest_by
from millpond.plan.upstream.steps import inner_of, inputs_of, with_inner
from millpond.reconfigure.apply import plan_of
from millpond.reconfigure.backward_coverage import (
    check_backfilled,
    check_backfilled_steps,
    incomplete_for,
    open_from,
    recall_for,
)
from millpond.reconfigure.changes import (
    Add,
    Alter,
    Discard,
    Drop,
    End,
    Feed,
    Halt,
    Pause,
    Promote,
    Resume,
    SetParameter,
    Shadow,
    UnsetParameter,
)
from millpond.reconfigure.first_window import TimeSources, beginning, steps_begin
from millpond.reconfigure.hand_over import can_hand_over, first_start, handed_over_at, has_closed_all
from millpond.reconfigure.inner_reports import declared_names, users_of
from millpond.reconfigure.lifecycle import check_feeds, check_move, check_upstream, query_of

_ABOVE = "@"


class KnownPond(NamedTuple):
    """A pond between two epochs: its current catalog, the state of its log, and the driver's clock in microseconds."""

    spec: PondSpec
    manifest: Manifest
    now_us: int | None = None


def add(
    pond: KnownPond, query: AnyQuery, streams: Sequence[Stream] = (), who: str = "",
    time_sources: TimeSources | None = None, backfill_us: int | None = None,
) -> Add:  # fmt: skip
    """Check that a query can be added; returns the change to record.

    `streams`: the streams that it reads and that may be new. `time_sources`: see `first_window.beginning`.
    `backfill_us`: compute windows that start then or later (`ALWAYS`: all windows) from events that are read again.

    Raises:
        ChangeRefused: its name is taken, or its first complete window is not known.
        UnsupportedQuery: it does not support a backfill.
    """
    check_move(pond.spec, query.name, "add")
    if _ABOVE in query.name:
        raise ChangeRefused(f"The name {query.name!r} is that of a version.", f"Use a name without {_ABOVE}.")
    fresh = _new(pond.spec, streams)
    _check_parameters(pond.spec, query, fresh)
    check_upstream(pond.spec, query, (*pond.spec.streams, *fresh))
    plan = plan_of(pond.spec)
    now_us = pond.now_us if backfill_us is None else None  # a backfill needs the watermarks of all epochs
    since = beginning(pond.spec, plan, pond.manifest, query, fresh, time_sources, now_us)
    with declared_names((*pond.spec.streams, *fresh), pond.spec.relations):
        check_event_times((*pond.spec.computed, *inner_queries(fresh), query), pond.spec.effects.times)
    steps_us = steps_begin(pond.spec, pond.manifest, query, fresh, time_sources, now_us)
    if backfill_us is not None:
        check_backfilled(query)
        assert isinstance(query, Query)
        check_backfilled_steps(query, (*pond.spec.streams, *fresh), complete=backfill_us == ALWAYS)
        first = backfill_us if backfill_us == ALWAYS else first_start(pond.spec, query, backfill_us)
        # windows that slices would complete, but that have closed already, are left to the backfill
        open_us = open_from(query, pond.manifest)
        bounds = [time for time in (since, open_us) if isinstance(time, int)]
        if bounds and first < (handed := first_start(pond.spec, query, max(bounds))):
            return Add(StoredQuery.of(query), fresh, handed, who, steps_us=steps_us, backfill_us=first)
    if isinstance(query, Query) and isinstance(since, int):
        recall = recall_for(plan, query, since, pond.manifest)
        partial = incomplete_for(query, since if recall is None else recall, pond.manifest)
        if recall is not None or partial is not None:
            since = first_start(pond.spec, query, since)
            early = [msgspec.UNSET if us is None else us for us in (recall, partial)]
            made = Add(StoredQuery.of(query), fresh, since, who, recall_us=early[0], incomplete_us=early[1])
            return msgspec.structs.replace(made, steps_us=steps_us)
    return Add(StoredQuery.of(query), fresh, since, who, steps_us=steps_us)


def drop(pond: KnownPond, name: str, streams: Sequence[Stream] = (), who: str = "") -> Drop:
    """Check that a query can be dropped; returns the change to record.

    `streams`: sources that it reads as parts of other streams.

    Raises:
        ChangeRefused: the query does not exist, or other queries read its rows.
    """
    check_move(pond.spec, name, "drop")
    return Drop(name, _new(pond.spec, streams), who)


def pause(pond: KnownPond, name: str, who: str = "") -> Pause:
    """Check that a query can be paused; returns the change to record.

    Raises:
        ChangeRefused: the query does not exist, is paused, has updating results, or other queries read its rows.
    """
    check_move(pond.spec, name, "pause")
    return Pause(name, who)


def resume(pond: KnownPond, name: str, who: str = "") -> Resume:
    """Check that a paused query can be resumed; returns the change to record.

    Raises:
        ChangeRefused: the query is not paused.
    """
    check_move(pond.spec, name, "resume")
    return Resume(name, who)


def alter(
    pond: KnownPond, query: AnyQuery, streams: Sequence[Stream] = (), who: str = "",
    time_sources: TimeSources | None = None,
) -> Alter:  # fmt: skip
    """Check that a new version, with the same name and sinks, can replace a query; returns the change to record.

    If only HAVING or outputs differ (only outputs, for updating results), the next row is from the new version.
    Otherwise, if both versions have tumbling or sliding windows or sessions over the same stream, the old version
    emits the windows that start before a certain time, and the new version all later windows. In any other case the
    old version ends with the change.

    Raises:
        ChangeRefused: the query does not exist, its columns would change, or emitted rows could not be retracted.
    """
    check_move(pond.spec, query.name, "alter")
    old = query_of(pond.spec, query.name)
    fresh = _new(pond.spec, streams)
    _check_parameters(pond.spec, query, fresh)
    query = _in_place_of(old, query, (*pond.spec.streams, *fresh))
    if isinstance(query, Query) and newest_by(query) is None:
        check_feeds(pond.spec, query.name, "altered so")
    check_upstream(pond.spec, query, (*pond.spec.streams, *fresh))
    if isinstance(old, Selection) or isinstance(query, Selection) or keeps_state(old, query):
        return Alter(StoredQuery.of(query), fresh, who=who)
    if not isinstance(old, Query) or not isinstance(query, Query):
        raise ChangeRefused(
            f"The new version of the join {query.name} would match other events.",
            "Change only outputs and HAVING (and the condition of an inner join), or add it under another name.",
        )
    since = beginning(pond.spec, plan_of(pond.spec), pond.manifest, query, fresh, time_sources, pond.now_us)
    if not can_hand_over(old, query):
        return Alter(StoredQuery.of(query), fresh, since, who=who)
    steps_us = steps_begin(pond.spec, pond.manifest, query, fresh, time_sources, pond.now_us)
    since = _handed_over(pond, old, query, since)
    return Alter(StoredQuery.of(query), fresh, since, since, who, steps_us=steps_us)


def param(pond: KnownPond, name: str, value: Constant, who: str = "") -> SetParameter:
    """Check that a live parameter, which may be new, can be set; returns the change to record.

    The value must have the parameter's type, unless nothing uses the parameter. A whole-number parameter also accepts
    a fraction if every use converts it to DOUBLE.

    Raises:
        ChangeRefused: the value has another type, and queries or a feed use the parameter.
    """
    effects = pond.spec.effects
    by_name = {stream.name: stream for stream in pond.spec.streams}
    users, feed = users_of(name, pond.spec.all_queries, by_name), effects.feeds.get(name)
    if feed is not None:
        users.append(f"the feed from {feed.query}.{feed.column}")
    fraction = feed is None and as_double(name, pond.spec.computed)
    return SetParameter(name, another_value(name, value, effects.parameters.get(name), users, fraction), who)


def unset(pond: KnownPond, name: str, who: str = "") -> UnsetParameter:
    """Check that a live parameter can be removed; returns the change to record.

    Raises:
        ChangeRefused: it does not exist, or a query uses it.
    """
    known = pond.spec.effects.parameters
    if name not in known:
        raise ChangeRefused(f"There is no parameter {name}.", one_of(name, sorted(known)))
    if users := users_of(name, pond.spec.all_queries, {stream.name: stream for stream in pond.spec.streams}):
        use = "uses" if len(users) == 1 else "use"
        raise ChangeRefused(f"{', '.join(users)} {use} the parameter {name}.", "First drop or alter what uses it.")
    return UnsetParameter(name, who)


def feed(pond: KnownPond, name: str, query: str, column: str, who: str = "") -> Feed:
    """Check that the rows of a query can set a live parameter; returns the change to record.

    A list parameter takes all values in the rows of the newest window, any other parameter the largest one.

    Raises:
        ChangeRefused: the parameter, query or column does not exist, or the rows do not contain their window.
    """
    known, source = pond.spec.effects.parameters.get(name), query_of(pond.spec, query)
    if known is None:
        raise ChangeRefused(f"The parameter {name} has no value.", "Set a first one, with `pond.param`.")
    found = next((item for item in source.output if item.name == column), None)
    if found is None or member_type(found.expression.type) != fed_type(known):
        lacks = "has no column" if found is None else f"has type {found.expression.type} in the column"
        raise ChangeRefused(
            f"{query} {lacks} {column}, and the parameter {name} is {known.type}.",
            f"Name one of type {fed_type(known)}. The columns are {', '.join(item.name for item in source.output)}.",
        )
    if not isinstance(source, Query) or source.changing or newest_by(source) is None:
        raise ChangeRefused(
            f"The rows of {query} do not show which of them are the newest.",
            "Feed from a query with windows and final rows that SELECTs the window, or its end.",
        )
    return Feed(name, query, column, who)


def _check_parameters(spec: PondSpec, query: AnyQuery, fresh: Sequence[Stream]) -> None:
    parameters = spec.effects.parameters
    named_in_steps = {
        named for one in with_inner([query], {stream.name: stream for stream in (*spec.streams, *fresh)})
        for named in named_in(one) if clock_value(named.name) is None
    }  # fmt: skip
    unknown = sorted({named.name for named in named_in_steps} - {*parameters})
    if unknown:
        what = f"{query.name} names parameters that have no value: {', '.join(unknown)}."
        raise ChangeRefused(what, "Set them first: `millpond param set --new`, or `pond.param`.")
    for named in named_in_steps:
        if named.type != parameters[named.name].type:
            kinds = f"is now of type {parameters[named.name].type}. It was {named.type} when {query.name} was analysed"
            raise ChangeRefused(f"The parameter {named.name} {kinds}.", "Send the request again.")


def shadow(
    pond: KnownPond, query: AnyQuery, streams: Sequence[Stream] = (), who: str = ""
) -> Shadow:  # fmt: skip
    """Check that a version can run as the shadow of the query of its name; returns the change to record.

    Raises:
        ChangeRefused: as `alter`; or the two versions have no common windows, or their rows cannot be compared.
    """
    check_move(pond.spec, query.name, "shadow")
    old = query_of(pond.spec, query.name)
    fresh = _new(pond.spec, streams)
    _check_parameters(pond.spec, query, fresh)
    query = _in_place_of(old, query, (*pond.spec.streams, *fresh))
    if not all(stream.steps for stream in fresh):
        what = f"The shadow of {query.name} would read a stream that the pond does not read yet."
        raise ChangeRefused(what, "Add it under another name.")
    if isinstance(query, Query) and query.changing:
        raise ChangeRefused(
            f"{query.name} has updating results, and a shadow compares final rows only.",
            "Add it under another name, or alter it.",
        )
    if textless := [item.name for item in query.output if not has_json(item.expression.type)]:
        raise ChangeRefused(
            f"Rows are compared as JSON, which cannot represent {', '.join(textless)} of {query.name}.",
            "Select parts of a map, or the base64 of bytes; or add it under another name.",
        )
    if isinstance(old, Selection) or isinstance(query, Selection) or keeps_state(old, query):
        return Shadow(StoredQuery.of(query), who=who)
    assert isinstance(old, Query) and isinstance(query, Query)
    if not can_hand_over(old, query):
        raise ChangeRefused(
            f"The windows of {query.name} depend on counts of events, so two versions would have different windows.",
            "Add it under another name.",
        )
    since = beginning(pond.spec, plan_of(pond.spec), pond.manifest, query, fresh, now_us=pond.now_us)
    steps_us = steps_begin(pond.spec, pond.manifest, query, fresh, now_us=pond.now_us)
    return Shadow(StoredQuery.of(query), _handed_over(pond, old, query, since), who, streams=fresh, steps_us=steps_us)


def promote(pond: KnownPond, name: str, who: str = "") -> Promote:
    """Check that a query can be exchanged with its shadow; returns the change to record.

    Raises:
        ChangeRefused: it has no shadow, or the shadow is the previous version. Or the query feeds a parameter, and
            the shadow's rows do not contain their window.
    """
    check_move(pond.spec, name, "promote")
    return Promote(name, who, since_us=_exchanged_at(pond, name, "promoted"))


def rollback(pond: KnownPond, name: str, who: str = "") -> Promote:
    """Check that a promote can be undone; returns the change to record.

    Raises:
        ChangeRefused: the query was not promoted; or as `promote`.
    """
    check_move(pond.spec, name, "rollback")
    return Promote(name, who, back=True, since_us=_exchanged_at(pond, name, "rolled back"))


def halt(pond: KnownPond, name: str, why: str) -> Halt:
    """The change that quarantines a query, for example because it exceeds its budget or exhausted the JVM's memory.

    Raises:
        ChangeRefused: the query does not exist, is quarantined already, or other queries read its rows.
    """
    check_move(pond.spec, name, "halt")
    return Halt(name, why)


def discard(pond: KnownPond, name: str, who: str = "") -> Discard:
    """Check that the shadow of a query can be dropped; returns the change to record.

    Raises:
        ChangeRefused: the query has no shadow.
    """
    check_move(pond.spec, name, "discard")
    return Discard(name, who)


def _exchanged_at(pond: KnownPond, name: str, done: str) -> int | msgspec.UnsetType:
    """The start of the first window of a promoted shadow; UNSET: the next one that closes, as both close the same.

    Raises:
        ChangeRefused: the query feeds a parameter, and the shadow's rows do not contain their window.
    """
    spec = pond.spec
    now = query_of(spec, name)
    other = next(query for query in spec.all_queries if query.name == spec.effects.shadows[name])
    if not isinstance(now, Query) or not isinstance(other, Query):
        return msgspec.UNSET
    if newest_by(other) is None:
        check_feeds(spec, name, done)
    if (now.stream, now.window, now.late_after_us) == (other.stream, other.window, other.late_after_us):
        return msgspec.UNSET
    return _handed_over(pond, now, other, spec.since.get(other.name, msgspec.UNSET))


def keeps_state(old: AnyQuery, new: AnyQuery) -> bool:
    """Whether two versions have the same state, and differ only in HAVING, outputs or text.

    Inner joins may also differ in their condition, which is tested once per pair. Updating results may not differ in
    HAVING: rows that only the old version emitted would never be retracted.
    """
    if isinstance(old, Join) and isinstance(new, Join):
        changed = msgspec.structs.replace(old, having=new.having, unnest=new.unnest, output=new.output, text=new.text)
        condition = new.condition if old.kind == "inner" else old.condition
        return msgspec.structs.replace(changed, condition=condition, most_pairs=new.most_pairs) == new
    if not isinstance(old, Query) or not isinstance(new, Query):
        return False
    stores_no_values = isinstance(old.window, Distinct) and not old.window.keeps and counted_rows(old.window) is None
    if stores_no_values and presence_filter(old) == presence_filter(new):
        old = msgspec.structs.replace(old, event=new.event)
    having = old.having if old.changing else new.having
    unnest = old.unnest if old.changing else new.unnest
    return msgspec.structs.replace(old, having=having, unnest=unnest, output=new.output, text=new.text) == new


def ends(spec: PondSpec, manifest: Manifest) -> list[End]:
    """The replaced versions that have emitted their last window.

    A version that begins with retained events emits closed windows, so it stays until an epoch has read these events.
    """
    effects = spec.effects
    old = {query.name: query for query in spec.all_queries if isinstance(query, Query)}
    waiting = {name for name, recalled in effects.recalled.items() if recalled.n > manifest.epoch_n}
    return [
        End(name) for name, until in effects.until_us.items()
        if name not in waiting and has_closed_all(spec, manifest, old[name], until)
    ]  # fmt: skip


def _handed_over(
    pond: KnownPond, old: Query, new: Query, since_us: int | msgspec.UnsetType
) -> int | msgspec.UnsetType:
    """As `handed_over_at`, with UNSET instead of None."""
    known = None if isinstance(since_us, msgspec.UnsetType) else since_us
    start = handed_over_at(pond.spec, pond.manifest, old, new, known)
    return msgspec.UNSET if start is None else start


def _new(spec: PondSpec, streams: Sequence[Stream]) -> tuple[Stream, ...]:
    known = {stream.name: stream for stream in spec.streams}
    for stream in streams:
        if known.get(stream.name, stream) != stream:
            raise ChangeRefused(
                f"The pond has a different stream {stream.label}.", "Declare it as it was, or under another name."
            )
    return tuple(stream for stream in streams if stream.name not in known)


def _in_place_of(old: AnyQuery, new: AnyQuery, streams: Sequence[Stream]) -> AnyQuery:
    """The new version with the sinks and the mode of the old one, and its column `_complete` if the old one has it.

    The versions may have different inner queries if each of their windows is known by its start.

    Raises:
        ChangeRefused: its rows do not fit the sink.
        UnsupportedQuery: such a query cannot have updating results, or a late sink.
    """
    if has_complete_column(old) and not has_complete_column(new):
        new = with_complete(new)
    by_name = {stream.name: stream for stream in streams}
    handed = isinstance(old, Query) and isinstance(new, Query) and can_hand_over(old, new)
    steps_differ = old.streams != new.streams and any(inner_of(query, by_name) for query in (old, new))
    if steps_differ and not handed:
        raise ChangeRefused(
            f"The new version of {new.name} would differ from it in an inner query.",
            "Change only its last step, or add it under another name, then drop this one.",
        )
    if type(old) is not type(new) or {*inputs_of(old, by_name)} != {*inputs_of(new, by_name)}:
        raise ChangeRefused(
            f"The new version of {new.name} is of another kind, or reads another stream.",
            "Add it under another name, then drop this one.",
        )
    if [(item.name, item.expression.type) for item in old.output] != [
        (item.name, item.expression.type) for item in new.output
    ]:
        raise ChangeRefused(
            f"The new version of {new.name} has other columns, or other types of columns.",
            "Add it under another name, then drop this one.",
        )
    if isinstance(old, Join) and old.late_by == BY_JOIN:
        new = with_late_by(new, BY_JOIN)
    if not isinstance(old, Query) or not isinstance(new, Query):
        return msgspec.structs.replace(new, sink=old.sink, budget=old.budget)
    if old.changing and not new.changing and new.window != RUNNING:
        new = with_mode(new, UPDATE if old.updating else FINAL, old.corrected_for_us or None)
        assert isinstance(new, Query)
    if old.late_by_window or new.late_by_window:
        new = with_late_by(new, BY_WINDOW)
        assert isinstance(new, Query)
        if not old.late_by_window:
            raise ChangeRefused(f"{new.name} would judge late events by another rule.", "Add it under another name.")
    if RUNNING in (old.window, new.window) or ((old.changing or new.changing) and not _same_updates(old, new)):
        raise ChangeRefused(
            f"{new.name} has updating results, and the new version could not retract the rows that were emitted.",
            "Keep tumbling or sliding windows and the mode, or drop the query and add it again.",
        )
    if old.serve and (old.keys, old.sets, old.window) != (new.keys, new.sets, new.window):
        raise ChangeRefused(
            f"{new.name} is served, and the new version has another key or window.",
            "Add it under another name, then drop this one.",
        )
    made: Query = msgspec.structs.replace(new, sink=old.sink, serve=old.serve, late=old.late, budget=old.budget)
    check_late(made, by_name)
    return made


def _same_updates(old: Query, new: Query) -> bool:
    """Whether both have the same mode of updating results, over windows of fixed size."""
    same = (old.updating, old.corrected_for_us) == (new.updating, new.corrected_for_us)
    return same and isinstance(old.window, Sliced) and isinstance(new.window, Sliced)
