"""What changes of a pond leave in its stored spec besides streams and queries."""

from __future__ import annotations

import msgspec

from millpond.model.expressions import Literal
from millpond.model.join import Join
from millpond.model.query import Query
from millpond.model.selection import AnyQuery, Selection


class Asked(msgspec.Struct, frozen=True, omit_defaults=True):
    """A query of any kind, stored: exactly one of the three is there."""

    windowed: Query | msgspec.UnsetType = msgspec.UNSET
    stateless: Selection | msgspec.UnsetType = msgspec.UNSET
    join: Join | msgspec.UnsetType = msgspec.UNSET

    @classmethod
    def of(cls, query: AnyQuery) -> Asked:
        """The query in its place."""
        if isinstance(query, Query):
            return cls(windowed=query)
        return cls(stateless=query) if isinstance(query, Selection) else cls(join=query)

    @property
    def query(self) -> AnyQuery:
        """The query.

        Raises:
            ValueError: there is none.
        """
        for found in (self.windowed, self.stateless, self.join):
            if not isinstance(found, msgspec.UnsetType):
                return found
        raise ValueError("nothing is asked")


class Leaving(msgspec.Struct, frozen=True):
    """A query that was dropped by record `n`, so its sinks have nothing to come but what was committed before."""

    asked: Asked
    n: int


class Scaled(msgspec.Struct, frozen=True):
    """What record `n` asked: so many instances, and which of them owns which buckets (runs as in the spec)."""

    n: int
    instances: int
    owned: tuple[tuple[int, int], ...]


class Feeding(msgspec.Struct, frozen=True):
    """Where a parameter takes its values from: the rows that a query tells of its newest window.

    Values of before record `n` are not in force: since then rows feed it, be it those of another query before.
    """

    query: str
    column: str
    n: int


ALWAYS = -(1 << 63)
"""The time that windows start after which are answered from the beginning of the pond."""


class Recalled(msgspec.Struct, frozen=True):
    """Events from `from_us` on, retained or brought by a backfill, are read again by the epoch after record `n`; -1:
    none are.
    """

    n: int
    from_us: int


class Changed(msgspec.Struct, frozen=True, omit_defaults=True):
    """What changes left behind.

    `last`: the record of the newest change of queries; -1: none. `versions`: of queries that were altered. `paused`:
    queries whose rows do not leave. `times`: by which column the time of a stream is still observed that no query
    tells it by. `leaving`: dropped queries whose sinks may lag. `until_us`: for versions that were replaced, the time
    at and after which no window of theirs begins; `replaced`: whose version it was. `shadows`: for queries that are
    tried in another version, what that one is called; `promoted`: of these, those whose shadow is the version before.
    `parameters`: values by name. `recalled`: for versions of an added query that tell windows before its own, the
    retained events that they begin with. `feeds`: parameters that take their values from rows.

    `whole_us`: the earliest start of a window that is told whole under the name of a query, where versions that may
    have ended told windows before those of the one in force; `ALWAYS`: all are. Of other queries `since_us` of the spec
    says it. `halted`: queries that cost more than their budget, or with which memory ended, each with the reason; they
    are asked, but not answered.

    State is kept in the form it has: `signed` are groups that stay split by signature, however few filters are left;
    `apart` queries that came when a group had no room for one more filter, and are in a group so split beside it.
    `scaled`: the instances that were asked for while it ran, for state may lie by an older one. `places`: where served
    rows are kept, as in `Move`; (): all in the pond's own store. `added`: for queries that were added, the record that
    did it: rows before it are those of another query of that name.
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
    feeds: dict[str, Feeding] = {}
    halted: dict[str, str] = {}
    promoted: tuple[str, ...] = ()
    whole_us: dict[str, int] = {}
    added: dict[str, int] = {}
