"""Events that are taken by position or by mask are those of plain lists."""

from itertools import product

import numpy as np
import pyarrow as pa

from millpond.state.layout.event_log import Events


def test_taken_events_are_those_at_the_positions() -> None:
    for rows in range(5):
        numbers = np.arange(rows)
        texts = pa.array(map(str, range(rows)), pa.string())
        events = Events(numbers, numbers * 10, numbers.astype(np.int8), {"v:1": texts})
        places = [list(chosen) for size in {0, 2, rows} for chosen in product(range(rows), repeat=size)]
        masks = [list(mask) for mask in product((False, True), repeat=rows)]
        cases = [(np.array(chosen, np.int64), chosen) for chosen in places]
        cases += [(np.array(mask, bool), [i for i in range(rows) if mask[i]]) for mask in masks]
        for chosen, expected in cases:
            found = events.take(chosen)
            assert (found.slots.tolist(), found.times_us.tolist()) == (expected, [10 * i for i in expected])
            assert (found.late_class.tolist(), found.columns["v:1"].to_pylist()) == (expected, [*map(str, expected)])
