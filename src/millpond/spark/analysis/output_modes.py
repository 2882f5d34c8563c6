"""Applies the output options of a query: output mode, late sink, and which events count as repeated."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from millpond.errors import UnsupportedQuery
from millpond.model.endpoints import Sink
from millpond.model.join import Join
from millpond.model.selection import AnyQuery, Selection
from millpond.model.stream import Stream
from millpond.plan.options.late_sinks import check_late
from millpond.spark.analysis.properties import Mode, Repeats
from millpond.spark.catalyst.private_names import Catalyst


class OutputOptions(NamedTuple):
    """The sink of a query's late events, its output mode, and which of its events count as repeated."""

    late: Sink | None = None
    mode: Mode = Mode()
    repeats: Repeats = Repeats()

    def of(self, catalyst: Catalyst, query: AnyQuery, stream: Stream) -> AnyQuery:
        """The query with these options.

        Raises:
            QueryTypeError, UnsupportedQuery: the query cannot have them.
        """
        query = self.mode.of(catalyst, self.repeats.of(catalyst, query, stream))
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
