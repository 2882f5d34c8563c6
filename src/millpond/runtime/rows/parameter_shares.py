"""Parameters that query rows set: what the rows of one instance give to a parameter."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millpond.model.expressions import Literal, is_list, literal
from millpond.plan.chains.parameter_feeds import Feed, Share, fed_type
from millpond.plan.options.live_parameters import MOST_MEMBERS
from millpond.runtime.packets.row_batches import row_column


def share_of(feed: Feed, batches: Sequence[pa.RecordBatch]) -> Share | None:
    """The value that one instance's rows of a query give a parameter: the newest time and the values at it, as texts.

    NULL and NaN are ignored. Of several values at the newest time, a parameter that is no list takes the largest. The
    values are None if there are more than `MOST_MEMBERS`; the result is None if there are no rows.
    """
    rows = [batch for batch in batches if batch.num_rows]
    if not rows:
        return None
    times = np.concatenate([np.asarray(row_column(batch, feed.time).cast(pa.int64())) for batch in rows])
    values = pa.concat_arrays([batch.column(feed.column) for batch in rows])
    newest = values.filter(pa.array(times == times.max())).unique().drop_null()
    if pa.types.is_floating(newest.type):
        newest = newest.filter(pc.invert(pc.is_nan(newest)))
    kind = fed_type(Literal(None, feed.kind))
    if not is_list(feed.kind) and len(newest):
        newest = pa.array([max(newest.to_pylist())], newest.type)
    if len(newest) > MOST_MEMBERS:
        return int(times.max()), None
    return int(times.max()), [str(literal(value, kind).text) for value in newest.to_pylist()]
