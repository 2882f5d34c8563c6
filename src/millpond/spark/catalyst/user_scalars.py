"""Wraps Python UDFs inside expressions that Spark evaluates, so that a failure affects only its event.

Spark runs a Python function for all rows, whatever CASE or WHERE surrounds it, and an exception would end the epoch for
every query. So each function is wrapped. A row for which the call raises or takes too long has no value, and fails only
where the value is used.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

from pyspark import Accumulator, SparkContext
from pyspark.serializers import CPickleSerializer
from pyspark.sql.types import StructField, StructType
from pyspark.sql.udf import UserDefinedFunction

from millpond.errors import UnsupportedQuery
from millpond.runtime.functions.call_deadline import CallLate, within
from millpond.spark.catalyst.private_names import Catalyst, JavaObject, children, kind_of, text_of

CALL_SECONDS = 10.0
"""The time limit of one call, in seconds."""
LATE_CALLS = 3
"""Number of late calls in one task after which the task no longer calls the function; its further events are dead."""

_counters: dict[tuple[str, str], Accumulator[int]] = {}

_ROW_BY_ROW = (100, 101)
"""`PythonEvalType`s of plain functions of one row, without and with Arrow."""


def check_function(node: JavaObject) -> None:
    """Refuse a Python function that takes whole columns or is not deterministic.

    Raises:
        UnsupportedQuery: the function is of this kind.
    """
    if int(node.evalType()) not in _ROW_BY_ROW:
        raise UnsupportedQuery(
            f"`{text_of(node)}` takes whole columns (pandas_udf), which is not supported.",
            "Write it as a function of one row (udf).",
        )
    if not node.udfDeterministic():
        raise UnsupportedQuery(
            f"`{text_of(node)}` is not deterministic, so a repeated epoch would answer differently.",
            "Use the event's own columns.",
        )


def command_of(function: JavaObject) -> bytes:
    """The bytes that Spark sends to its workers for a `PythonUDF`."""
    return bytes(function.func().command().unsafeArray())


def function_digest(node: JavaObject) -> str:
    """The identity of a Python function: a digest of the bytes that Spark would send to a worker."""
    return hashlib.sha256(command_of(node)).hexdigest()


def guarded(catalyst: Catalyst, expression: JavaObject, owner: str) -> JavaObject:
    """The expression, in which every Python function is wrapped so that it never raises.

    Late calls are counted for `owner`, see `late_calls`.

    Raises:
        UnsupportedQuery: a function is too large to be sent with its query.
    """
    rebuilt = [guarded(catalyst, part, owner) for part in children(expression)]
    if kind_of(expression) != "PythonUDF":
        return catalyst.rebuilt(expression, rebuilt)
    # Unpickling is safe: this process made the bytes, from the function that its program passed to Spark.
    sent = CPickleSerializer().loads(command_of(expression))  # type: ignore[no-untyped-call]
    if not isinstance(sent, tuple):
        raise UnsupportedQuery(
            f"`{text_of(expression)}` holds more than a megabyte of data.", "Read that data inside the function."
        )
    function, kind = sent
    counter = _counter(owner, str(expression.name()), CALL_SECONDS)
    attempting, returns = _attempting(function, CALL_SECONDS, LATE_CALLS, counter), StructType([StructField("v", kind)])
    wrapped = UserDefinedFunction(attempting, returns, str(expression.name()), int(expression.evalType()))
    call = catalyst.called(wrapped, [catalyst.attempt(part) for part in rebuilt])
    return catalyst.make("GetStructField", catalyst.present(call), 0, catalyst.none)


def late_calls() -> dict[tuple[str, str], int]:
    """The numbers of late calls since this process began, as in `reconfigure.late_functions`."""
    return {of: counter.value for of, counter in list(_counters.items())}


def _counter(owner: str, name: str, seconds: float) -> Accumulator[int]:
    """The counter of late calls of a function; Spark adds up what the tasks of an epoch count before its job ends."""
    of = owner, f"The function {name} did not answer within {seconds:g} s"
    if of not in _counters:
        context = SparkContext._active_spark_context
        assert context is not None
        _counters[of] = context.accumulator(0)
    return _counters[of]


def _attempting(
    function: Callable[..., Any], seconds: float, most: int, counter: Accumulator[int] | None = None
) -> Callable[..., Any]:
    """The function changed to take attempts (`Catalyst.attempt`) as arguments and to return an attempt.

    `counter` counts the calls that are late.
    """
    late = 0  # counted per task, because Spark loads the function anew for each task

    def attempt(*arguments: Any) -> tuple[Any] | None:
        nonlocal late
        if late >= most:
            return None
        try:
            return (within(seconds, function, [argument[0] for argument in arguments]),)
        except CallLate:
            late += 1
            if counter is not None:
                counter.add(1)
        except Exception:  # whatever the exception is, it concerns only this event
            pass
        return None

    return attempt
