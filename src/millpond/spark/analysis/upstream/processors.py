"""Reads a plan with the rows of a processor: `SELECT key, inline(f(…)) FROM … GROUP BY key`.

Spark sees a generator over an aggregation with the stand-in of a user function, whose type is an array of rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from millpond.errors import UnsupportedQuery
from millpond.model.expressions import Column, field_of
from millpond.model.functions import STATEFUL
from millpond.model.windows import Processed
from millpond.spark.analysis.aggregation_input import read_input_plan
from millpond.spark.analysis.extract import Reader
from millpond.spark.analysis.grouping.grouping_sets import sets_of
from millpond.spark.analysis.query_terms import Extraction
from millpond.spark.analysis.result_expressions import inlined
from millpond.spark.analysis.steps.inputs import StepContext
from millpond.spark.analysis.steps.step_boundaries import referenced_ids
from millpond.spark.catalyst.cures import without_time
from millpond.spark.catalyst.private_names import JavaObject, id_of, items, kind_of, outputs, timed_column

_GENERATORS = ("Inline", "Explode")


class ProcessorRows(NamedTuple):
    """A generator over the rows of a processor, the projections below it, and the parts of the aggregation below these.

    `call` is the call of the processor among `calls`.
    """

    generate: JavaObject
    between: Sequence[JavaObject]
    aggregate: JavaObject
    keys: list[JavaObject]
    calls: list[JavaObject]
    results: list[JavaObject]
    call: JavaObject


def rows_of_processor(context: StepContext, node: JavaObject) -> ProcessorRows | None:
    """The rows of a processor that a node makes; None for any other node."""
    if all(function.kind != STATEFUL for function in context.functions.known) or kind_of(node) != "Generate":
        return None  # without a processor, the JVM is not called
    between, below = [], node.child()
    while kind_of(below) in ("Project", "SubqueryAlias"):
        between.append(below)
        below = below.child()
    if kind_of(below) != "Aggregate":
        return None
    keys, calls, results = context.catalyst.aggregation(below)
    called = ((call, context.functions.called(call)) for call in calls)
    call = next((call for call, function in called if function is not None and function.kind == STATEFUL), None)
    return None if call is None else ProcessorRows(node, between, below, keys, calls, results, call)


def read_processor(context: StepContext, rows: ProcessorRows, above: list[JavaObject]) -> Extraction:
    """The query of the rows of a processor; `above` are the nodes above them, the highest first.

    Raises:
        UnsupportedQuery: there is a window, another aggregate, or a shape that is not supported.
        QueryTypeError: the events have no watermark, or the arguments do not match.
    """
    name = str(rows.call.aggregateFunction().name())
    shape = f"Write SELECT key, inline({name}(…)) FROM … GROUP BY key."
    for wrong, what in (
        (len(rows.calls) > 1, "is called beside another aggregate"),
        (sets_of(rows.aggregate).id is not None, "is called for several grouping sets"),
        (context.terms.serve, "makes rows, of which none is the latest one of its key, so they are not served"),
        (rows.generate.outer() or kind_of(rows.generate.generator()) not in _GENERATORS, "is read as something else"),
    ):
        if wrong:
            raise UnsupportedQuery(f"The processor {name} {what}.", shape)
    input_plan = read_input_plan(context.catalyst, rows.aggregate.child())
    if input_plan.windows or input_plan.repeats is not None:
        what = "for the events of a window" if input_plan.windows else "where repeated events are removed"
        raise UnsupportedQuery(f"The processor {name} is called {what}.", shape)
    source = context.source(input_plan, referenced_ids([rows.aggregate]))
    return _ProcessorReader(context, source, input_plan).rows(rows, above, shape)


class _ProcessorReader(Reader):
    """Reads the rows of a processor."""

    def rows(self, rows: ProcessorRows, above: list[JavaObject], shape: str) -> Extraction:
        time = timed_column(outputs(rows.aggregate.child()))
        if time is None:
            raise without_time(self.stream, self._terms.text)
        keys = self._keys(rows.keys)
        found = self._functions.aggregate(rows.call, self.translate, stateful=True)
        assert found is not None
        aggregate, function = found
        self._called.add(function)
        self._define(rows.results)
        for node in rows.between:
            if kind_of(node) == "Project":
                self._define(items(node.projectList()))
        array = inlined(self._catalyst, rows.generate.generator().child(), self._defined)
        if kind_of(array) != "AttributeReference" or id_of(array) != id_of(rows.call.resultAttribute()):
            raise UnsupportedQuery(f"The rows of {function.name} are changed before they are read.", shape)
        row = Column("agg:0", aggregate.type)
        made = items(rows.generate.generatorOutput())
        if kind_of(rows.generate.generator()) == "Explode":
            self._scope[id_of(made[0])] = row
        else:
            for position, column in enumerate(made):
                self._scope[id_of(column)] = field_of(row, position)
            self._scope[id_of(made[0])] = Column("window.time", "timestamp")
        having, output = self._finish(outputs(rows.generate), above)
        return self._query(time, Processed(function.state.ttl_us), keys, (aggregate,), having, output)
