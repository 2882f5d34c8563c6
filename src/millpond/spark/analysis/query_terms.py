"""What is given to the analysis of a query, and what it returns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec

from millpond.errors import UnsupportedQuery
from millpond.model.endpoints import Sink
from millpond.model.join import Join
from millpond.model.query import Query
from millpond.model.selection import AnyQuery, Selection, zone_of
from millpond.model.stream import Stream
from millpond.model.windows import Distinct, Written
from millpond.plan.groups.distinct import Timing
from millpond.plan.options.output_modes import BY_EVENT, FINAL, UPDATE, with_late_by, with_mode
from millpond.plan.upstream.late_sinks import check_late
from millpond.spark.analysis.derived_streams import Derived, texts_of
from millpond.spark.analysis.properties import Mode, Repeats
from millpond.spark.catalyst.private_names import Catalyst, JavaObject, id_of
from millpond.spark.catalyst.spark_expressions import Projected


class Extraction(NamedTuple):
    """A query, the stream it reads, and the Catalyst expressions behind its `Foreign` parts, by key.

    `derived` says how the stream is computed, if it is a derived stream. `also` is the other stream of a join with its
    `Derived`. `timing` is the event time of a stateless query, if it has one. `inner` are the inner queries, lowest
    first.
    """

    query: AnyQuery
    stream: Stream
    foreigns: dict[str, Projected]
    derived: Derived | None = None
    also: tuple[tuple[Stream, Derived | None], ...] = ()
    timing: Timing | None = None
    inner: tuple[Extraction, ...] = ()

    @property
    def streams(self) -> tuple[Stream, ...]:
        """The streams that the query reads."""
        return (self.stream, *(stream for stream, _ in self.also))

    @property
    def steps(self) -> tuple[AnyQuery, ...]:
        """The inner queries and the query."""
        return (*(one.query for one in self.inner), self.query)

    @property
    def rows_read(self) -> tuple[Stream, ...]:
        """The streams of the rows of the inner queries."""
        return tuple(stream for one in (*self.inner, self) for stream in one.streams if stream.steps)

    @property
    def reads_events(self) -> bool:
        """Whether a stream that the query reads is not made of rows of its inner queries."""
        return not all(stream.steps for stream in self.streams)

    @property
    def texts(self) -> Iterator[str]:
        """The texts of all that Spark evaluates for the derived streams of the query and of its inner queries."""
        for one in (*self.inner, self):
            for derived in (one.derived, *(also for _, also in one.also)):
                yield from () if derived is None else texts_of(derived)


class Terms(NamedTuple):
    """The name, sink and other terms of a query; `window` overrides the window in the plan.

    `columns`: of an inner query, the output columns that are read, by expression id, with their names. `ttl_us`: the
    time after which state is forgotten that would otherwise be kept indefinitely. `updates`: whether every change of a
    row is emitted.
    """

    name: str
    window: Written | None = None
    sink: Sink = Sink()
    serve: bool = False
    text: str = ""
    columns: Mapping[int, str] | None = None
    ttl_us: int | None = None
    updates: bool = False

    @property
    def ttl_cure(self) -> str:
        """How to declare the time after which state is forgotten, in the language of the query."""
        argument = "state_ttl='1 hour' in Pond.add"
        if not self.text:
            return argument
        return f"'state.ttl' = '1 hour' in TBLPROPERTIES; for a SELECT alone {argument}, or --state-ttl '1 hour'"

    def named(self, outputs: Sequence[JavaObject]) -> list[tuple[str, JavaObject]]:
        """The output columns with their names."""
        if self.columns is None:
            return [(str(output.name()), output) for output in outputs]
        return [(self.columns[id_of(output)], output) for output in outputs if id_of(output) in self.columns]


class OutputOptions(NamedTuple):
    """The sink of a query's late events, its output mode, and which of its events count as repeated.

    `fit` gives the query the columns that its sink declares. `zone` is the time zone of its text.
    """

    late: Sink | None = None
    mode: Mode = Mode()
    repeats: Repeats = Repeats()
    fit: Callable[[AnyQuery], AnyQuery] = lambda query: query
    zone: str | None = None

    def terms(self, terms: Terms, window: Written | None = None) -> Terms:
        """The terms of a query with these options; `window` overrides the window in the plan."""
        return terms._replace(window=window or terms.window, updates=self.mode.emit == UPDATE)

    def of(self, catalyst: Catalyst, query: AnyQuery, extraction: Extraction) -> AnyQuery:
        """The query of an extraction with these options.

        Raises:
            QueryTypeError, UnsupportedQuery: the query cannot have them.
        """
        if extraction.inner and self.mode.correct_for:
            raise UnsupportedQuery(
                f"{query.name} keeps state in several steps, and rows that its first step corrects could not be "
                "retracted from the next one.",
                "Leave out 'correct.for', and let WATERMARK wait longer.",
            )
        query, mode = self.fit(query), self.mode
        if extraction.reads_events:
            query = self.repeats.of(catalyst, query, extraction.stream, extraction.timing)
        else:
            mode = mode._replace(late_by=BY_EVENT)
        query = mode.of(catalyst, query)
        if self.zone is not None:
            query = msgspec.structs.replace(query, zone=self.zone)
        if self.late is None:
            return query
        if isinstance(query, Selection):
            raise UnsupportedQuery(f"Nothing is late for {query.name}: it has no window.", "Leave out its late sink.")
        if isinstance(query, Join):
            raise UnsupportedQuery(f"Late events of the join {query.name} are counted only.", "Leave out 'late'.")
        query = msgspec.structs.replace(query, late=self.late)
        check_late(query, {stream.name: stream for one in (*extraction.inner, extraction) for stream in one.streams})
        return query

    def of_lower(
        self, catalyst: Catalyst, name: str, restored: Callable[[AnyQuery], AnyQuery], lower: Extraction
    ) -> AnyQuery:
        """The query of a lower step of the query `name`, with the options for events if it reads events.

        `restored` gives it its live parameters.

        Raises:
            QueryTypeError, UnsupportedQuery: the step cannot have them.
        """
        query = restored(msgspec.structs.replace(lower.query, name=name))
        if not lower.reads_events:
            return query
        if isinstance(query, Query) and isinstance(query.window, Distinct):
            query = with_mode(query, FINAL, None)
        return with_late_by(self.repeats.of(catalyst, query, lower.stream, lower.timing), self.mode.late_by)


def leaving_of(
    late: Sink | None, mode: Mode | None, repeats: Repeats | None, zone: str | None = None
) -> OutputOptions:  # fmt: skip
    """The given options, with defaults for those that are None."""
    return OutputOptions(late, mode or Mode(), repeats or Repeats(), zone=zone)


def options_again(query: AnyQuery) -> OutputOptions:
    """The options with which the recorded text of a query is analysed again: those that decide what Spark evaluates."""
    updating = isinstance(query, Query) and query.updating
    return OutputOptions(mode=Mode(UPDATE) if updating else Mode(), zone=zone_of(query))
