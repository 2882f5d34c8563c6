"""Runs user functions in child processes, which are started on demand and reused.

A child is a cache: killing one costs time and nothing else. A child that failed is not used again.
"""

from __future__ import annotations

import os
import sys
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa

from millpond.arrays import Ints
from millpond.errors import UserFunctionError
from millpond.kernels.columns import arrow_type
from millpond.model.functions import STATEFUL, UserFunction
from millpond.runtime.functions.kinds import KEY, TIME, VALUE
from millpond.runtime.functions.process import Child, ChildFailed

MOST_CHILDREN = 8
"""The most processes that a host keeps; the least recently called function is ended first."""

LOADING_MS = 30_000
"""The time limit for importing a module in milliseconds; the deadline of a function only applies to its calls."""


class FunctionHost:
    """Runs user functions, each in its own child process; not thread-safe."""

    def __init__(self) -> None:
        self._children: OrderedDict[UserFunction, tuple[Child, str]] = OrderedDict()

    def load(self, function: UserFunction) -> UserFunction:
        """Loads the function in a new process, and returns it with the current digest of its module.

        Raises:
            UserFunctionError: it cannot be imported, is not of its kind, or does not match its digest.
        """
        if function in self._children:
            self._end(function)
        return msgspec.structs.replace(function, digest=self._child(function)[1])

    def call(self, function: UserFunction, table: pa.Table, rows: int, cells: pa.ListArray | None = None) -> pa.Array:
        """Calls the function for keys 0 … `rows` - 1, and returns an array of its declared type.

        The first column of `table` is the key of each event (int64, ascending), the others are the arguments. Whatever
        the names of the columns are, the function sees `key`, `value`, `value_2`, … The value of a key without events
        is NULL. With `cells` (for mergeable functions only), keys number cells, and row i of the result is merged from
        the cells `cells[i]`, in that order; so each event is updated once even if windows overlap.

        Raises:
            UserFunctionError: it raised an error, timed out, crashed, exceeded its memory or returned a wrong type; the
                error's `row` is the key that it was processing, if known.
        """
        call = _call_of(table, rows, cells)
        if not len(call.rows):
            return pa.nulls(rows, arrow_type(function.returns))
        answers = self._answers(function, call)
        try:
            column = _checked(answers, len(call.rows), arrow_type(function.returns))
        except ValueError as error:
            raise self._unreadable(function, error) from error
        if len(call.rows) == rows:
            return column
        position = np.full(rows, -1)
        position[call.rows] = np.arange(len(call.rows))
        return column.take(pa.array(position, mask=position < 0))

    def step(self, function: UserFunction, step: str, events: pa.Table, state: pa.Table) -> list[pa.Table]:
        """Calls a processor's `process` or `timer`; returns its rows, with their `key`, and the new states.

        `events` has `key` (ascending, the row in `state`), `time` and, for `process`, the arguments.

        Raises:
            UserFunctionError: it raised an error, timed out, crashed, exceeded its memory or returned wrong tables.
        """
        fields = [pa.field(KEY, pa.int64()), *arrow_type(function.returns)]
        answers = self._answers(function, _Call(np.arange(len(state)), [events, state]), step)
        try:
            return _checked_tables(answers, (pa.schema(fields), state.schema), len(state))
        except ValueError as error:
            raise self._unreadable(function, error) from error

    def close(self) -> None:
        """Ends all children."""
        for function in list(self._children):
            self._end(function)

    def __enter__(self) -> FunctionHost:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def _child(self, function: UserFunction) -> tuple[Child, str]:
        """The function's process and the digest of its loaded module; starts and loads the process if there is none."""
        if function in self._children:
            if self._children[function][0].lives():
                self._children.move_to_end(function)
                return self._children[function]
            self._end(function)  # the process was killed while it was idle
        while len(self._children) >= MOST_CHILDREN:
            self._end(next(iter(self._children)))
        child = Child(search_path())
        self._children[function] = child, function.digest
        types = [pa.field("value", arrow_type(function.returns))]
        header = {
            "module": function.module,
            "kind": function.kind,
            "form": function.form,
            "memory_bytes": function.memory_bytes,
            "path": search_path(),
            "timers": function.kind == STATEFUL and function.state.timer_after_us is not None,
        }
        reply, _ = self._exchange(function, child, header, [pa.schema(types).empty_table()], LOADING_MS)
        digest = str(reply["digest"])
        if function.digest not in ("", digest):
            self._end(function)
            raise function_error(
                function,
                f"is no longer what it was: the file of {function.module} was changed",
                cure="Give the changed function a new version, or put the old file back.",
            )
        self._children[function] = child, digest
        return self._children[function]

    def _answers(self, function: UserFunction, call: _Call, step: str = "") -> list[pa.Table]:
        """The tables that a function returns; if its process dies or lacks memory, a new one is called once.

        So a function that leaks memory costs a process now and then. A new process that lacks memory is not replaced.
        """
        reused, header = function in self._children, {"rows": len(call.rows), "step": step}
        for attempt in (0, 1):
            child, _ = self._child(function)
            try:
                return self._exchange(function, child, header, call.tables, function.deadline_ms, call.rows)[1]
            except UserFunctionError as error:
                if attempt or not (error.died or (error.hungry and reused)):
                    raise
        raise AssertionError

    def _exchange(
        self,
        function: UserFunction,
        child: Child,
        header: Mapping[str, Any],
        tables: Sequence[pa.Table],
        deadline_ms: int,
        result_rows: Ints | None = None,
    ) -> tuple[dict[str, Any], list[pa.Table]]:
        """Sends a frame and returns its reply; after a failure the child is ended, as its condition is unknown.

        `result_rows`: the rows of the result to which the rows of the request belong.
        """
        died = False
        try:
            reply, answers = child.exchange(header, tables, deadline_ms)
            reason, row = reply.get("failed"), reply.get("row")
        except ChildFailed as failure:
            reason, row, died = str(failure), failure.row, failure.died
        if reason is None:
            return reply, answers
        self._end(function)
        hungry = reason == "memory"
        if hungry:
            reason = f"needs more than {function.memory_bytes >> 20} MB of memory"
        at = None
        if result_rows is not None and isinstance(row, int) and 0 <= row < len(result_rows):
            at = int(result_rows[row])
        error = function_error(function, str(reason), at)
        error.died, error.hungry = died, hungry
        raise error

    def _unreadable(self, function: UserFunction, error: ValueError) -> UserFunctionError:
        """Ends the process of a function whose answer does not read; returns the error to raise."""
        self._end(function)
        return function_error(function, f"answered with bytes that do not read: {error}")

    def _end(self, function: UserFunction) -> None:
        self._children.pop(function)[0].end()


class _Call(NamedTuple):
    """The rows of the result that have events, ascending, and the tables that are sent for them."""

    rows: Ints
    tables: list[pa.Table]


def _call_of(table: pa.Table, rows: int, cells: pa.ListArray | None) -> _Call:
    """Prepares a call: leaves out keys (or cells) without events, for which no function is called."""
    keys: Ints = table.column(0).to_numpy()
    first = np.ones(len(keys), bool)
    first[1:] = keys[1:] != keys[:-1]
    distinct_keys = keys[first]
    names = [KEY, VALUE, *(f"{VALUE}_{i}" for i in range(2, table.num_columns))]
    packed = table.set_column(0, KEY, pa.array(np.cumsum(first) - 1, pa.int64())).rename_columns(names)
    if cells is None:
        return _Call(distinct_keys, [packed])
    member: Ints = cells.flatten().to_numpy()
    row = np.repeat(np.arange(rows), np.diff(np.asarray(cells.offsets)))
    position = np.minimum(np.searchsorted(distinct_keys, member), max(len(distinct_keys) - 1, 0))
    has_events = distinct_keys[position] == member if len(distinct_keys) else np.zeros(len(member), bool)
    counts = np.bincount(row[has_events], minlength=rows)
    nonempty = np.flatnonzero(counts)
    offsets = np.concatenate([[0], np.cumsum(counts[nonempty])]).astype(np.int32)
    lists = pa.ListArray.from_arrays(pa.array(offsets), pa.array(position[has_events], pa.int64()))
    return _Call(nonempty, [packed, pa.table({"cells": lists})])


def search_path() -> list[str]:
    """The module search path of a child, which is that of this process."""
    return [entry or os.getcwd() for entry in sys.path]


def _checked(answers: Sequence[pa.Table], rows: int, kind: pa.DataType) -> pa.Array:
    """Validates the column that a child sent, as its bytes are not trusted.

    Raises:
        ValueError: the number of rows or the type is wrong, or the data is invalid.
    """
    column = answers[0].column(0).combine_chunks() if answers and answers[0].num_columns == 1 else pa.nulls(0)
    if len(column) != rows or not column.type.equals(kind):
        raise ValueError(f"{len(column)} of {column.type}, not {rows} of {kind}")
    column.validate(full=True)
    return column


def _checked_tables(answers: Sequence[pa.Table], schemas: Sequence[pa.Schema], states: int) -> list[pa.Table]:
    """Validates the rows and states that a child sent.

    Raises:
        ValueError: the columns, a key or the number of states is wrong, or the data is invalid.
    """
    if [one.schema for one in answers] != list(schemas) or answers[1].num_rows != states:
        raise ValueError("other tables than rows and states")
    for one in answers:
        one.validate(full=True)
    keys = answers[0].column(KEY).to_numpy()
    if answers[0].column(TIME).null_count or (len(keys) and not 0 <= keys.min() <= keys.max() < states):
        raise ValueError("rows of other keys, or without a time")
    return list(answers)


def function_error(function: UserFunction, what: str, row: int | None = None, cure: str = "") -> UserFunctionError:
    """The error of a function; `row`: the row that it was processing, if known."""
    error = UserFunctionError(
        f"The function {function.label} {what}.", cure or "Mend it and register it under a new version."
    )
    error.row = row
    return error
