"""Result rows of one query from the blocks of its closing windows: aggregates finished, HAVING, outputs."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millpond.arrays import Ints
from millpond.errors import OverflowedError
from millpond.model.expressions import Column
from millpond.model.types import WINDOW
from millpond.placement.slots import buckets_of, slots_of
from millpond.plan.plan import GroupPlan, QueryPlan
from millpond.runtime.closing import Closing
from millpond.runtime.columns import ARROW_TYPES, Values, arrow_type, from_arrow, to_arrow
from millpond.runtime.combine import Block
from millpond.runtime.evaluate import Evaluator
from millpond.runtime.finish import finish
from millpond.state.dictionary import KeyDictionary
from millpond.state.keys import texts_of

_NO_JSON = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}
"""Numbers that JSON has no word for, by their `repr`: without one they would all be null."""

ARROW_WINDOW = pa.struct([("start", ARROW_TYPES["timestamp"]), ("end", ARROW_TYPES["timestamp"])])


def output_schema(plan: QueryPlan) -> pa.Schema:
    """Arrow schema of the query's rows as they leave."""
    return pa.schema([(item.name, _arrow_type(item.expression.type)) for item in plan.query.output])


def _arrow_type(kind: str) -> pa.DataType:
    return ARROW_WINDOW if kind == WINDOW else arrow_type(kind)


def shape_of(plan: QueryPlan) -> Hashable:
    """Queries of equal shape differ in their filters alone: their rows are made together."""
    query = plan.query
    aggregates = tuple(msgspec.structs.replace(aggregate, filter=None) for aggregate in query.aggregates)
    return query.window, plan.delay, aggregates, query.having, query.output, query.serve


def rows_of_block(
    group: GroupPlan,
    plans: Sequence[QueryPlan],
    block: Block,
    windows: Sequence[Closing],
    keys: KeyDictionary,
    buckets: int,
) -> Mapping[str, pa.RecordBatch]:
    """The rows, by query, of queries of one shape for some windows and the slots of one block; none: left out.

    Raises:
        OverflowedError: an exact sum, or an output expression, leaves its SQL type.
    """
    plan = plans[0]
    found = _Found.of(group, plans, block, windows)
    if not len(found.slots):
        return {}
    inputs = _inputs(group, plan, _measured(group, plans, block, windows, found), found.ends_us)
    inputs.update(_key_values(group, found.slots + block.first, keys))
    having = plan.query.having
    if having is not None:
        held = Evaluator(inputs, len(found.slots))
        true = _checked(plan, held(having)).is_true()
        kept = np.flatnonzero(np.broadcast_to(true, (len(found.slots),)))
        if not len(kept):
            return {}
        found = found.take(kept)
        inputs = {name: _taken(values, kept) for name, values in inputs.items()}
    rows = _outputs(plan, inputs, found.slots + block.first, found.ends_us, keys, buckets)
    bounds = np.searchsorted(found.queries, np.arange(len(plans) + 1)).tolist()
    return {
        plan.query.name: rows.slice(low, high - low)
        for plan, low, high in zip(plans, bounds, bounds[1:], strict=False)
        if low < high
    }


class _Found(NamedTuple):
    """One row per result, by query: positions of query and window, slot within the block, end of the window."""

    queries: Ints
    windows: Ints
    slots: Ints
    ends_us: Ints

    @staticmethod
    def of(group: GroupPlan, plans: Sequence[QueryPlan], block: Block, windows: Sequence[Closing]) -> _Found:
        """Where some query has events."""
        counts, begins = _placed(group, [plan.presence for plan in plans], block)
        at = begins[:, None] + np.arange(block.size)
        parts = []
        for i, window in enumerate(windows):
            queries, slots = np.nonzero(block.window(f"{counts}:n", window)[at] > 0)
            parts.append((queries, np.full(len(slots), i), slots, np.full(len(slots), window.end_us)))
        found = _Found(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))
        return found.take(np.argsort(found.queries, kind="stable")) if len(plans) > 1 < len(windows) else found

    def take(self, rows: Ints) -> _Found:
        """Some of the rows."""
        return _Found(*(column[rows] for column in self))


def _placed(group: GroupPlan, measures: Sequence[int], block: Block) -> tuple[str, Ints]:
    """The name in the block of measures that differ in their filters alone, and where the slots of each begin."""
    names, begins = zip(*(block.place(group.measures[i]) for i in measures), strict=True)
    return names[0], np.array(begins)


def _measured(
    group: GroupPlan, plans: Sequence[QueryPlan], block: Block, windows: Sequence[Closing], found: _Found
) -> dict[str, Ints]:
    """Columns of the first query's measures, each row with the value of its own query's."""
    rows_of = [np.flatnonzero(found.windows == i) for i in range(len(windows))]
    columns: dict[str, Ints] = {}
    for same in zip(*((place for places in plan.measures for place in places) for plan in plans), strict=True):
        own = group.measures[same[0]].id
        name, begins = _placed(group, same, block)
        at = begins[found.queries] + found.slots
        for column in (column for column in (*block.columns, *block.extremes) if column.partition(":")[0] == name):
            values = np.empty(len(at), block.dtype(column))
            for window, rows in zip(windows, rows_of, strict=True):
                values[rows] = block.window(column, window, at[rows])
            columns[f"{own}:{column.partition(':')[2]}"] = values
    return columns


def _inputs(group: GroupPlan, plan: QueryPlan, columns: dict[str, Ints], ends: Ints) -> dict[str, Values]:
    inputs = {"window.end": Values(ends), "window.start": Values(ends - plan.query.window.size_us)}
    for i, (aggregate, places) in enumerate(zip(plan.query.aggregates, plan.measures, strict=True)):
        measures = [group.measures[place] for place in places]
        missing = {f"{measures[-1].id}:n": np.zeros(len(ends), np.int64)}
        values = finish(aggregate, measures, missing | columns, len(ends))
        inputs[f"agg:{i}"] = _checked(plan, values)
    return inputs


def _checked(plan: QueryPlan, values: Values) -> Values:
    if values.error.any():
        raise OverflowedError(
            f"A result of query {plan.query.name!r} leaves its type or divides by zero.",
            "Widen the type (cast to double) or guard the expression.",
        )
    return values


def _key_values(group: GroupPlan, slots: Ints, keys: KeyDictionary) -> dict[str, Values]:
    columns = keys.take(slots)
    return {
        f"key:{i}": from_arrow(column, key.type)
        for i, (column, key) in enumerate(zip(columns, group.keys, strict=True))
    }


def _taken(values: Values, rows: Ints) -> Values:
    data = values.data
    if isinstance(data, pa.Array):
        data = data.take(pa.array(rows))
    elif not isinstance(data, pa.Scalar) and data.ndim:
        data = data[rows]
    return Values(data, *(mask[rows] if mask.ndim else mask for mask in (values.null, values.error)))


def _outputs(
    plan: QueryPlan,
    inputs: dict[str, Values],
    slots: Ints,
    ends: Ints,
    keys: KeyDictionary,
    buckets: int,
) -> pa.RecordBatch:
    count = len(slots)
    evaluator = Evaluator(inputs, count)
    arrays, names = [], []
    for item in plan.query.output:
        if item.expression.type == WINDOW and isinstance(item.expression, Column):
            arrays.append(_windows(ends, plan.query.window.size_us))
        else:
            values = _checked(plan, evaluator(item.expression))
            arrays.append(to_arrow(values, item.expression.type, count))
        names.append(item.name)
    if plan.query.serve:
        arrays += served_key(keys.take(slots), count, buckets)
        arrays.append(pa.array(ends))
        names += ["__key", "__bucket", "__end"]
    return pa.RecordBatch.from_arrays(arrays, names=names)


def _windows(ends: Ints, size_us: int) -> pa.Array:
    kind = ARROW_TYPES["timestamp"]
    parts = [pa.array(ends - size_us).view(kind), pa.array(ends).view(kind)]
    return pa.StructArray.from_arrays(parts, fields=list(ARROW_WINDOW))


def served_key(columns: Sequence[pa.Array], count: int, buckets: int) -> list[pa.Array]:
    """The text under which a row is served, a JSON list of its key's values, and the key's bucket."""
    texts = [_json_values(column) for column in columns]
    inner = pc.binary_join_element_wise(*texts, ",") if texts else pa.array([""] * count, pa.string())
    listed = pc.binary_join_element_wise(pa.scalar("["), inner, pa.scalar("]"), "")
    bucket = buckets_of(slots_of(texts_of(columns, count)), buckets)
    return [listed, pa.array(bucket.astype(np.int32))]


def _json_values(column: pa.Array) -> pa.Array:
    """Each value as JSON text, by distinct value: text needs escaping that only an encoder does right."""
    encoded = column.dictionary_encode(null_encoding="encode")
    texts = [msgspec.json.encode(_NO_JSON.get(repr(value), value)).decode() for value in encoded.dictionary.to_pylist()]
    return pa.array(texts, pa.string()).take(encoded.indices)
