"""Declarations of a pond that its queries name: streams, functions and tables."""

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
    """The declarations of a pond; each is known to what is analysed after it."""

    _front: FrontEnd
    _analysing: threading.RLock

    def stream(self, stream: Stream) -> Frame:
        """Declare a stream, so that SQL can name it; returns a frame of it, for queries that are DataFrames.

        Raises:
            QueryTypeError, SourceError: its name is taken, or Spark cannot open it.
        """
        return self._front.declare(stream)

    def function(
        self, name: str, module: str, *, kind: str, takes: Sequence[str], returns: str, version: str = "1",
        deadline: str = "5 seconds", memory: str = "256 MB", form: str = "arrow",
    ) -> Callable[..., Any]:  # fmt: skip
        """Make a function that is installed here (`package.module:attribute`) an aggregate that queries call by `name`.

        It runs in a process of its own, which is ended when a call takes longer than `deadline` or more than `memory`;
        then, or if it raises, queries that call it are quarantined. See `model.functions.UserFunction`. What is
        returned makes columns for DataFrames; one more argument is a condition, as FILTER is in SQL. Another `version`
        of a known function is called by queries that are added or altered from then on.

        Raises:
            QueryTypeError: one of these is not what it must be, or the name is taken.
            UserFunctionError: the function cannot be imported, or is not of its kind.
        """
        with self._analysing:
            return self._front.function(
                name, module, kind, takes, returns, version=version, deadline=deadline, memory=memory, form=form
            )

    @property
    def functions(self) -> tuple[UserFunction, ...]:
        """The newest version of each function that is known."""
        return self._front.functions

    def load_functions(self) -> tuple[UserFunction, ...]:
        """Make the functions of the operator's file known (`MILLPOND_FUNCTIONS`), as `function` does; so does `load`.

        Returns the newest version of each function that is known then.

        Raises:
            SetupError: the file does not read. QueryTypeError, UserFunctionError: see `function`.
        """
        with self._analysing:
            load_functions(self._front)
        return self.functions

    def map_batches(
        self, name: str, stream: str, function: BatchFunction, schema: str, *, version: str | None = None
    ) -> Frame:
        """Make `name` stand for what your function makes of the Arrow batches of a stream, in queries added later.

        `function` takes a `RecordBatch` of the stream's columns and gives one of `schema` (`a INT, b STRING`), with any
        number of rows. It must stand at the top of a module that Spark's workers can import, answer the same for the
        same rows, and take each row by itself: batches are cut anyhow. A pond that is continued needs the same
        `version` or, where none is given, the same source of that module. The frame that is returned is a stream too.

        Raises:
            QueryTypeError: there is no such stream, the name is taken, or the schema is none.
            UnsupportedQuery: workers cannot import the function.
        """
        return self._front.map_batches(name, stream, function, schema, version)

    def lookup_table(
        self, name: str, columns: str, *, key: str, address: str | None = None, form: str = "hash",
        missing: str = "null", wrong_type: str = "dead-letter", vanished: str = "wait",
        defaults: Mapping[str, Any] | None = None,
    ) -> Frame:  # fmt: skip
        """Make `name` stand for rows that other programs keep in Redis, under keys such as `user:{id}`, for joins.

        `columns` (`id BIGINT, name STRING`) lists those of the key and those to read: fields of a hash or, with
        `form="json"`, of a JSON object in a string; a column `_problem STRING` tells why a row was not read. A
        stream joins the table by equality with each key column, LEFT or INNER; a batch of events asks for each distinct
        key once. A row that is `missing`, of a `wrong_type`, or whose server has `vanished` is no row (`null`), one of
        `defaults` (`default`), makes its event dead (`dead-letter`), ends the run (`fail`), or is waited for (`wait`).
        `address` (default: the pond's store) is no part of what a pond is, so it may change from run to run; `run` says
        if it is none.

        Raises:
            QueryTypeError: a column or an option is not what it must be, or the name is taken.
        """
        options = {
            "key": key, "type": form, "missing": missing, "wrong.type": wrong_type, "vanished": vanished,
            "defaults": msgspec.json.encode(dict(defaults or {})).decode(),
        }  # fmt: skip
        options |= {} if address is None else {"address": address}
        return self._front.table(name, Source(KEYED, tuple(options.items())), columns)

    def refresh(self, table: str | Frame, every: str) -> None:
        """List the files of a table that streams are joined with again: when a run begins, then `every` so often.

        `table` is a batch DataFrame of files, or the name of a view; `every` is a duration in Spark's words. Lists are
        made between epochs, so each sees one; which one is not recorded: an epoch that is repeated after a crash may
        see a newer one.

        Raises:
            QueryTypeError: there is no such view, it has no files or a pattern for its path, `every` is no duration.
        """
        self._front.refresh(table, every)
