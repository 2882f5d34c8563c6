"""Parameters set by query rows: the values that an instance writes, and the values in force according to the log."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millpond.log.manifest import Manifest
from millpond.log.records import Receipt
from millpond.model.expressions import Literal, is_list, literal
from millpond.plan.chains.parameter_feeds import Fed, Share, fed_type, merged, value_of
from millpond.plan.options.live_parameters import MOST_MEMBERS
from millpond.runtime.inputs.upstream_rows import row_column


def share_of(fed: Fed, batches: Sequence[pa.RecordBatch]) -> Share | None:
    """The value that one instance's rows of a query give a parameter: the newest time and the values at it, as texts.

    NULL and NaN are ignored. Of several values at the newest time, a parameter that is no list takes the largest. The
    values are None if there are more than `MOST_MEMBERS`; the result is None if there are no rows.
    """
    rows = [batch for batch in batches if batch.num_rows]
    if not rows:
        return None
    times = np.concatenate([np.asarray(row_column(batch, fed.time).cast(pa.int64())) for batch in rows])
    values = pa.concat_arrays([batch.column(fed.column) for batch in rows])
    newest = values.filter(pa.array(times == times.max())).unique().drop_null()
    if pa.types.is_floating(newest.type):
        newest = newest.filter(pc.invert(pc.is_nan(newest)))
    kind = fed_type(Literal(None, fed.kind))
    if not is_list(fed.kind) and len(newest):
        newest = pa.array([max(newest.to_pylist())], newest.type)
    if len(newest) > MOST_MEMBERS:
        return int(times.max()), None
    return int(times.max()), [str(literal(value, kind).text) for value in newest.to_pylist()]


def fed_values(feeds: Iterable[Fed], manifest: Manifest) -> dict[str, Literal]:
    """The current values of fed parameters according to the log; parameters without any rows so far are left out."""
    known = {} if isinstance(manifest.fed, msgspec.UnsetType) else manifest.fed
    return {
        fed.name: msgspec.json.decode(known[fed.name].value, type=Literal)
        for fed in feeds
        if fed.name in known and known[fed.name].n > fed.n
    }


def told_by(
    feeds: Iterable[Fed], receipts: Iterable[Receipt], before: Mapping[str, Literal], counts: dict[str, dict[str, int]]
) -> dict[str, str]:
    """The parameter values that an epoch's rows change, encoded for the record; `before`: the current values.

    A list that is too long leaves the value unchanged, and is counted as `feed_too_long` of its query in `counts`.
    """
    shares: dict[str, Share] = {}
    for receipt in receipts:
        for name, share in receipt.fed.items():
            shares[name] = merged(shares.get(name), share)
    told = {}
    for fed in feeds:
        found = shares.get(fed.name)
        value = None if found is None else value_of(fed, found)
        too_many = value is not None and len(value.members or ()) > MOST_MEMBERS
        if too_many or (found is not None and found[1] is None):
            counted = counts.setdefault(fed.query, {})
            counted["feed_too_long"] = counted.get("feed_too_long", 0) + 1
        elif value is not None and value != before.get(fed.name):
            told[fed.name] = msgspec.json.encode(value).decode()
    return told

