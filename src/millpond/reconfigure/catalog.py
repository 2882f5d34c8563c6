"""The catalog: the streams and queries in force, computed from the claim's spec and the later changes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import msgspec

from millpond.errors import CorruptError
from millpond.log.manifest import Manifest
from millpond.log.port import Log
from millpond.log.records import ChangeRecord, decode
from millpond.model.change_history import ALWAYS, ChangeEffects, Feeding, Leaving, Recalled, Scaled, StoredQuery
from millpond.model.change_json import Move, Resharded, Scale
from millpond.model.endpoints import Sink
from millpond.model.join import Join
from millpond.model.query import Query
from millpond.model.selection import AnyQuery, Selection
from millpond.model.spec import PondSpec, from_json
from millpond.model.stream import Relation, Stream, inner_queries
from millpond.plan.options.complete_column import early_version
from millpond.plan.upstream.step_copies import copied_steps
from millpond.plan.upstream.steps import streams_of, with_inner
from millpond.reconfigure.changes import (
    Add,
    Alter,
    Change,
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
    change_of,
)
from millpond.reconfigure.lifecycle import current, query_of


class Recorded(NamedTuple):
    """A change in the log: the number of its record, the writer's clock in microseconds, and the change."""

    n: int
    at_us: int
    change: Change


def in_force(manifest: Manifest) -> PondSpec:
    """The streams and queries in force in every epoch after the manifest's record.

    Raises:
        CorruptError: a stored spec or change does not decode.
    """
    spec = from_json(manifest.spec)
    for found in manifest.changes:
        change = change_of(found.change)
        if change is not None and found.n > spec.effects.last:  # a claim repeats the change by which state is stored
            spec = applied(spec, found.n, change)
    return spec


def applied(spec: PondSpec, n: int, change: Change) -> PondSpec:
    """The spec after a change in record `n`."""
    effects = _with(spec.effects, last=n)
    if isinstance(change, Add | Alter | Shadow):
        spec = _naming(spec, change.named)
    if isinstance(change, Add | Alter | Drop | End | Shadow | Discard | Halt):
        effects = _with(effects, signed=tuple(sorted({*effects.signed, *change.signed})))
    match change:
        case Add():
            return _added(spec, effects, n, change)
        case Drop():
            return _dropped(spec, effects, n, change)
        case Pause():
            effects = _with(effects, paused=tuple(sorted({*effects.paused, change.name})))
            return _with_queries(spec, effects, spec.all_queries)
        case Resume():
            return _with_queries(spec, _with(effects, paused=_without(effects.paused, change.name)), spec.all_queries)
        case Alter():
            return _altered(spec, effects, change)
        case End():
            return _ended(spec, effects, change.name)
        case Shadow():
            return _shadowed(spec, effects, change)
        case Promote():
            return _swapped(spec, effects, change)
        case Discard():
            return _discarded(spec, effects, change.name)
        case Halt():
            effects = _with(effects, halted=effects.halted | {change.name: change.why})
            return _with_queries(spec, effects, spec.all_queries)
        case SetParameter():
            feeds = {name: fed for name, fed in effects.feeds.items() if name != change.name}
            parameters = effects.parameters | {change.name: change.value}
            return _with_queries(spec, _with(effects, parameters=parameters, feeds=feeds), spec.all_queries)
        case UnsetParameter():
            feeds = {name: fed for name, fed in effects.feeds.items() if name != change.name}
            parameters = {name: value for name, value in effects.parameters.items() if name != change.name}
            return _with_queries(spec, _with(effects, parameters=parameters, feeds=feeds), spec.all_queries)
        case Feed():
            fed = effects.feeds.get(change.name)  # the parameter keeps its value until new rows change it
            feeds = effects.feeds | {change.name: Feeding(change.query, change.column, n if fed is None else fed.n)}
            return _with_queries(spec, _with(effects, feeds=feeds), spec.all_queries)
        case Scale():
            request = Scaled(n, change.instances, change.owned)
            effects = _with(effects, scaled=(*effects.scaled, request), shards=change.shards or effects.shards)
            return _with_queries(spec, effects, spec.all_queries)
        case Resharded():
            return _with_queries(spec, _with(effects, shards=()), spec.all_queries)
        case Move():
            return _with_queries(spec, _with(effects, places=change.places), spec.all_queries)


def _naming(spec: PondSpec, named: tuple[Relation, ...]) -> PondSpec:
    """The spec with what the text of a new query names; what it has already stays as it is."""
    known = {relation.name for relation in spec.relations}
    fresh = tuple(relation for relation in named if relation.name not in known)
    return msgspec.structs.replace(spec, named=(*spec.relations, *fresh)) if fresh else spec


def _added(spec: PondSpec, effects: ChangeEffects, n: int, change: Add) -> PondSpec:
    since, new = dict(spec.since) | change.steps_us, [change.stored.query]
    if not isinstance(change.since_us, msgspec.UnsetType):
        since[change.name] = change.since_us
    streams = (*spec.streams, *(stream for stream in change.streams if stream not in spec.streams))
    leaving = tuple(one for one in effects.leaving if one.stored.query.name != change.name)
    apart = (*effects.apart, change.name) if change.apart else effects.apart
    query, recall = change.stored.query, change.recall_us if isinstance(change.recall_us, int) else None
    from_us = change.incomplete_us if isinstance(change.incomplete_us, int) else recall
    from_us = change.backfill_us if isinstance(change.backfill_us, int) else from_us
    if from_us is not None and isinstance(query, Query) and isinstance(change.since_us, int):
        early = version_name(change.name, 0)
        if isinstance(change.backfill_us, int):
            copies = copied_steps(query, early, {stream.name: stream for stream in streams}, n)
            streams = (*streams, *copies.streams)
            version, first = _leaving_off(copies.query, early), copies.lowest.name
        else:
            version, first = _leaving_off(early_version(query, recall), early), early
        new.append(version)
        since |= {} if from_us == ALWAYS else {early: from_us}
        begins = from_us if isinstance(change.backfill_us, int) else recall
        replayed = {first: Recalled(-1, from_us) if begins is None else Recalled(n, begins)}
        effects = _with(
            effects, until_us=effects.until_us | {early: change.since_us},
            replaced=effects.replaced | {early: change.name},
            recalled=effects.recalled | replayed,
            whole_us=effects.whole_us | {change.name: whole if isinstance(whole := change.whole_us, int) else ALWAYS},
        )  # fmt: skip
    effects = _with(effects, leaving=leaving, apart=apart, added=effects.added | {change.name: n})
    return _with_queries(spec, effects, (*spec.all_queries, *new), streams, since)


def _dropped(spec: PondSpec, effects: ChangeEffects, n: int, change: Drop) -> PondSpec:
    gone = query_of(spec, change.name)
    versions = {name for name, of in effects.replaced.items() if of == change.name}
    versions.add(effects.shadows.get(change.name, ""))
    effects = _with(
        effects, paused=_without(effects.paused, change.name),
        leaving=(*effects.leaving, Leaving(StoredQuery.of(gone), n)),
        versions={name: version for name, version in effects.versions.items() if name != change.name},
        splits={name: count for name, count in effects.splits.items() if name != change.name},
        until_us={name: until for name, until in effects.until_us.items() if name not in versions},
        replaced={name: of for name, of in effects.replaced.items() if name not in versions},
        shadows={name: shadow for name, shadow in effects.shadows.items() if name != change.name},
        halted={name: why for name, why in effects.halted.items() if name != change.name},
        promoted=_without(effects.promoted, change.name),
        whole_us={name: whole for name, whole in effects.whole_us.items() if name != change.name},
        added={name: at for name, at in effects.added.items() if name != change.name},
    )  # fmt: skip
    remaining = tuple(query for query in spec.all_queries if query.name not in {change.name, *versions})
    streams = (*spec.streams, *(stream for stream in change.streams if stream not in spec.streams))
    return _with_queries(spec, effects, remaining, streams)


def not_answered(spec: PondSpec) -> frozenset[str]:
    """Queries that a change has quarantined, with their replaced versions, shadows and inner queries."""
    effects = spec.effects
    if not effects.halted:
        return frozenset()
    versions = {name for name, of in effects.replaced.items() if of in effects.halted}
    halted = {*effects.halted, *versions, *(effects.shadows.get(name, name) for name in effects.halted)}
    streams = {stream.name: stream for stream in spec.streams}
    needed = with_inner((query for query in spec.all_queries if query.name not in halted), streams)
    inner = {query.name for query in inner_queries(spec.streams)} - {query.name for query in needed}
    return frozenset(halted | inner)


def _altered(spec: PondSpec, effects: ChangeEffects, change: Alter) -> PondSpec:
    old, version = query_of(spec, change.name), spec.effects.versions.get(change.name, 1)
    new, since = [change.stored.query], dict(spec.since) | change.steps_us
    was_apart, apart = change.name in effects.apart, _without(effects.apart, change.name)
    if change.apart or (was_apart and isinstance(change.since_us, msgspec.UnsetType)):
        apart = (*apart, change.name)
    if not isinstance(change.since_us, msgspec.UnsetType):
        was = since.pop(change.name, None)
        since[change.name] = change.since_us
        whole = {name: start for name, start in effects.whole_us.items() if name != change.name}
        if not isinstance(change.until_us, msgspec.UnsetType):
            mine = version_name(change.name, version)
            new.append(_leaving_off(old, mine))
            since |= {} if was is None else {mine: was}
            apart = (*apart, mine) if was_apart else apart
            whole[change.name] = _whole_us(spec, change.name)
            effects = _with(
                effects, until_us=effects.until_us | {mine: change.until_us},
                replaced=effects.replaced | {mine: change.name},
            )  # fmt: skip
        effects = _with(effects, whole_us=whole)
    effects = _with(effects, versions=effects.versions | {change.name: version + 1}, apart=apart)
    others = tuple(query for query in spec.all_queries if query.name != change.name)
    streams = (*spec.streams, *(stream for stream in change.streams if stream not in spec.streams))
    return _with_queries(spec, effects, (*others, *new), streams, since)


def _shadowed(spec: PondSpec, effects: ChangeEffects, change: Shadow) -> PondSpec:
    """The spec with the query split at `since_us`, to separate rows of windows that both versions emit from others."""
    old, version, shadow = query_of(spec, change.name), effects.versions.get(change.name, 1), shadow_name(change.name)
    new, since = [old, _hidden(change.stored.query, shadow)], dict(spec.since) | change.steps_us
    apart = (*effects.apart, shadow) if change.apart else effects.apart
    if isinstance(change.since_us, msgspec.UnsetType):
        since |= {shadow: since[change.name]} if change.name in since else {}
        apart = (*apart, shadow) if change.name in effects.apart else apart
    else:
        mine, was = version_name(change.name, version), since.get(change.name)
        new.append(_leaving_off(old, mine))
        since |= {change.name: change.since_us, shadow: change.since_us} | ({} if was is None else {mine: was})
        apart = (*apart, mine) if change.name in effects.apart else apart
        effects = _with(
            effects, until_us=effects.until_us | {mine: change.since_us},
            replaced=effects.replaced | {mine: change.name},
            versions=effects.versions | {change.name: version + 1},
            splits=effects.splits | {change.name: effects.splits.get(change.name, 0) + 1},
            whole_us=effects.whole_us | {change.name: _whole_us(spec, change.name)},
        )  # fmt: skip
    effects = _with(effects, shadows=effects.shadows | {change.name: shadow}, apart=tuple(dict.fromkeys(apart)))
    others = tuple(query for query in spec.all_queries if query.name != change.name)
    streams = (*spec.streams, *(stream for stream in change.streams if stream not in spec.streams))
    return _with_queries(spec, effects, (*others, *new), streams, since)


def _swapped(spec: PondSpec, effects: ChangeEffects, change: Promote) -> PondSpec:
    name, shadow, since = change.name, shadow_name(change.name), dict(spec.since)
    others = {query.name: query for query in spec.all_queries}
    old, promoted_query = others.pop(name), others.pop(shadow)
    queries = [*others.values(), _in_front(promoted_query, old), _hidden(old, shadow)]
    apart = {name: shadow, shadow: name}
    promoted = _without(effects.promoted, name) if name in effects.promoted else (*effects.promoted, name)
    mine, was_apart = version_name(name, effects.versions.get(name, 1)), name in effects.apart
    effects = _with(
        effects, versions=effects.versions | {name: effects.versions.get(name, 1) + 1},
        promoted=tuple(sorted(promoted)),
        apart=tuple(apart.get(one, one) for one in effects.apart),
    )  # fmt: skip
    if not isinstance(change.since_us, msgspec.UnsetType):
        queries.append(_leaving_off(old, mine))
        was = since.get(name)
        since |= {name: change.since_us, shadow: change.since_us} | ({} if was is None else {mine: was})
        effects = _with(
            effects, until_us=effects.until_us | {mine: change.since_us}, replaced=effects.replaced | {mine: name},
            whole_us=effects.whole_us | {name: _whole_us(spec, name)},
            apart=(*effects.apart, mine) if was_apart else effects.apart,
        )  # fmt: skip
    return _with_queries(spec, effects, queries, since=since)


def _discarded(spec: PondSpec, effects: ChangeEffects, name: str) -> PondSpec:
    shadow = shadow_name(name)
    shadows = {one: of for one, of in effects.shadows.items() if one != name}
    effects = _with(effects, shadows=shadows, promoted=_without(effects.promoted, name))
    return _with_queries(spec, effects, tuple(query for query in spec.all_queries if query.name != shadow))


def _hidden(query: AnyQuery, name: str) -> AnyQuery:
    """The query as a version whose rows are only compared, without sinks."""
    made = msgspec.structs.replace(query, name=name, sink=Sink())
    return msgspec.structs.replace(made, serve=False, late=msgspec.UNSET) if isinstance(made, Query) else made


def _in_front(query: AnyQuery, old: AnyQuery) -> AnyQuery:
    """The version with the name and the sinks of `old`."""
    made = msgspec.structs.replace(query, name=old.name, sink=old.sink)
    if isinstance(made, Query) and isinstance(old, Query):
        return msgspec.structs.replace(made, serve=old.serve, late=old.late)
    return made


def shadow_name(name: str) -> str:
    """The name of a query's shadow in plans and records.

    >>> shadow_name("spend")
    'spend@shadow'
    """
    return f"{name}@shadow"


def _ended(spec: PondSpec, effects: ChangeEffects, version: str) -> PondSpec:
    effects = _with(
        effects, until_us={name: until for name, until in effects.until_us.items() if name != version},
        replaced={name: of for name, of in effects.replaced.items() if name != version},
    )  # fmt: skip
    return _with_queries(spec, effects, tuple(query for query in spec.all_queries if query.name != version))


def _leaving_off(old: AnyQuery, name: str) -> AnyQuery:
    """The replaced version that emits only its remaining windows; late events belong to the new version."""
    if isinstance(old, Query):
        return msgspec.structs.replace(old, name=name, late=msgspec.UNSET)
    return msgspec.structs.replace(old, name=name)


def version_name(name: str, version: int) -> str:
    """The name of a replaced version in plans and records.

    >>> version_name("spend", 2)
    'spend@2'
    """
    return f"{name}@{version}"


def complete_from(spec: PondSpec, name: str) -> int | None:
    """The earliest start of a complete window that any version emits under a query's name; None: all are complete."""
    whole = _whole_us(spec, name)
    return None if whole == ALWAYS else whole


def _whole_us(spec: PondSpec, name: str) -> int:
    return spec.effects.whole_us.get(name, spec.since.get(name, ALWAYS))


def _with_queries(
    spec: PondSpec, effects: ChangeEffects, queries: Iterable[AnyQuery], streams: tuple[Stream, ...] | None = None,
    since: Mapping[str, int] | None = None,
) -> PondSpec:  # fmt: skip
    """The spec with other queries. Streams that are read themselves stay, because Spark would read a stream that is
    added again from its beginning. Derived streams and rows of queries stay only if a query still uses them.
    """
    queries = tuple(queries)
    by_name = {stream.name: stream for stream in streams or spec.streams}
    computed = with_inner(queries, by_name)
    used = {stream for query in computed for stream in query.streams}
    used_times = event_times_of(query for query in computed if query.name not in effects.halted)
    times = spec.effects.times | event_times_of(spec.computed)
    times = {stream: time for stream, time in times.items() if stream not in used_times}
    kept_streams = tuple(stream for stream in streams or spec.streams if stream.name in used or is_read(stream))
    names, chosen = {query.name for query in computed}, spec.since if since is None else since
    made = PondSpec.of(kept_streams, queries, spec.instances, spec.buckets)
    return msgspec.structs.replace(
        made,
        since_us={name: start for name, start in chosen.items() if name in names} or msgspec.UNSET,
        owned=spec.owned,
        named=spec.named,
        changed=_with(
            effects, times={stream: time for stream, time in times.items() if stream in {s.name for s in kept_streams}},
            apart=tuple(name for name in effects.apart if name in names),
            recalled={name: n for name, n in effects.recalled.items() if name in names},
        ),
    )  # fmt: skip


def without_old_history(spec: PondSpec, lagging: tuple[Leaving, ...], current_n: int) -> PondSpec:
    """The spec without history that is no longer needed.

    Of dropped queries it keeps those whose sinks still have rows to receive, and of requested bucket maps the one by
    which state is stored (`current_n`) and newer ones.
    """
    if isinstance(spec.changed, msgspec.UnsetType):
        return spec
    scaled = tuple(one for one in spec.effects.scaled if one.n >= current_n or one is spec.effects.scaled[-1])
    return msgspec.structs.replace(spec, changed=_with(spec.effects, leaving=lagging, scaled=scaled))


def visible(spec: PondSpec) -> PondSpec:
    """The pond as its users see it: the current streams and queries, without remains of changes."""
    if isinstance(spec.changed, msgspec.UnsetType):
        return spec
    queries, by_name = current(spec), {stream.name: stream for stream in spec.streams}
    used = {stream for query in queries for stream in streams_of(query, by_name)}
    streams = tuple(stream for stream in spec.streams if stream.name in used)
    return PondSpec.of(streams, queries, spec.instances, spec.buckets)


def is_read(stream: Stream) -> bool:
    """Whether a stream is read from a source, and is neither derived nor the rows of a query."""
    return stream.derived is None and not stream.upstreams


def event_times_of(queries: Iterable[AnyQuery]) -> dict[str, str]:
    """The event-time column of each stream that the queries read."""
    event_times: dict[str, str] = {}
    for query in queries:
        if isinstance(query, Join):
            event_times |= {side.stream: side.event_time for side in query.sides.values()}
        elif isinstance(query, Query) and query.event_time:
            event_times[query.stream] = query.event_time
        elif isinstance(query, Selection) and query.timing is not None:
            event_times[query.stream] = query.timing[0]
    return event_times


def _with(effects: ChangeEffects, **fields: object) -> ChangeEffects:
    return msgspec.structs.replace(effects, **fields)


def _without(names: tuple[str, ...], name: str) -> tuple[str, ...]:
    return tuple(one for one in names if one != name)


def history(log: Log, manifest: Manifest) -> Iterator[Recorded]:
    """Every change of queries up to the manifest's record, the newest first; reads only the records of changes.

    Raises:
        CorruptError: one of these records is missing or does not decode.
    """
    n = in_force(manifest).effects.last if manifest.spec else -1
    while n >= 0:
        data = log.read(n)
        record = None if data is None else decode(data, log.describe(n)).record
        change = change_of(record.change) if isinstance(record, ChangeRecord) else None
        if record is None or change is None:
            raise CorruptError(f"Record {n} of the log should be a change of queries.", "Restore the log.")
        yield Recorded(n, record.at, change)
        n = change.before
