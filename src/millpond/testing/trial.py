"""A trial runs the queries of a pond in a unit test, in milliseconds and without Spark; the test sets event time.

It uses the same gather, fold and log as a pond (see `local_pond`), so its results are those of a pond.
"""

from __future__ import annotations

import os
import random
import re
import shutil
import tempfile
import weakref
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec
import pyarrow as pa

from millpond.errors import OverflowedError, QueryTypeError, UnsupportedQuery
from millpond.followers.record_rows import RowsReader
from millpond.followers.sinks.in_process import MemorySink
from millpond.local_path import local_path
from millpond.log.follower import Follower
from millpond.model.endpoints import Sink
from millpond.model.join import Join
from millpond.model.query import Query
from millpond.model.selection import AnyQuery, Selection, is_inner
from millpond.model.stream import Field, Stream
from millpond.model.types import FARTHEST_US
from millpond.plan.groups.build import build_plan, needed_columns, needed_foreign
from millpond.plan.upstream.late_sinks import LATE_EPOCH, check_late, late_columns_read
from millpond.plan.upstream.rows_as_stream import before
from millpond.plan.upstream.steps import inner_of, with_inner
from millpond.runtime.gather.lateness import ANY_PARTITION
from millpond.runtime.rows.window_rows import output_schema
from millpond.runtime.task.counters import FATES
from millpond.testing.compare import Tolerance, difference
from millpond.testing.compiled_file import load_compiled
from millpond.testing.local_pond import Ledger, LocalPond, read_section
from millpond.testing.read_rows import Misfit, Rows, Wanted, events_table, time_us
from millpond.testing.row_values import as_written, expected_value, listed, plain_rows

_BUCKETS = 64


class Trial:
    """Runs the queries of a pond file on a temporary pond, which is deleted after the test.

    If `file` is new or has changed, Spark compiles it in another process; afterwards it is read without Spark (see
    `load_compiled`). `recompile=False` never starts Spark. A `.json` file that `Pond.compile` wrote is used as it is.
    `only`: the name of one query, or names of several, instead of all; their upstream queries are included.
    `instances`: the number of folds. When `feed` or `advance` returns, queries over queries have processed all rows.
    Event time depends only on `feed` and `advance`, not on a clock, so `max_ahead` and `idle_after` of streams have no
    effect.

    Raises:
        QueryError: a statement of the file is wrong.
        StaleError: the file must be compiled, and this is not possible here.
    """

    def __init__(
        self, file: str | os.PathLike[str], *, only: Collection[str] | None = None, instances: int = 1,
        recompile: bool = True,
    ) -> None:  # fmt: skip
        spec = load_compiled(local_path(file, "The pond file"), recompile=recompile).spec
        self._set_up(spec.streams, spec.all_queries, only, instances)

    @classmethod
    def of(
        cls, streams: Iterable[Stream], queries: Iterable[AnyQuery], *, only: Collection[str] | None = None,
        instances: int = 1,
    ) -> Trial:  # fmt: skip
        """A trial of existing queries: `Trial.of(pond.streams, pond.queries)`."""
        made = cls.__new__(cls)
        made._set_up(streams, queries, only, instances)
        return made

    def _set_up(
        self, streams: Iterable[Stream], queries: Iterable[AnyQuery], only: Collection[str] | None, instances: int
    ) -> None:
        every = {query.name: query for query in queries}
        only = [only] if isinstance(only, str) else only
        if strange := sorted({*(only or ())} - every.keys()):
            raise QueryTypeError(f"There is no query {strange[0]}.", f"There are {', '.join(sorted(every))}.")
        self._streams = {stream.name: stream for stream in streams}
        named = {*every} if only is None else {*only}
        every = {query.name: query for query in with_inner(every.values(), self._streams)}
        named |= {step.name for name in named for step in inner_of(every[name], self._streams)}
        reading = {stream for query in named for stream in every[query].streams}
        named |= {name for stream in reading for name in before(stream, self._streams, every)}
        chosen = [query for query in every.values() if query.name in named]
        if not chosen:
            raise QueryTypeError("A trial has no queries.", "Name some.")
        own = (query for query in chosen if not is_inner(query.name))  # streams contain the inner queries
        self._queries = {query.name: _remembered(query, self._streams) for query in own}
        self._read = {name: self._streams[name] for query in chosen for name in query.streams}
        self._instances = instances
        steps = [query for query in chosen if is_inner(query.name)]
        self._wanted = {name: _wanted(name, [*steps, *self._queries.values()], self._streams) for name in self._read}
        memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
        self._folder = Path(tempfile.mkdtemp(prefix="millpond-trial-", dir=memory))
        self._remove = weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
        read = partial(read_section, self._folder)
        rows, late = (RowsReader(lambda _n, *of: read(*of), kind) for kind in ("rows", "late"))
        self._rows = {name: MemorySink(name, rows) for name in self._queries}
        reader = [name for name, query in self._queries.items() if query.late_sink is not None]
        self._late = {name: MemorySink(name, late, late=True) for name in reader}
        self._emitted: dict[str, int] = {}
        self._ledger = Ledger()
        self._drivers = 0
        self._pond: LocalPond | None = self._driver()

    def _driver(self) -> LocalPond:
        self._drivers += 1
        followers: list[Follower] = [*self._rows.values(), *self._late.values(), self._ledger]
        return LocalPond(
            self._folder, list(self._read.values()), list(self._queries.values()), self._instances, _BUCKETS,
            followers, f"driver{self._drivers}",
        )  # fmt: skip

    @property
    def streams(self) -> Mapping[str, Stream]:
        """The streams that the queries read, by name."""
        return MappingProxyType({name: stream for name, stream in self._read.items() if not stream.steps})

    @property
    def queries(self) -> Mapping[str, AnyQuery]:
        """The queries by name."""
        return MappingProxyType(self._queries)

    def feed(self, stream: str, rows: Rows, *, cut: int | None = None) -> None:
        """Feeds events to a stream as one epoch; with `cut` (a seed), as several epochs that are cut at random.

        Every column that a query reads must be present, None for NULL; others may be left out.

        Raises:
            QueryTypeError: there is no such stream, or the rows do not fit it; nothing was fed.
            UnsupportedQuery: a query reads an expression that only Spark evaluates, and its values are missing.
        """
        table = self._table(stream, rows)
        if cut is None:
            self._at_work().epoch({stream: [table]})
        else:
            dice = random.Random(cut)
            for piece in _cut(dice, table):
                self._at_work().epoch({stream: _dealt(dice, piece, self._read[stream])})
        self._at_work().settle()

    def advance(self, stream: str, to: Any, *, partition: str | None = None) -> None:
        """Advances the event time of a stream to `to`, like an event of that time that no query takes; never backwards.

        `to`: text (`2026-01-01 10:00:00`, UTC unless it names a zone), a datetime, or microseconds since 1970. If the
        stream has an order, all source partitions known by now advance, or only `partition`.

        Raises:
            QueryTypeError: there is no such stream, `to` is not a time, or no source partition is known yet.
        """
        declared = self._known(stream)
        try:
            moment = time_us(to)
        except Misfit as error:
            raise QueryTypeError(f"{stream} cannot be moved to {to!r}.", f"Give {error}.") from None
        if abs(moment) > FARTHEST_US:
            raise QueryTypeError(f"{to!r} is too far from 1970.", "Give a time within 146,000 years.")
        if declared.order is None:
            names = {ANY_PARTITION}
        elif partition is not None:
            names = {partition}
        else:
            seen = self._at_work().manifest.max_time.get(stream, {})
            names = {*seen, *declared.order.partitions} - {ANY_PARTITION}
        if not names:
            raise QueryTypeError(f"No source partition of {stream} is known yet.", "Feed events, or name one.")
        self._at_work().advance(stream, dict.fromkeys(names, moment))
        self._at_work().settle()

    def restart(self) -> None:
        """Lets a second driver take over from the first, as after a crash; later results do not depend on it."""
        self._at_work()
        self._pond = self._driver()

    def drain(self) -> None:
        """Closes every window that is still open; later events of these windows will be late."""
        self._at_work().drain()

    def rows(self, query: str) -> list[dict[str, Any]]:
        """The rows of a query since the previous call, sorted by their columns from left to right, NULL first.

        Times are datetimes in UTC, windows `{"start": …, "end": …}`, decimals `Decimal`.

        Raises:
            QueryTypeError: there is no such query.
            OverflowedError: the query is quarantined, because a result overflowed its type or was divided by zero.
        """
        return listed(self._since(self._rows, query))

    def expect(
        self, query: str, rows: Iterable[Mapping[str, Any]], *,
        tolerances: Mapping[str, float | Tolerance] | None = None,
    ) -> None:  # fmt: skip
        """Fails unless `rows` are the query's rows since the previous call of `rows` or `expect`, in any order.

        Values may be written as for `feed`: times as text, whole doubles as ints; NaN equals NaN. `tolerances`: a
        relative tolerance (a number) or a `Tolerance` by column.

        Raises:
            AssertionError: the rows differ; the message states how.
            QueryTypeError: there is no such query, or a value is not of its column's type.
            OverflowedError: as `rows`.
        """
        found = plain_rows(self._since(self._rows, query))
        types = {item.name: item.expression.type for item in self._queries[query].output}
        wanted = [
            {name: expected_value(query, name, types.get(name), value) for name, value in row.items()} for row in rows
        ]  # fmt: skip
        if difference(wanted, found, tolerances=tolerances) is not None:
            shown = [as_written(each, types) for each in (wanted, found)]
            raise AssertionError(f"{query}: {difference(*shown, tolerances=tolerances)}")

    def table(self, query: str) -> pa.Table:
        """All rows of a query up to now as Arrow, in the types of its sinks; `rows` is not affected.

        Raises:
            QueryTypeError, OverflowedError: as `rows`.
        """
        made: pa.Table = self._sink(self._rows, query).table()
        return made if made.num_columns else output_schema(self._queries[query]).empty_table()

    def late(self, query: str) -> list[dict[str, Any]]:
        """Late events that pass the query's WHERE, since the previous call.

        They have the columns that the query reads, and `_watermark`, the watermark for which the event was late.

        Raises:
            QueryTypeError: there is no such query.
            UnsupportedQuery: nothing can be late for the query, it is a join, or late rows cannot have a column's type.
        """
        registered = self._queries.get(query)
        if isinstance(registered, Selection):
            raise UnsupportedQuery(f"Nothing is late for {query}, which has no window.", "Use `rows`.")
        if isinstance(registered, Join):
            raise UnsupportedQuery(f"Late events of the join {query} are counted only.", "Use `fates`.")
        if registered is not None and query not in self._late:
            check_late(_with_late_rows(registered), self._streams)
        return [
            {name: value for name, value in row.items() if name != LATE_EPOCH}
            for row in listed(self._since(self._late, query))
        ]

    def fates(self, query: str) -> dict[str, int]:
        """The fates of all events up to now for a query: `read` = `applied` + `late` + `dead` + `filtered`.

        Raises:
            QueryTypeError: there is no such query.
        """
        self._check(query)
        found = self._ledger.counts.get(query, {})
        return {fate: found.get(fate, 0) for fate in FATES}

    def assert_same_for_any_cut(self, events: Mapping[str, Rows], *, seed: int = 0, cuts: int = 8) -> None:
        """Fails unless the results for these events are independent of how the events are processed.

        Each of `cuts` new trials cuts the events at random into epochs, source partitions and instances, with drivers
        that take over at random; this trial is not affected. If a stream states no order, an event may be late in one
        cut and not in another; that fails too, with an explanation.

        Raises:
            AssertionError: two results differ; the message states how, and for which seed.
            QueryTypeError, UnsupportedQuery: as `feed`. OverflowedError: as `rows`.
        """
        changing = [name for name, query in self._queries.items() if isinstance(query, Query) and query.changing]
        if changing:
            raise UnsupportedQuery(
                f"{changing[0]} emits a row for each epoch that changes it, so its rows depend on the cut.",
                "Try its final form: leave out 'emit' and 'correct.for'.",
            )
        tables = {stream: self._table(stream, rows) for stream, rows in events.items()}
        with self._twin(1) as whole:
            whole._at_work().epoch({stream: [table] for stream, table in tables.items()})
            whole.drain()
            for number in range(seed, seed + cuts):
                dice = random.Random(number)
                with self._twin(dice.randint(1, 4)) as twin:
                    epochs = twin._feed_cut(dice, tables)
                    twin.drain()
                    how = f"when cut into {epochs} epochs on {twin._instances} instances (seed {number})"
                    _assert_alike(whole, twin, how)

    def _feed_cut(self, dice: random.Random, tables: Mapping[str, pa.Table]) -> int:
        """Feeds all events in pieces, with a takeover after some of them; returns the number of epochs."""
        pieces = {stream: _cut(dice, table) for stream, table in tables.items()}
        epochs = max(map(len, pieces.values()), default=0)
        for i in range(epochs):
            some = {stream: of[i] for stream, of in pieces.items() if i < len(of)}
            self._at_work().epoch({name: _dealt(dice, piece, self._read[name]) for name, piece in some.items()})
            if dice.randint(0, 3) == 0:
                self.restart()
        return epochs

    def _twin(self, instances: int) -> Trial:
        return Trial.of(self._streams.values(), self._queries.values(), instances=instances)

    def close(self) -> None:
        """Deletes the pond and its folder."""
        self._pond = None
        self._remove()

    def __enter__(self) -> Trial:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def _at_work(self) -> LocalPond:
        if self._pond is None:
            raise QueryTypeError("The trial is closed.", "Use it within its `with`.")
        return self._pond

    def _table(self, stream: str, rows: Rows) -> pa.Table:
        declared = self._known(stream)
        wanted = self._wanted[stream]
        table = events_table(stream, [field.name for field in declared.columns], wanted, rows)
        for place, column in enumerate(wanted):
            if column.foreign:
                inner = table.column(place).combine_chunks()
                table = table.set_column(place, column.key, pa.StructArray.from_arrays([inner], ["v"]))
        return table

    def _known(self, stream: str) -> Stream:
        if stream in self._read:
            if self._read[stream].upstreams:
                raise QueryTypeError(f"The events of {stream} are the rows of a query.", "Feed what that reads.")
            return self._read[stream]
        made = [other for other in self._read.values() if other.derived and stream in other.derived.reads]
        if made and made[0].derived:
            columns = ", ".join(column.name for column in self._wanted[made[0].name])
            raise UnsupportedQuery(
                f"Spark makes {made[0].name} of {stream} ({made[0].derived.text}), and the queries read only that.",
                f"Feed {made[0].name}: {columns}.",
            )
        raise QueryTypeError(f"No query reads a stream {stream}.", f"They read {', '.join(sorted(self._read))}.")

    def _check(self, query: str) -> None:
        if query not in self._queries:
            raise QueryTypeError(f"There is no query {query}.", f"There are {', '.join(sorted(self._queries))}.")

    def _sink(self, sinks: Mapping[str, MemorySink], query: str) -> MemorySink:
        self._check(query)
        reason = self._at_work().manifest.quarantined.get(query)
        if reason and sinks is self._rows:
            raise OverflowedError(f"{query} is quarantined: {reason}", "Widen the type, or guard the expression.")
        return sinks[query]

    def _since(self, sinks: Mapping[str, MemorySink], query: str) -> Sequence[pa.Table]:
        sink = self._sink(sinks, query)
        epochs = [table for _, table in sink.epochs()]
        emitted, self._emitted[sink.name] = self._emitted.get(sink.name, 0), len(epochs)
        return epochs[emitted:]


def _remembered(query: AnyQuery, streams: Mapping[str, Stream]) -> AnyQuery:
    """The query with memory as the sink of its rows and, if possible, of its late rows."""
    if isinstance(query, Selection | Join):
        return msgspec.structs.replace(query, sink=Sink("memory"))
    query = msgspec.structs.replace(query, sink=Sink("memory"), serve=False, late=msgspec.UNSET)
    reader = _with_late_rows(query)
    try:
        check_late(reader, streams)
    except UnsupportedQuery:
        return query
    return reader


def _with_late_rows(query: Query) -> Query:
    return msgspec.structs.replace(query, late=Sink("memory"))


def _wanted(name: str, queries: Sequence[AnyQuery], streams: Mapping[str, Stream]) -> tuple[Wanted, ...]:
    """The columns that events of a stream must have, and the queries that read each of them."""
    stream = streams[name]
    fields = {field.name: field for field in stream.columns}
    readers: dict[Wanted, list[str]] = {}
    for query in queries:
        late = late_columns_read([query], streams).get(name, set())
        if name not in query.streams and not late:
            continue
        plan = build_plan([query])
        foreigns = needed_foreign(plan, name)
        names = {*needed_columns(plan, name)} - {foreign.name for foreign in foreigns} | late
        names.update(stream.order.columns if stream.order else ())
        columns = [_plain(fields[name]) for name in sorted(names)]
        columns += [Wanted(foreign.sql, foreign.type, foreign.name, True) for foreign in foreigns]
        for column in columns:
            readers.setdefault(column, []).append(query.name)
    return tuple(column._replace(queries=tuple(names)) for column, names in readers.items())


def _plain(field: Field) -> Wanted:
    """The requirements on events for a column of a stream."""
    char = None if isinstance(field.char, msgspec.UnsetType) else re.fullmatch(r"char\((\d+)\)", field.char)
    default = "" if isinstance(field.default, msgspec.UnsetType) else field.default
    return Wanted(field.name, field.type, field.name, default=default, padded=int(char[1]) if char else 0)


def _cut(dice: random.Random, table: pa.Table) -> list[pa.Table]:
    """Cuts the rows, in their order, into up to six pieces, of which some may be empty."""
    places = sorted(dice.randint(0, len(table)) for _ in range(dice.randint(1, 5)))
    return [table.slice(start, end - start) for start, end in zip([0, *places], [*places, len(table)], strict=True)]


def _dealt(dice: random.Random, table: pa.Table, stream: Stream) -> list[pa.Table]:
    """Distributes rows to up to three tables; those of a source partition with an order stay together, in order."""
    parts: list[list[int]] = [[] for _ in range(dice.randint(1, 3))]
    if stream.order is None:
        for i in range(len(table)):
            dice.choice(parts).append(i)
    else:
        of: dict[Any, list[int]] = {}
        for i, name in enumerate(table.column(stream.order.partition).to_pylist()):
            of.setdefault(name, dice.choice(parts)).append(i)
    return [table.take(part) for part in parts if part]


def _assert_alike(whole: Trial, twin: Trial, how: str) -> None:
    for name in whole.queries:
        left, right = whole.fates(name), twin.fates(name)
        if left["late"] != right["late"]:
            cure = (
                "Let the stream state its order ('order.partition', 'order.offset'), or wait longer for late events."
                if any(whole.streams[stream].order is None for stream in whole.queries[name].streams)
                else "Nobody waits for a source partition that has not been seen: name all of them in the order."
            )
            raise AssertionError(f"{name}: {left['late']} events are late in one epoch, {right['late']} {how}. {cure}")
        differs = difference(*(plain_rows([each.table(name)]) for each in (whole, twin)))
        if differs is not None or left != right:
            raise AssertionError(f"{name}, {how}: {differs or f'{left} expected, {right} found'}")
