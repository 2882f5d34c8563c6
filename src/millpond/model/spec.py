"""Encodes the spec of a pond to and from JSON; only this module knows the stored form of the model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from millpond.errors import CorruptError
from millpond.model.change_history import ChangeEffects
from millpond.model.join import Join
from millpond.model.query import Query
from millpond.model.selection import AnyQuery, Selection
from millpond.model.stream import Relation, Stream, inner_queries, named_relations, source_names

BUCKETS = 1024
"""The default number of buckets of a pond."""


class PondSpec(msgspec.Struct, frozen=True):
    """Streams, queries, instances and buckets. A claim record contains the spec, so that a restart can compare it.

    `queries` have windows, `stateless` have none, `joins` are over two streams; the latter two are left out of the JSON
    if there are none. `since_us`: for queries that were added after their stream had been read, the earliest start of
    their windows. `owned`: the owners of buckets as runs (instance, number of buckets) in the order of buckets; left
    out if each instance owns an equal, contiguous range. `changed`: the lasting effects of changes other than streams
    and queries; left out if the pond was never changed. `named`: what the texts of queries name besides `streams`; left
    out if there is nothing.
    """

    streams: tuple[Stream, ...]
    queries: tuple[Query, ...]
    instances: int
    buckets: int = BUCKETS
    stateless: tuple[Selection, ...] | msgspec.UnsetType = msgspec.UNSET
    since_us: dict[str, int] | msgspec.UnsetType = msgspec.UNSET
    joins: tuple[Join, ...] | msgspec.UnsetType = msgspec.UNSET
    owned: tuple[tuple[int, int], ...] | msgspec.UnsetType = msgspec.UNSET
    changed: ChangeEffects | msgspec.UnsetType = msgspec.UNSET
    named: tuple[Relation, ...] | msgspec.UnsetType = msgspec.UNSET

    @classmethod
    def of(
        cls, streams: tuple[Stream, ...], registered: Iterable[AnyQuery], instances: int, buckets: int = BUCKETS
    ) -> PondSpec:  # fmt: skip
        """The spec of queries of all kinds, in the order of their names."""
        ordered = sorted(registered, key=lambda query: query.name)
        queries = tuple(query for query in ordered if isinstance(query, Query))
        stateless = tuple(query for query in ordered if isinstance(query, Selection))
        joins = tuple(query for query in ordered if isinstance(query, Join))
        return cls(
            streams, queries, instances, buckets, stateless or msgspec.UNSET, joins=joins or msgspec.UNSET
        )  # fmt: skip

    @property
    def since(self) -> dict[str, int]:
        """`since_us`; queries that exist from the beginning have no entry."""
        return {} if isinstance(self.since_us, msgspec.UnsetType) else self.since_us

    @property
    def effects(self) -> ChangeEffects:
        """`changed`; an empty value if the pond was never changed."""
        return ChangeEffects() if isinstance(self.changed, msgspec.UnsetType) else self.changed

    @property
    def relations(self) -> tuple[Relation, ...]:
        """`named`; empty if the texts of queries name only `streams`."""
        return () if isinstance(self.named, msgspec.UnsetType) else self.named

    @property
    def sources(self) -> tuple[Stream, ...]:
        """The declared streams that are read, on their own or as parts of derived streams, as far as they are stored.

        A stream that only DataFrames derive others from is not stored.
        """
        parts = {relation.name: relation.stream for relation in self.relations}
        known = parts | {stream.name: stream for stream in self.streams}
        found = (known.get(name) for name in source_names(self.streams))
        return tuple(stream for stream in found if isinstance(stream, Stream))

    @property
    def all_queries(self) -> tuple[AnyQuery, ...]:
        """All queries; those with windows come first."""
        stateless = () if isinstance(self.stateless, msgspec.UnsetType) else self.stateless
        return (*self.queries, *stateless, *(() if isinstance(self.joins, msgspec.UnsetType) else self.joins))

    @property
    def computed(self) -> tuple[AnyQuery, ...]:
        """All queries and their inner queries."""
        return (*inner_queries(self.streams), *self.all_queries)

    @property
    def meaning(self) -> PondSpec:
        """The spec without what does not change results: texts, budgets, read options of streams, owners of buckets."""
        plain = [msgspec.structs.replace(query, text="", budget=msgspec.UNSET) for query in self.all_queries]
        streams = tuple(sorted((stream.meaning for stream in self.streams), key=lambda stream: stream.name))
        return PondSpec.of(streams, plain, self.instances, self.buckets)


def to_json(spec: PondSpec) -> str:
    """Canonical text: equal specs give equal text."""
    return msgspec.json.encode(spec, order="deterministic").decode()


def from_json(text: str) -> PondSpec:
    """The spec that `to_json` wrote.

    Raises:
        CorruptError: the text is not such a spec.
    """
    try:
        return msgspec.json.decode(text, type=PondSpec)
    except msgspec.MsgspecError as error:
        raise CorruptError(f"The stored spec of the pond does not decode: {error}.", "Restore the log.") from error


def relations_of(
    queries: Sequence[AnyQuery], streams: Mapping[str, Stream], others: Mapping[str, Relation]
) -> tuple[Relation, ...]:
    """What the texts of queries name of `streams` that the queries do not read themselves, and of views and tables."""
    read = {name for query in queries for name in query.streams}
    known = {name: Relation(name, stream=stream) for name, stream in streams.items() if name not in read}
    return named_relations((query.text for query in queries), {**known, **others})
