"""What is given to the analysis of a query, and what it returns."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from millpond.errors import UnsupportedQuery
from millpond.model.endpoints import Sink
from millpond.model.join import Join
from millpond.model.selection import AnyQuery, Selection
from millpond.model.stream import Stream
from millpond.model.windows import Counted, Sliding
from millpond.plan.groups.distinct import Timing
from millpond.plan.options.late_sinks import check_late
from millpond.spark.analysis.derived_streams import Derived
from millpond.spark.analysis.properties import Mode, Repeats
from millpond.spark.catalyst.private_names import Catalyst
from millpond.spark.catalyst.spark_expressions import Projected


class Extraction(NamedTuple):
    """A query, the stream it reads, and the Catalyst expressions behind its `Foreign` parts, by key.

    `derived` says how the stream is computed, if it is a derived stream. `also` is the other stream of a join with its
    `Derived`. `timing` is the event time of a stateless query, if it has one.
    """

    query: AnyQuery
    stream: Stream
    foreigns: dict[str, Projected]
    derived: Derived | None = None
    also: tuple[tuple[Stream, Derived | None], ...] = ()
    timing: Timing | None = None


class Terms(NamedTuple):
    """The name, sink and other terms of a query; `window` overrides the window in the plan."""

    name: str
    window: Sliding | Counted | None = None
    sink: Sink = Sink()
    serve: bool = False
    text: str = ""


class OutputOptions(NamedTuple):
    """The sink of a query's late events, its output mode, and which of its events count as repeated."""

    late: Sink | None = None
    mode: Mode = Mode()
    repeats: Repeats = Repeats()

    def of(self, catalyst: Catalyst, query: AnyQuery, stream: Stream, timing: Timing | None = None) -> AnyQuery:
        """The query with these options; `timing`: the event time of a stateless query.

        Raises:
            QueryTypeError, UnsupportedQuery: the query cannot have them.
        """
        query = self.mode.of(catalyst, self.repeats.of(catalyst, query, stream, timing))
        if self.late is None:
            return query
        if isinstance(query, Selection):
            raise UnsupportedQuery(f"Nothing is late for {query.name}: it has no window.", "Leave out its late sink.")
        if isinstance(query, Join):
            raise UnsupportedQuery(f"Late events of the join {query.name} are counted only.", "Leave out 'late'.")
        query = msgspec.structs.replace(query, late=self.late)
        check_late(query, stream)
        return query


def leaving_of(late: Sink | None, mode: Mode | None, repeats: Repeats | None) -> OutputOptions:
    """The given options, with defaults for those that are None."""
    return OutputOptions(late, mode or Mode(), repeats or Repeats())
