"""N windows as a dataflow of Bytewax under measurement; runs in Bytewax's own environment.

`BYTEWAX_SPEC` names a file of JSON like that of `pond_child.py`, of which the last pass is run; there is nothing to
warm. Its clock is that of the events: each customer's windows close when a later event of that customer arrives, or at
the end. Each process counts the events that it has read, and ends when the pass has had its seconds.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import bytewax.operators as op
import pyarrow.parquet as pq
from bytewax.dataflow import Dataflow
from bytewax.inputs import FixedPartitionedSource, StatefulSourcePartition
from bytewax.operators.windowing import EventClock, SlidingWindower, TumblingWindower, fold_window
from bytewax.outputs import DynamicSink, StatelessSinkPartition

EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
SPEC = json.loads(Path(os.environ["BYTEWAX_SPEC"]).read_text())["passes"][-1]
BATCH = 1000
COLUMNS = ["ts", "customer", "amount"]

Event = tuple[datetime, float]


def _say(mark: dict[str, Any]) -> None:
    """A line in one write, since two processes share the output."""
    os.write(1, f"@{json.dumps(mark)}\n".encode())


class _Part(StatefulSourcePartition[tuple[str, Event], int]):
    """One file; where it stands is the number of events read."""

    def __init__(self, path: Path, skipped: int | None) -> None:
        self._batches, self._read = self._events(path, skipped or 0), skipped or 0
        self._began = time.perf_counter()
        _say({"mark": "begin"})

    def next_batch(self) -> list[tuple[str, Event]]:
        if time.perf_counter() - self._began > SPEC["seconds"]:
            self._tell(False)
            os._exit(0)
        batch = next(self._batches)
        self._read += len(batch)
        return batch

    def snapshot(self) -> int:
        return self._read

    def close(self) -> None:
        self._tell(True)

    def _tell(self, whole: bool) -> None:
        mark = {"mark": "end", "events": self._read, "whole": whole, "state_bytes": None}
        _say(mark)

    @staticmethod
    def _events(path: Path, skipped: int) -> Iterator[list[tuple[str, Event]]]:
        for rows in pq.ParquetFile(path).iter_batches(BATCH, columns=COLUMNS):
            skipped -= len(rows)
            if skipped < 0:
                times, customers, amounts = (rows.column(name).to_pylist() for name in COLUMNS)
                yield list(zip(customers, zip(times, amounts, strict=True), strict=True))


class _Files(FixedPartitionedSource[tuple[str, Event], int]):
    """Every file of the folder, shared out among the processes."""

    def list_parts(self) -> list[str]:
        return sorted(path.name for path in Path(SPEC["source"]).glob("*.parquet"))

    def build_part(self, step_id: str, for_part: str, resume_state: int | None) -> _Part:
        return _Part(Path(SPEC["source"]) / for_part, resume_state)


class _Lines(StatelessSinkPartition[Any]):
    """Writes rows, or drops them."""

    def __init__(self, number: int, worker: int) -> None:
        self._file = None
        if SPEC["out"]:
            folder = Path(SPEC["out"]) / str(number)
            folder.mkdir(parents=True, exist_ok=True)
            self._file = (folder / f"{worker}.csv").open("w", encoding="utf-8")
        size, slide = SPEC["windows"][number]
        self._size, self._slide = size, slide

    def write_batch(self, items: list[Any]) -> None:
        if self._file is not None:
            for customer, (window, (n, s, m)) in items:
                # windows are numbered by their starts on the slide, from 1970 on
                self._file.write(f"{customer},{window * self._slide + self._size},{n},{s!r},{m!r}\n")

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


class _Sink(DynamicSink[Any]):
    def __init__(self, number: int) -> None:
        self._number = number

    def build(self, step_id: str, worker_index: int, worker_count: int) -> _Lines:
        return _Lines(self._number, worker_index)


def _none() -> list[float]:
    return [0, 0.0, float("-inf")]


def _add(kept: list[float], event: Event) -> list[float]:
    kept[0] += 1
    kept[1] += event[1]
    kept[2] = max(kept[2], event[1])
    return kept


def _merge(one: list[float], other: list[float]) -> list[float]:
    return [one[0] + other[0], one[1] + other[1], max(one[2], other[2])]


def _flow() -> Dataflow:
    flow = Dataflow("queries")
    events = op.input("events", flow, _Files())
    # a customer's events are in one file, in order of time
    clock = EventClock(
        ts_getter=lambda event: event[0],
        wait_for_system_duration=timedelta(0),
        now_getter=lambda: EPOCH,
        to_system_utc=lambda _: None,
    )
    for number, (size, slide) in enumerate(SPEC["windows"]):
        length = timedelta(seconds=size)
        windower = (
            TumblingWindower(length=length, align_to=EPOCH)
            if size == slide
            else SlidingWindower(length=length, offset=timedelta(seconds=slide), align_to=EPOCH)
        )
        found = fold_window(f"w{number}", events, clock, windower, _none, _add, _merge, ordered=False)
        op.output(f"o{number}", found.down, _Sink(number))
    return flow


flow = _flow()
