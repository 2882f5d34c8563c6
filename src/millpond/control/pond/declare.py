"""Declares streams, functions and tables, and analyses the queries that name them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

import msgspec

from millpond.control.checks.brokers import unreachable_brokers
from millpond.control.checks.input_files import check_files, empty_inputs
from millpond.control.pond.compile import compiled_of, write_compiled
from millpond.control.pond.function_file import load_functions
from millpond.control.wiring.output_folders import OutputFolders
from millpond.errors import InputError, QueryTypeError
from millpond.followers.sinks.in_process import Foreach
from millpond.model.budget import budget_of
from millpond.model.endpoints import REDIS, Sink, Source
from millpond.model.functions import UserFunction
from millpond.model.selection import AnyQuery
from millpond.model.stream import Relation, Stream, inner_queries
from millpond.plan.options.complete_column import with_complete
from millpond.plan.upstream.steps import streams_of
from millpond.reconfigure.catalog import event_times_of
from millpond.reconfigure.changes import Add, Alter, Shadow
from millpond.reconfigure.validate import KnownPond
from millpond.spark.analysis.derived_streams import bases_of, stream_with_equal_times, time_sources
from millpond.spark.analysis.properties import Mode, Repeats
from millpond.spark.catalyst.analysis_threads import Analyses
from millpond.spark.frontend.frontend import FrontEnd
from millpond.spark.session.session import Frame, explaining
from millpond.spark.sources.arrow_functions import BatchFunction

NewText = TypeVar("NewText", Add, Alter, Shadow)
"""A change that contains the text of a query."""


class QueryOptions(NamedTuple):
    """The options of an added query: see `Pond.add`; `backfill_us` as in `validate.add`.

    `ttl` and `zone` are as in the front end.
    """

    sink: Sink
    serve: bool = False
    late: Sink | None = None
    mode: Mode = Mode()
    repeats: Repeats = Repeats()
    budget: str | None = None
    incomplete: bool = False
    backfill_us: int | None = None
    ttl: str | int | None = None
    zone: str | None = None


class Declarations:
    """The streams, functions, tables and queries of a pond; each is visible to everything that is analysed after it.

    - `front`: analyses texts and DataFrames; its `lock` is held by the thread that does.
    - `queries`: the current version of each query by name, in the order they were added.
    - `foreach`: the functions that take the rows of queries.
    """

    def __init__(self, front: FrontEnd, folders: OutputFolders) -> None:
        self.front, self._folders = front, folders
        self.queries: dict[str, AnyQuery] = {}
        self.foreach: dict[str, Foreach] = {}
        self._analyses = Analyses()

    def stream(self, stream: Stream | str) -> Frame:
        """Declare a stream, so that SQL can name it; returns its DataFrame, for queries that are DataFrames.

        A text is the name of a stream that is declared, such as by `CREATE TABLE` in a text that `load` has taken.

        Raises:
            QueryTypeError, SourceError: its name is taken, or Spark cannot open it; no stream has this name.
        """
        return self.front.frame(stream) if isinstance(stream, str) else self.front.declare(stream)

    def function(
        self, name: str, module: str, *, kind: str, takes: Sequence[str] | Mapping[str, str],
        returns: str | Mapping[str, str], version: str = "1", deadline: str = "5 seconds", memory: str = "256 MB",
        form: str = "arrow", state: Mapping[str, str] | None = None, ttl: str | None = None, timers: str | None = None,
    ) -> Callable[..., Any]:  # fmt: skip
        """Make an installed function (`package.module:attribute`) an aggregate that queries call by `name`.

        A `stateful` function is a processor, whose rows a query shows with `inline(name(…))`. Its `takes`, `returns`
        and `state` have names and types; the state of a key is forgotten `ttl` after its last event, and a timer is
        set at least `timers` after the event that sets it.

        It runs in a process of its own, which is killed when a call takes longer than `deadline` or uses more than
        `memory`. Then, or if the function raises, the queries that call it are quarantined. See
        `model.functions.UserFunction`. The returned callable makes columns for DataFrames; one additional argument is
        a condition, like FILTER in SQL. A new `version` of a known function is called by queries that are added or
        altered afterwards.

        Raises:
            QueryTypeError: an argument is invalid, or the name is taken.
            UserFunctionError: the function cannot be imported, or is not of the declared kind.
        """
        with self.front.lock:
            return self.front.function(
                name, module, kind, takes, returns, version=version, deadline=deadline, memory=memory, form=form,
                state=state, ttl=ttl, timers=timers,
            )  # fmt: skip

    @property
    def functions(self) -> tuple[UserFunction, ...]:
        """The newest version of each declared function."""
        return self.front.functions

    def load_functions(self) -> tuple[UserFunction, ...]:
        """Declare the functions of the operator's file (`MILLPOND_FUNCTIONS`) as `function` does; `load` does this too.

        Returns the newest version of each declared function.

        Raises:
            SetupError: the file cannot be read. QueryTypeError, UserFunctionError: see `function`.
        """
        with self.front.lock:
            load_functions(self.front)
        return self.functions

    def map_batches(
        self, name: str, stream: str, function: BatchFunction, schema: str, *, version: str | None = None
    ) -> Frame:
        """Declare the derived stream `name`: the results of your function for the Arrow batches of a stream.

        `function` takes a `RecordBatch` of the stream's columns and returns one of `schema` (`a INT, b STRING`), with
        any number of rows. It must be defined at the top level of a module that Spark's workers can import, be
        deterministic, and treat each row independently, because batches are cut arbitrarily. A pond that is continued
        needs the same `version` or, if none is given, the same source code of that module. Queries that are added
        later can read `name`; the returned DataFrame is a stream too.

        Raises:
            QueryTypeError: the stream does not exist, the name is taken, or the schema is invalid.
            UnsupportedQuery: workers cannot import the function.
        """
        return self.front.map_batches(name, stream, function, schema, version)

    def lookup_table(
        self, name: str, columns: str, *, key: str, address: str | None = None, form: str = "hash",
        missing: str = "null", wrong_type: str = "dead-letter", vanished: str = "wait",
        defaults: Mapping[str, Any] | None = None,
    ) -> Frame:  # fmt: skip
        """Declare the keyed table `name`: rows that other programs keep in Redis under keys such as `user:{id}`.

        `columns` (`id BIGINT, name STRING`) lists the key columns and the columns to read: fields of a hash or, with
        `form="json"`, of a JSON object in a string. A column `_problem STRING` says why a row was not read. A stream
        joins the table, LEFT or INNER, by equality with each key column; a batch of events reads each distinct key
        once. `missing`, `wrong_type` and `vanished` say what happens if a row is missing, has a wrong type, or if its
        server does not answer: there is no row (`null`), the row is `defaults` (`default`), the event is dead
        (`dead-letter`), the run ends (`fail`), or the epoch waits (`wait`). `address` (default: the pond's store) is
        not part of the pond's identity, so it may change from run to run; `run` refuses an invalid one.

        Raises:
            QueryTypeError: a column or an option is invalid, or the name is taken.
        """
        options = {
            "key": key, "type": form, "missing": missing, "wrong.type": wrong_type, "vanished": vanished,
            "defaults": msgspec.json.encode(dict(defaults or {})).decode(),
        }  # fmt: skip
        options |= {} if address is None else {"address": address}
        return self.front.table(name, Source(REDIS, tuple(options.items())), columns)

    def refresh(self, table: str | Frame, every: str) -> None:
        """Refresh the list of files of a table that streams join: when a run begins, and then once per `every`.

        `table` is a batch DataFrame of files, or the name of a view; `every` is a duration in Spark's syntax. Lists are
        read between epochs, so an epoch sees exactly one list. The list is not recorded: an epoch that is repeated
        after a crash may see a newer one.

        Raises:
            QueryTypeError: the view does not exist, has no files or a pattern as its path, or `every` is no duration.
        """
        self.front.refresh(table, every)

    @explaining()
    def load(self, text: str, *, queries: bool = True) -> tuple[AnyQuery, ...]:
        """Declare the streams of a pond file (Spark's own statements) and, if `queries`, add its queries.

        Raises:
            QueryError: a statement is wrong; the message names its line.
        """
        self.load_functions()
        made = [self._folders.with_folders(query) for query in self.front.load_file(text, queries=queries)]
        for query in made:
            if query.name in self.queries:
                raise QueryTypeError(f"The query name {query.name!r} is used twice.", "Rename one.")
            self.queries[query.name] = query
        return tuple(made)

    def compile(self, path: str | os.PathLike[str]) -> None:
        """Write the analysed streams and queries for `millpond.testing.Trial`, which reads them without Spark.

        Raises:
            PlaceError: the file holds something else, or cannot be written.
        """
        write_compiled(Path(path), compiled_of(self.streams, (*self.queries.values(),)))

    @property
    def streams(self) -> tuple[Stream, ...]:
        """The streams: those that are declared, and those that queries derive from them."""
        return tuple(self.front.streams.values())

    @property
    def texts_in_file(self) -> Mapping[str, str]:
        """The texts of the queries in the pond file that was loaded last, by name, whether or not they were added."""
        return MappingProxyType(self.front.texts_in_file)

    @property
    def relations(self) -> tuple[Relation, ...]:
        """The views and tables that the texts of the queries name."""
        return self.front.relations(self.queries.values())

    @explaining()
    def notes(self) -> list[InputError]:
        """Possible mistakes: brokers that do not answer, folders that are still empty, files that lack a column.

        Raises:
            LateSchemaError: a file does not fit its stream; `run` would raise the same before it reads an event.
        """
        readings = self.front.readings((*self.queries.values(),))
        streams = [reading.stream for reading in readings]
        return [*unreachable_brokers(streams), *empty_inputs(streams), *check_files(readings)]

    def add(self, name: str, query: str | Frame, options: QueryOptions) -> AnyQuery:
        """Add a query to a pond that is not open.

        Raises:
            QueryError: the query is wrong, or its name is used.
        """
        if name in self.queries:
            raise QueryTypeError(f"The query name {name!r} is used twice.", "Give each query its own name.")
        made = self.queries[name] = self.analyse(name, query, options)
        return made

    def analyse(
        self, name: str, query: str | Frame, options: QueryOptions, *, remember: bool = True, deadline: bool = False
    ) -> AnyQuery:
        """Analyse a query, with a `deadline` in a thread of its own. `remember`: later SQL may read its rows.

        Raises:
            QueryError: the query is wrong, refused or not supported.
        """
        if not name.strip():
            raise QueryTypeError("The query has no name.", "Give it one, such as 'visits'.")
        wrong = next((one for one in (options.sink, options.late) if not isinstance(one, Sink | None)), None)
        if wrong is not None:
            raise QueryTypeError(
                f"The sink of {name} is {wrong!r}, which is not a Sink.", "Write millpond.Sink('json', 'FOLDER')."
            )
        how: dict[str, Any] = options._asdict()
        budget, incomplete = how.pop("budget"), how.pop("incomplete")
        del how["backfill_us"]
        limits = msgspec.UNSET if budget is None else budget_of(budget)
        if not isinstance(query, str) and how.pop("zone") is not None:
            raise QueryTypeError(
                f"{name} is a DataFrame, which has the time zone of the session that made it.",
                "Set spark.sql.session.timeZone there, before you make the DataFrame.",
            )
        read: Any = self.front.query_from_sql if isinstance(query, str) else self.front.query_from_dataframe
        work: Callable[[], AnyQuery] = partial(read, name, query, **how, remember=False)
        made = self._analyses.run(name, work) if deadline else work()
        made = with_complete(made) if incomplete else made
        made = self._folders.with_folders(msgspec.structs.replace(made, budget=limits))
        if remember:
            self.remember(made)
        return made

    def remember(self, query: AnyQuery) -> None:
        """Let later SQL read the rows of a query."""
        with self.front.lock:
            self.front.remember(query)

    def forget_folder(self, name: str) -> None:
        """The dropped query's folder is not that of a later query of its name."""
        self._folders.forget(name)

    def set_current(self, queries: Iterable[AnyQuery]) -> None:
        """Replace all queries by the versions that are in force."""
        self.queries = {query.name: query for query in queries}

    def streams_of(self, query: AnyQuery) -> tuple[Stream, ...]:
        """The streams that a query and its inner queries name."""
        known = self.front.streams
        return tuple(known[name] for name in streams_of(query, known))

    def sources_of(self, query: AnyQuery) -> tuple[Stream, ...]:
        """The streams that a query reads, also in derived streams; their sources may separate malformed records."""
        return (*self.streams_of(query), *self.bases_of(query))

    def bases_of(self, query: AnyQuery) -> tuple[Stream, ...]:
        """The sources that a query reads as parts of derived streams."""
        return bases_of(self.front.derived(query))

    def time_sources_of(self, query: AnyQuery) -> dict[str, dict[str, str]]:
        """For each derived stream that a query reads: by base stream, the column that is its event time; or a derived
        stream of the pond whose events have the same times.
        """
        times = event_times_of((*inner_queries(self.streams_of(query)), query))
        read = [(one, times[one.stream.name]) for one in self.front.derived(query) if one.stream.name in times]
        observed = event_times_of(self.queries.values())
        known = [one for query_read in self.queries.values() for one in self.front.derived(query_read)]
        others = [(one, observed[one.stream.name]) for one in known if one.stream.name in observed]
        return {
            one.stream.name: time_sources(one, time) or stream_with_equal_times(one, time, others) for one, time in read
        }

    def naming(self, make: Callable[[KnownPond], NewText], query: AnyQuery) -> Callable[[KnownPond], NewText]:
        """The change with the views, tables and streams that the text of its query names, so that the log has them."""
        with self.front.lock:
            named = self.front.relations([query])
        return lambda pond: msgspec.structs.replace(make(pond), named=named)

    def end(self) -> None:
        """Refuse the queries that are being analysed now."""
        self._analyses.end()
