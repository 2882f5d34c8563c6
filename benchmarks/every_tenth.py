"""The processors of `processors.py` and `spike.py`, in a module that the child processes of a pond import."""

from __future__ import annotations

from time import sleep

import numpy as np
import pyarrow as pa


class EveryTenth:
    """A row with number and total of the payments of a customer, at every tenth one."""

    def process(self, events: pa.Table, state: pa.Table) -> tuple[pa.Table, pa.Table]:
        keys, amounts = events["key"].to_numpy(), events["amount"].to_numpy()
        first = np.searchsorted(keys, np.arange(len(state)))
        sums = np.concatenate([[0.0], np.cumsum(amounts)])
        number = state["n"].fill_null(0).to_numpy()[keys] + np.arange(len(keys)) - first[keys] + 1
        total = state["total"].fill_null(0).to_numpy()[keys] + sums[1:] - sums[first[keys]]
        at, last = np.flatnonzero(number % 10 == 0), np.searchsorted(keys, np.arange(len(state)), "right") - 1
        rows = pa.table({"key": keys[at], "time": events["time"].take(at), "n": number[at], "total": total[at]})
        return rows, pa.table({"n": number[last], "total": total[last]})


class SlowTenth(EveryTenth):
    """Sleeps `EVENT_S` per event, so its load does not depend on cores."""

    EVENT_S = 200e-6

    def process(self, events: pa.Table, state: pa.Table) -> tuple[pa.Table, pa.Table]:
        sleep(len(events) * self.EVENT_S)
        return super().process(events, state)
