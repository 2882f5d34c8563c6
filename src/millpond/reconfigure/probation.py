"""Quarantines new queries that exhaust the JVM's memory in their first epoch, or with which it never ends.

A query is on probation if Spark evaluates a part of it and no committed epoch has done so yet. If the JVM runs out of
memory in an epoch with such queries, or was ended because the epoch stalled, a change quarantines them. So a restart
does not evaluate them again, and the other queries go on. If no query is on probation, the failure may have another
reason, so nothing is quarantined the first time. If the same Spark batch runs out of memory again, the query that was
added last is quarantined.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from functools import partial
from typing import TypeAlias

from millpond.errors import NoMemoryError, PlaceError, StalledError
from millpond.log.manifest import Manifest
from millpond.log.port import Folder, Log
from millpond.log.records import EpochRecord
from millpond.model.expressions import Foreign, walk
from millpond.model.selection import AnyQuery, expressions_of
from millpond.model.spec import PondSpec
from millpond.model.stream import Stream
from millpond.plan.upstream.steps import inner_of, streams_of
from millpond.reconfigure import validate
from millpond.reconfigure.catalog import history
from millpond.reconfigure.change_queue import Make
from millpond.reconfigure.changes import Add, Alter, Change, Discard, Drop, Shadow
from millpond.reconfigure.lifecycle import current

MEMORY = "memory.json"
"""File in the pond's folder: the batch in which the JVM ran out of memory while no query was on probation."""


Fatal: TypeAlias = NoMemoryError | StalledError


class Probation:
    """The queries of one pond that are on probation; each driver creates its own. `folder` opens the pond's."""

    def __init__(self, folder: Callable[[], Folder]) -> None:
        self._folder = folder
        self._new: set[str] = set()
        self._shadows: set[str] = set()

    def began(self, spec: PondSpec, log: Log, manifest: Manifest) -> None:
        """A driver starts: queries that were added or altered after the newest epoch are on probation."""
        if manifest.epoch_n < 0:
            self._new = {query.name for query in spec.all_queries}
            return
        for found in history(log, manifest):
            if found.n <= manifest.epoch_n:
                return
            self.changed(found.change)

    def changed(self, change: Change) -> None:
        """Update the queries on probation after a change."""
        if isinstance(change, Add | Alter):
            self._new.add(change.name)
        elif isinstance(change, Shadow):
            self._shadows.add(change.name)
        elif isinstance(change, Drop | Discard):
            self._shadows.discard(change.name)

    def committed(self, record: EpochRecord) -> None:
        """An epoch was committed: the probation of queries that read events in it ends."""
        if not (self._new or self._shadows):
            return
        read = {name for name, counts in record.counts.items() if counts.get("read", 0)}
        self._new -= read
        self._shadows -= read

    def suspects(self, spec: PondSpec) -> tuple[list[str], list[str]]:
        """The queries on probation, and the queries whose shadows are on probation."""
        by_spark = evaluated(spec)
        names = [name for name in by_spark if name in self._new]
        return names, [name for name in by_spark if name in self._shadows and name in spec.effects.shadows]

    def failed(self, error: Fatal, spec: PondSpec, batch: tuple[str, int]) -> tuple[Fatal, list[Make]]:
        """The error to report, and the changes that quarantine the responsible queries; `batch`: Spark's failed one."""
        by_spark = evaluated(spec)
        names, shadows = self.suspects(spec)
        if not (names or shadows):
            names = self._again(batch, sorted(by_spark, key=lambda name: spec.effects.added.get(name, -1)))
        if not (names or shadows):
            return error, []
        suspects = ", ".join([*names, *(f"the shadow of {name}" for name in shadows)])
        form = "takes fewer steps for an event."
        if isinstance(error, NoMemoryError):
            form = "makes less of an event, or with more memory (--memory)."
        found = type(error)(
            f"{error.what.rstrip('.')}; Spark was evaluating {suspects}.",
            f"Quarantined: {suspects}. The other queries continue when the pond is started again. Drop it, and add it "
            f"in a form that {form}",
        )
        reading = [one for name in names for one in readers(spec, name)]
        every = dict.fromkeys([*reading, *names])  # a query may read several of the others, or be one of them
        halts: list[Make] = [partial(validate.halt, name=name, why=str(found)) for name in every]
        return found, [*halts, *(partial(validate.discard, name=name) for name in shadows)]

    def ran_out_of_memory_in(self, batch: tuple[str, int]) -> bool:
        """Whether the JVM ran out of memory in this batch before, while no query was on probation."""
        with suppress(PlaceError, ValueError):
            known: object = json.loads(self._folder().read(MEMORY) or b"null")
            return known == [*batch]
        return False

    def _again(self, batch: tuple[str, int], names: list[str]) -> list[str]:
        """The query that was added last, if the same batch ran out of memory before; else none. Remembers the batch."""
        if self.ran_out_of_memory_in(batch):
            return names[-1:]
        with suppress(PlaceError):
            self._folder().replace(MEMORY, json.dumps(batch).encode())
        return []


def evaluated(spec: PondSpec) -> list[str]:
    """The active queries of which Spark evaluates a part."""
    names = [query.name for query in current(spec) if is_evaluated(query, spec.streams)]
    return [name for name in names if name not in spec.effects.halted]


def is_evaluated(query: AnyQuery, streams: Iterable[Stream]) -> bool:
    """Whether Spark evaluates a part of a query: an expression, or its derived stream."""
    by_name = {stream.name: stream for stream in streams}
    made = {stream.name for stream in by_name.values() if stream.derived is not None}
    steps = (*inner_of(query, by_name), query)
    nodes = (node for step in steps for expression in expressions_of(step) for node in walk(expression))
    return bool(made & {*streams_of(query, by_name)}) or any(isinstance(node, Foreign) for node in nodes)


def quarantine_changes(spec: PondSpec, versions: Collection[str], why: str) -> Iterator[Make]:
    """The changes that quarantine the queries of some versions and their readers; shadows are discarded."""
    shadows = {shadow: name for name, shadow in spec.effects.shadows.items()}
    ends = {spec.effects.replaced.get(name, name) for name in versions} - shadows.keys()
    ending = (query.name for query in current(spec) if query.name in ends and query.name not in spec.effects.halted)
    for name in dict.fromkeys(found for end in ending for found in (*readers(spec, end), end)):
        yield partial(validate.halt, name=name, why=why)
    for shadow, name in shadows.items():
        if shadow in versions and name not in ends:
            yield partial(validate.discard, name=name)


def readers(spec: PondSpec, name: str) -> Iterator[str]:
    """The queries that read the rows of `name`, directly or through others; readers come before what they read."""
    by_name = {stream.name: stream for stream in spec.streams}
    for query in current(spec):
        if query.name not in spec.effects.halted and any(
            name in by_name[stream].upstreams for stream in streams_of(query, by_name)
        ):
            yield from readers(spec, query.name)
            yield query.name
