"""Declares the streams, functions and tables that the queries of a pond name."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from millpond.control.pond.function_file import load_functions
from millpond.model.endpoints import KEYED, Source
from millpond.model.functions import UserFunction
from millpond.model.stream import Stream
from millpond.spark.frontend.frontend import FrontEnd
from millpond.spark.session.session import Frame
from millpond.spark.sources.arrow_functions import BatchFunction


class Declaring:
    """The part of `Pond` that declares things; a declaration is visible to everything that is analysed after it."""

    _front: FrontEnd
    _analysing: threading.RLock

    def stream(self, stream: Stream) -> Frame:
        """Declare a stream, so that SQL can name it; returns its DataFrame, for queries that are DataFrames.

        Raises:
            QueryTypeError, SourceError: its name is taken, or Spark cannot open it.
        """
        return self._front.declare(stream)

    def function(
        self, name: str, module: str, *, kind: str, takes: Sequence[str], returns: str, version: str = "1",
        deadline: str = "5 seconds", memory: str = "256 MB", form: str = "arrow",
    ) -> Callable[..., Any]:  # fmt: skip
        """Make an installed function (`package.module:attribute`) an aggregate that queries call by `name`.

        It runs in a process of its own, which is killed when a call takes longer than `deadline` or uses more than
        `memory`. Then, or if the function raises, the queries that call it are quarantined. See
        `model.functions.UserFunction`. The returned callable makes columns for DataFrames; one additional argument is
        a condition, like FILTER in SQL. A new `version` of a known function is called by queries that are added or
        altered afterwards.

        Raises:
            QueryTypeError: an argument is invalid, or the name is taken.
            UserFunctionError: the function cannot be imported, or is not of the declared kind.
        """
        with self._analysing:
            return self._front.function(
                name, module, kind, takes, returns, version=version, deadline=deadline, memory=memory, form=form
            )

    @property
    def functions(self) -> tuple[UserFunction, ...]:
        """The newest version of each declared function."""
        return self._front.functions

    def load_functions(self) -> tuple[UserFunction, ...]:
        """Declare the functions of the operator's file (`MILLPOND_FUNCTIONS`) as `function` does; `load` does this too.

        Returns the newest version of each declared function.

        Raises:
            SetupError: the file cannot be read. QueryTypeError, UserFunctionError: see `function`.
        """
        with self._analysing:
            load_functions(self._front)
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
        return self._front.map_batches(name, stream, function, schema, version)

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
        return self._front.table(name, Source(KEYED, tuple(options.items())), columns)

    def refresh(self, table: str | Frame, every: str) -> None:
        """Refresh the list of files of a table that streams join: when a run begins, and then once per `every`.

        `table` is a batch DataFrame of files, or the name of a view; `every` is a duration in Spark's syntax. Lists are
        read between epochs, so an epoch sees exactly one list. The list is not recorded: an epoch that is repeated
        after a crash may see a newer one.

        Raises:
            QueryTypeError: the view does not exist, has no files or a pattern as its path, or `every` is no duration.
        """
        self._front.refresh(table, every)
