"""The lasting effects of changes in the stored spec of a pond, other than its streams and queries."""

from __future__ import annotations

import msgspec

from millpond.model.expressions import Literal
from millpond.model.join import Join
from millpond.model.query import Query
from millpond.model.selection import AnyQuery, Selection


class StoredQuery(msgspec.Struct, frozen=True, omit_defaults=True):
    """A query of any kind in stored form: exactly one of the three fields is set."""

    windowed: Query | msgspec.UnsetType = msgspec.UNSET
    stateless: Selection | msgspec.UnsetType = msgspec.UNSET
    join: Join | msgspec.UnsetType = msgspec.UNSET

    @classmethod
    def of(cls, query: AnyQuery) -> StoredQuery:
        """Stores the query in the field of its kind."""
        if isinstance(query, Query):
            return cls(windowed=query)
        return cls(stateless=query) if isinstance(query, Selection) else cls(join=query)

    @property
    def query(self) -> AnyQuery:
        """The query.

        Raises:
            ValueError: no field is set.
        """
        for found in (self.windowed, self.stateless, self.join):
            if not isinstance(found, msgspec.UnsetType):
                return found
        raise ValueError("a stored query has none of its fields")


class Leaving(msgspec.Struct, frozen=True):
    """A query that was dropped by record `n`; its sinks only have rows left that were committed before."""

    stored: StoredQuery = msgspec.field(name="asked")
    n: int


class Scaled(msgspec.Struct, frozen=True):
    """The bucket map that record `n` requested: the number of instances, and runs as in `PondSpec.owned`."""

    n: int
    instances: int
    owned: tuple[tuple[int, int], ...]


class Feeding(msgspec.Struct, frozen=True):
    """The source of a parameter's values: the rows that a query emits for its newest window.

    Rows feed the parameter since record `n`, possibly those of another query at first. Values from before record `n`
    are no longer in force.
    """

    query: str
    column: str
    n: int


ALWAYS = -(1 << 63)
"""A start time before all events: all windows are answered, from the beginning of the pond."""


class Recalled(msgspec.Struct, frozen=True):
    """The epoch after record `n` replays events from `from_us` on; they were retained or are read by a backfill.

    If `n` is -1, no events are replayed.
    """

    n: int
    from_us: int


class ChangeEffects(msgspec.Struct, frozen=True, omit_defaults=True):
    """The lasting effects of all changes of a pond.

    - `last`: the record of the newest change of queries; -1: none.
    - `versions`: the numbers of the newest versions; the next replaced version of a query is called `query@number`.
    - `splits`: how many of these numbers of a query do not stand for a new text: a shadow began, and the windows from
      before it became a version of their own.
    - `paused`: queries whose rows are not emitted.
    - `times`: for streams whose event time no query uses any more, the column by which it is still observed.
    - `leaving`: dropped queries whose sinks may lag.
    - `until_us`: for replaced versions, a time; they only answer windows that start before it.
    - `replaced`: for replaced versions, the query to which they belong.
    - `parameters`: the values of live parameters, by name.
    - `shadows`: for queries that have a shadow, its name.
    - `promoted`: the queries with a shadow that is their previous version.
    - `recalled`: for early versions of an added query, the replayed events with which they start.
    - `feeds`: parameters that take their values from rows.
    - `whole_us`: for queries with other versions, which may have ended, the earliest start of a window that is
      complete under the query's name; `ALWAYS`: all are. For other queries it is `since_us` of the spec.
    - `halted`: quarantined queries that exceeded their budget or with which memory ran out, each with the reason; they
      stay registered but are not answered.
    - `signed`: groups that stay split by signature even if only few filters are left, because state keeps its form.
    - `apart`: queries that were added when their group had no room for another filter; they are in a second group,
      which is split by signature.
    - `scaled`: the bucket maps that were requested while the pond ran, because state may still be stored by an older
      one.
    - `places`: where served rows are stored, as in `Move`; empty: all in the pond's own store.
    - `shards`: the servers to which hash slots move, as in `Scale`; empty: none move.
    - `added`: for added queries, the record that added them; rows before it belong to another query of the same name.
    """

    last: int = -1
    versions: dict[str, int] = {}
    paused: tuple[str, ...] = ()
    times: dict[str, str] = {}
    leaving: tuple[Leaving, ...] = ()
    until_us: dict[str, int] = {}
    replaced: dict[str, str] = {}
    parameters: dict[str, Literal] = {}
    signed: tuple[str, ...] = ()
    apart: tuple[str, ...] = ()
    shadows: dict[str, str] = {}
    recalled: dict[str, Recalled] = {}
    scaled: tuple[Scaled, ...] = ()
    places: tuple[tuple[str, int], ...] = ()
    shards: tuple[tuple[str, int], ...] = ()
    feeds: dict[str, Feeding] = {}
    halted: dict[str, str] = {}
    promoted: tuple[str, ...] = ()
    whole_us: dict[str, int] = {}
    added: dict[str, int] = {}
    splits: dict[str, int] = {}
