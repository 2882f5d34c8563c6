"""A small epoch in one task: it gathers all events, and folds all instances one after the other, without a shuffle."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import pyarrow as pa

from millpond.log.records import Receipt
from millpond.runtime.fold.fold import fold
from millpond.runtime.gather.gather import gather_source
from millpond.runtime.inputs.replay import gather_stored, stored_parts
from millpond.runtime.task.counters import BYTES_MOVED
from millpond.runtime.task.numa import on_node_of
from millpond.runtime.task.obstacle import Obstacle, ObstacleError
from millpond.runtime.task.task_values import FoldTask, GatherTask
from millpond.state.ports.files import Files


class GatherInput(NamedTuple):
    """Events in the layout of `task`; they are gathered like those of one source partition."""

    task: GatherTask
    batches: Iterable[pa.RecordBatch]


def fold_in_one_task(
    inputs: Sequence[GatherInput], folding: FoldTask, attempt: str, files: Files
) -> list[tuple[Receipt, bytes]] | Obstacle:
    """The receipt and delta of each instance; or what a reader of events has met, and then no instance has folded.

    Raises:
        CorruptError: a section cannot be read.
        FilesLostError: a store that carries files has lost some of them.
    """
    packets: list[list[pa.Buffer]] = [[] for _ in range(folding.instances)]
    try:
        for instance, packet in _gathered(inputs, files):
            packets[instance].append(pa.py_buffer(packet))
    except ObstacleError as error:
        return error.obstacle
    deltas = []
    for instance, own in enumerate(packets):
        with on_node_of(instance):
            receipt, body = fold(folding, instance, own, attempt, files)
        receipt.counts[BYTES_MOVED] = 0
        deltas.append((receipt, body))
    return deltas


def _gathered(inputs: Sequence[GatherInput], files: Files) -> Iterator[tuple[int, bytes]]:
    """The packets of the events, and of the rows of queries that are events of this epoch, with their instances."""
    for number, (task, batches) in enumerate(inputs):
        yield from gather_source(task, batches, number)
    task = inputs[0].task
    for part in range(stored_parts(task)):
        yield from gather_stored(task, part, files)
