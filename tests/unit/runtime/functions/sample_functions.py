"""Functions as users write them, good and bad ones; a child process imports this module by its name."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from datetime import timedelta
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa

NO_FUNCTION = 7


def median(values: pa.Array) -> float:
    return float(np.median(values.to_numpy(zero_copy_only=False)))


def median_of_numpy(values: np.ndarray) -> np.float64:
    return np.median(values)


def median_of_polars(values: Any) -> float:
    return values.median()


def weighted(values: pa.Array, weights: pa.Array) -> float:
    return float(np.dot(values.to_numpy(), weights.to_numpy()))


def naps(values: pa.Array) -> float:
    time.sleep(0.05)
    return 1.0


def process(values: pa.Array) -> int:
    return os.getpid()


_LEAKED: list[bytes] = []


def leaks(values: pa.Array) -> int:
    _LEAKED.append(bytes(20 << 20))
    return os.getpid()


def is_killed(values: pa.Array) -> int:
    """As by a system without memory, in the third call of a process."""
    _LEAKED.append(b"")
    if len(_LEAKED) == 8:  # a call is for three keys
        os.kill(os.getpid(), signal.SIGKILL)
    return os.getpid()


def talks(values: pa.Array) -> float:
    print("hello", flush=True)
    os.write(1, b"hello from below\n")
    sys.stderr.write("x" * 300_000)
    return 1.0 if sys.stdin.read() == "" else 0.0


def starts_another(values: pa.Array) -> float:
    subprocess.Popen(["sleep", "60"])
    os._exit(4)


def longest(values: pa.Array) -> str | None:
    texts = [text for text in values.to_pylist() if text is not None]
    return max(texts, key=len, default=None)


def exact(values: pa.Array) -> Decimal:
    return sum(values.to_pylist(), Decimal(0))


def latest(values: pa.Array) -> Any:
    return pa.scalar(max(values.to_pylist()), values.type)


# what each does, it does for the key whose first value is 3


def raises(values: pa.Array) -> float:
    if values[0].as_py() == 3:
        raise ValueError("three\nis too many")
    return 1.0


def hangs(values: pa.Array) -> float:
    while values[0].as_py() == 3:
        pass
    return 1.0


def sleeps(values: pa.Array) -> float:
    time.sleep(600 if values[0].as_py() == 3 else 0)
    return 1.0


def leaves(values: pa.Array) -> float:
    if values[0].as_py() == 3:
        sys.stderr.write("so long\n")
        os._exit(5)
    return 1.0


def quits(values: pa.Array) -> float:
    if values[0].as_py() == 3:
        sys.exit(1)
    return 1.0


def crashes(values: pa.Array) -> float:
    if values[0].as_py() == 3:
        ctypes.string_at(0)
    return 1.0


def hoards(values: pa.Array) -> float:
    return float(len(bytearray(1 << 30))) if values[0].as_py() == 3 else 1.0


def hoards_numpy(values: pa.Array) -> float:
    return float(np.ones(1 << 27).sum()) if values[0].as_py() == 3 else 1.0


def wrong_type(values: pa.Array) -> Any:
    return "three" if values[0].as_py() == 3 else 1.0


def tells_truth(values: pa.Array) -> bool:
    return True


def sums(table: pa.Table) -> np.ndarray:
    return np.bincount(table["key"].to_numpy(), table["value"].to_numpy())


def sums_backwards(table: pa.Table) -> pa.Table:
    found = sums(table)
    return pa.table({"key": np.arange(len(found))[::-1], "sum": found[::-1]})


def names(table: pa.Table) -> pa.Array:
    return pa.array([" ".join(table.column_names)] * (table["key"].to_numpy().max() + 1))


def too_few(table: pa.Table) -> np.ndarray:
    return sums(table)[1:]


def key_twice(table: pa.Table) -> pa.Table:
    found = sums(table)
    return pa.table({"key": np.zeros(len(found), int), "sum": found})


def texts(table: pa.Table) -> pa.Array:
    return pa.array([str(value) for value in sums(table)])


def no_column(table: pa.Table) -> int:
    return 1


class Mean:
    def create(self, count: int) -> pa.Table:
        return pa.table({"sum": np.zeros(count), "n": np.zeros(count, np.int64)})

    def update(self, state: pa.Table, keys: pa.Array, batch: pa.Table) -> pa.Table:
        at, rows = keys.to_numpy(), state.num_rows
        more = pa.table({"sum": np.bincount(at, batch["value"].to_numpy(), rows), "n": np.bincount(at, minlength=rows)})
        return self.merge(state, more)

    def merge(self, left: pa.Table, right: pa.Table) -> pa.Table:
        return pa.table({name: left[name].to_numpy() + right[name].to_numpy() for name in left.column_names})

    def finish(self, state: pa.Table) -> np.ndarray:
        return state["sum"].to_numpy() / state["n"].to_numpy()


class Joined:
    """Values in their order as a text: merging is associative, but never commutes."""

    def create(self, count: int) -> pa.Table:
        return pa.table({"text": [""] * count})

    def update(self, state: pa.Table, keys: pa.Array, batch: pa.Table) -> pa.Table:
        found = state["text"].to_pylist()
        for key, value in zip(keys.to_pylist(), batch.column(0).to_pylist(), strict=True):
            found[key] += "-," if value is None else f"{value:g},"
        return pa.table({"text": found})

    def merge(self, left: pa.Table, right: pa.Table) -> pa.Table:
        pairs = zip(left["text"].to_pylist(), right["text"].to_pylist(), strict=True)
        return pa.table({"text": [one + other for one, other in pairs]})

    def finish(self, state: pa.Table) -> pa.Array:
        return state["text"].combine_chunks()


class ShrinkingState(Mean):
    def update(self, state: pa.Table, keys: pa.Array, batch: pa.Table) -> pa.Table:
        return super().update(state, keys, batch)[1:]


class OtherState(Mean):
    def update(self, state: pa.Table, keys: pa.Array, batch: pa.Table) -> pa.Table:
        return super().update(state, keys, batch).select(["n"])


class Unfinished:
    def create(self, count: int) -> pa.Table:
        return pa.table({})


def joined(values: pa.Array) -> str:
    return "".join("-," if value is None else f"{value:g}," for value in values.to_pylist())


def joined_all(table: pa.Table) -> pa.Array:
    found: dict[int, str] = {}
    for key, value in zip(table["key"].to_pylist(), table["value"].to_pylist(), strict=True):
        found[key] = found.get(key, "") + ("-," if value is None else f"{value:g},")
    return pa.array([found[key] for key in range(len(found))])


def streak_event(state: dict[str, Any] | None, time: Any, approved: bool | None, amount: float | None) -> Any:
    """Three declines in a row, then an approval; a timer of ten seconds after a decline gives up. Returns rows, state.
    """
    second = timedelta(seconds=1)
    state = state or {"declines": 0, "amounts": [], "seen": [], "timer": None}
    if not approved:
        seen = dict(state["seen"])
        seen[str(approved)] = seen.get(str(approved), 0) + 1
        amounts = [*state["amounts"], amount]
        kept = {"declines": state["declines"] + 1, "amounts": amounts, "seen": sorted(seen.items())}
        return [], {**kept, "timer": time + 10 * second}
    if state["declines"] >= 2:
        return [{"what": "approved", "declines": state["declines"], "amounts": state["amounts"]}], None
    return [], None


def streak_timer(state: dict[str, Any], time: Any) -> Any:
    row = {"what": "gave up", "declines": state["declines"], "amounts": state["amounts"]}
    if state["declines"] % 2:
        return [row], {**state, "declines": state["declines"] + 1, "timer": time + timedelta(seconds=10)}
    return [row], None


class Streaks:
    """A processor that calls the functions above for each event; with timers, lists and maps."""

    timers = True

    def process(self, events: pa.Table, state: pa.Table) -> tuple[pa.Table, pa.Table]:
        states, rows = self._states(state), []
        for event in events.to_pylist():
            made, states[event["key"]] = streak_event(
                states[event["key"]], event["time"], event["approved"], event["amount"]
            )
            rows += [{"key": event["key"], "time": event["time"], **row} for row in made]
        return self._tables(rows, states, state.schema)

    def timer(self, timers: pa.Table, state: pa.Table) -> tuple[pa.Table, pa.Table]:
        states, rows = self._states(state), []
        for due in timers.to_pylist():
            made, states[due["key"]] = streak_timer(states[due["key"]], due["time"])
            rows += [{"key": due["key"], "time": due["time"], **row} for row in made]
        return self._tables(rows, states, state.schema)

    def _states(self, state: pa.Table) -> list[dict[str, Any] | None]:
        return [None if one["declines"] is None else one for one in state.to_pylist()]

    def _tables(self, rows: list[Any], states: list[Any], schema: pa.Schema) -> tuple[pa.Table, pa.Table]:
        fields = [("key", pa.int64()), ("time", pa.timestamp("us", "UTC")), ("what", pa.string()),
                  ("declines", pa.int64()), ("amounts", pa.list_(pa.float64()))]  # fmt: skip
        plain = [{name: None if one is None else one.get(name) for name in schema.names} for one in states]
        return pa.Table.from_pylist(rows, schema=pa.schema(fields)), pa.Table.from_pylist(plain, schema=schema)


class PlainStreaks(Streaks):
    """The same without timers."""

    def process(self, events: pa.Table, state: pa.Table) -> tuple[pa.Table, pa.Table]:
        no_timers = pa.nulls(len(state), pa.timestamp("us", "UTC"))
        rows, states = super().process(events, state.append_column("timer", no_timers))
        return rows, states.drop_columns(["timer"])


class Totals:
    """A processor without a loop: the running total of each key, one row per event."""

    def process(self, events: pa.Table, state: pa.Table) -> tuple[pa.Table, pa.Table]:
        keys, amounts = events["key"].to_numpy(), events["amount"].fill_null(0).to_numpy()
        totals, before = np.cumsum(amounts), np.searchsorted(keys, np.arange(len(state)))
        known = state["total"].fill_null(0).to_numpy()
        running = totals - np.concatenate([[0], totals])[before][keys] + known[keys]
        rows = pa.table({"key": events["key"], "time": events["time"], "total": running})
        return rows, pa.table({"total": running[np.searchsorted(keys, np.arange(len(state)), "right") - 1]})


class Raises(Streaks):
    def process(self, events: pa.Table, state: pa.Table) -> tuple[pa.Table, pa.Table]:
        raise ValueError("no")


class WrongRows(Streaks):
    def process(self, events: pa.Table, state: pa.Table) -> tuple[pa.Table, pa.Table]:
        return events.select(["key", "time"]), state


class WrongCount(Streaks):
    def process(self, events: pa.Table, state: pa.Table) -> Any:
        return None, state.slice(1)


class EarlyTimer(Streaks):
    def process(self, events: pa.Table, state: pa.Table) -> Any:
        at = state.schema.get_field_index("timer")
        soon = pa.array([events["time"][0].as_py()] * len(state), pa.timestamp("us", "UTC"))
        return None, state.set_column(at, "timer", soon)


class WrongTime(Streaks):
    def process(self, events: pa.Table, state: pa.Table) -> Any:
        rows, _ = self._tables(
            [{"key": 0, "time": events["time"][0].as_py() - timedelta(days=1)}], [None] * len(state), state.schema
        )
        return rows, state


class CallCounter(PlainStreaks):
    """Wrong: its rows depend on how the events are cut into calls."""

    def process(self, events: pa.Table, state: pa.Table) -> Any:
        row = {"key": len(state) - 1, "time": events["time"][-1].as_py(), "what": "call"}
        return self._tables([row], [None] * len(state), state.schema)


class NoPair(Streaks):
    def process(self, events: pa.Table, state: pa.Table) -> Any:
        return state
