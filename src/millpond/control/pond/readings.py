"""Prepares what the driver reads: the frame over all streams, with the columns that the queries in force need."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from millpond.control.pond.declare import Declarations
from millpond.model.spec import PondSpec
from millpond.reconfigure.catalog import is_read, not_answered
from millpond.spark.driver.driver import Driver
from millpond.spark.driver.replace_query import Reading
from millpond.spark.reading.arrow_files import readers_of
from millpond.spark.reading.file_source import list_in_driver
from millpond.spark.reading.read_frame import WantedStream, bases_of, read
from millpond.spark.reading.text_streams import texts_of
from millpond.spark.session.session import Session
from millpond.spark.sources.count_malformed_rows import MalformedRows


class _Arguments(NamedTuple):
    """The arguments from which a reading is made."""

    wanted: tuple[WantedStream, ...]
    limits: Mapping[str, int]
    tick: bool

    def fit(self, wanted: _Arguments) -> bool:
        """Whether the reading made from these suits others: only the limits may differ, as they can change later."""
        return self.limits.keys() == wanted.limits.keys() and self._replace(limits=wanted.limits) == wanted


class Readings:
    """Makes the readings of one pond; `session` is Spark's session only for reading.

    `malformed` is called with each joined table that leaves out malformed rows.
    """

    def __init__(
        self, session: Session, declarations: Declarations, malformed: Callable[[MalformedRows], None]
    ) -> None:
        self.session, self._front, self._malformed = session, declarations.front, malformed
        self._newest: _Arguments | None = None
        self._ahead: tuple[_Arguments, Reading] | None = None

    def read(self, spec: PondSpec, limits: Mapping[str, int], *, tick: bool) -> Reading:
        """The reading for the queries in force; called again when a change needs more.

        Raises:
            QueryTypeError, SourceError, SetupError: as `spark.reading.read_frame.read`.
        """
        with self._front.lock:
            wanted = _Arguments(self._wanted(spec), limits, tick)
            ahead, self._newest, self._ahead = self._ahead, wanted, None
            return ahead[1] if ahead is not None and ahead[0].fit(wanted) else self._made(wanted)

    def read_ahead(self, spec: PondSpec, driver: Driver) -> None:
        """Prepare the result of the next `read`, which is used if `spec` is in force then and nothing else changed.

        Raises:
            QueryTypeError, SourceError, SetupError: as `read`.
        """
        with self._front.lock:
            if self._newest is not None:
                wanted = self._newest._replace(wanted=self._wanted(spec))
                self._ahead = wanted, self._made(wanted)
                if not driver.in_epoch:  # within an epoch, the next one gets it
                    driver.offer(self._ahead[1])

    def _wanted(self, spec: PondSpec) -> tuple[WantedStream, ...]:
        kept = [stream.name for stream in spec.streams if is_read(stream)]
        # Spark reads nothing for queries over the rows of copied steps, which the front end does not know
        rows = {stream.name for stream in spec.streams if stream.upstreams} - {*self._front.streams}
        queries = [query for query in spec.computed if rows.isdisjoint(query.streams)]
        return self._front.wanted(queries, kept, spec.effects.times, not_answered(spec))

    def _made(self, arguments: _Arguments) -> Reading:
        wanted, limits, tick = arguments
        list_in_driver(self.session, (base.source for want in wanted for base, _ in bases_of(want)))
        # the tick has no known end, so Spark reads a bounded input as one batch
        texts = texts_of(self.session, wanted)
        frame, layout = read(self.session, wanted, tick=tick, limits=limits, texts=texts)
        readers = readers_of(self.session, wanted, layout)
        tables = self._front.refreshed_tables(wanted, self._front.foreigns.values(), self._malformed)
        return Reading(frame, layout, tables, limits, readers)
