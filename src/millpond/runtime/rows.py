"""Result rows of one query from the blocks of its closing windows: aggregates finished, HAVING, outputs."""

from __future__ import annotations

from collections.abc import Sequence

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
from millpond.runtime.columns import ARROW_TYPES, Values, from_arrow, to_arrow
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
    return ARROW_WINDOW if kind == WINDOW else ARROW_TYPES[kind]


def rows_of_block(
    group: GroupPlan,
    plan: QueryPlan,
    block: Block,
    windows: Sequence[Closing],
    keys: KeyDictionary,
    buckets: int,
) -> pa.RecordBatch | None:
    """The query's rows for some windows and the slots of one block, or None for none.

    Raises:
        OverflowedError: an exact sum, or an output expression, leaves its SQL type.
    """
    presence = f"{group.measures[plan.presence].id}:n"
    found = [np.flatnonzero(block.window(presence, window) > 0) for window in windows]
    count = sum(len(rows) for rows in found)
    if not count:
        return None
    columns = _measured(group, plan, block, windows, found)
    ends = np.repeat(np.array([window.end_us for window in windows]), [len(rows) for rows in found])
    slots = np.concatenate(found) + block.first
    inputs = _inputs(group, plan, columns, ends, count)
    having = plan.query.having
    if having is not None:
        inputs.update(_key_values(group, slots, keys))
        held = Evaluator(inputs, count)
        kept = np.flatnonzero(np.broadcast_to(_checked(plan, held(having)).is_true(), (count,)))
        if not len(kept):
            return None
        slots, ends, count = slots[kept], ends[kept], len(kept)
        inputs = {name: _taken(values, kept) for name, values in inputs.items()}
    else:
        inputs.update(_key_values(group, slots, keys))
    return _outputs(plan, inputs, slots, ends, count, keys, buckets)


def _measured(
    group: GroupPlan, plan: QueryPlan, block: Block, windows: Sequence[Closing], found: Sequence[Ints]
) -> dict[str, Ints]:
    wanted = {group.measures[i].id for measures in plan.measures for i in measures}
    names = [name for name in (*block.columns, *block.extremes) if name.partition(":")[0] in wanted]
    return {
        name: np.concatenate(
            [block.window(name, window, rows) for window, rows in zip(windows, found, strict=True)]
        )
        for name in names
    }


def _inputs(
    group: GroupPlan, plan: QueryPlan, columns: dict[str, Ints], ends: Ints, count: int
) -> dict[str, Values]:
    inputs = {"window.end": Values(ends), "window.start": Values(ends - plan.query.window.size_us)}
    inputs["window.time"] = Values(ends - 1)
    for i, (aggregate, places) in enumerate(zip(plan.query.aggregates, plan.measures, strict=True)):
        measures = [group.measures[place] for place in places]
        missing = {f"{measures[-1].id}:n": np.zeros(count, np.int64)}
        values = finish(aggregate, measures, missing | columns, count)
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
    count: int,
    keys: KeyDictionary,
    buckets: int,
) -> pa.RecordBatch:
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
