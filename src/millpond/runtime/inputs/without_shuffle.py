"""A direct epoch: one task gathers a source partition and folds the instances that own its keys, without a shuffle.

What a task gathers for other instances, mostly packet headers, it shares with all tasks through a small file that
they wait for (Spark's own `BarrierTaskContext.allGather` sleeps for a second). Keys in an unexpected partition, and
groups with another key than the topic's, are exchanged in the same way. If that would be too much, no task folds, and
the epoch runs again with a shuffle. So results never depend on what the user declared about the topic.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from time import monotonic, sleep
from typing import NamedTuple

import msgspec
import numpy as np
import pyarrow as pa

from millpond.runtime.gather.gather import gather
from millpond.runtime.packets.packet import header_of
from millpond.runtime.task.column_layout import ReadLayout, column_name
from millpond.runtime.task.obstacle import Obstacle, ObstacleError
from millpond.runtime.task.task_values import GatherTask
from millpond.state.ports.files import Files

MOST_BYTES = 1 << 22
"""Bytes that all tasks together may share, as each task reads all of them."""

LEAST_BYTES = 1 << 16
"""Bytes that each task may share at least, however many tasks there are."""

PATIENCE = 10.0
"""Seconds that a task waits for the files of the others, plus a part that depends on its own gather."""

PATIENCE_PER_SECOND = 4.0
"""Further seconds of waiting per second of the task's own gather, as other tasks may have more to read."""

_FIRST_LOOK, _LONGEST_LOOK = 0.001, 0.02
"""First and longest interval in seconds between two looks for the files of others; it grows by half each time."""


class Route(NamedTuple):
    """How the tasks of a direct epoch exchange packets.

    `homes`: for each instance the topic partition that contains its keys, -1 for none. `most`: bytes that a task may
    share with the others. `job`: the unique name of the job. `tasks`: the number of tasks.
    """

    homes: tuple[int, ...]
    most: int
    job: str
    tasks: int


def message_bytes(tasks: int) -> int:
    """Bytes that each of `tasks` tasks may share with the others."""
    return max(MOST_BYTES // tasks, LEAST_BYTES)


class TaskMessage(msgspec.Struct):
    """The message of one task to all others.

    `partition`: the topic partition that it read, None if it read no event. `packets`: packets for instances of other
    tasks, each with its instances. `misplaced`: the number of keys that lie in another partition than their hash says,
    counted per chunk. `size`: bytes of the packets. `obstacle`: what the task's reader has met, if anything.
    """

    partition: int | None
    packets: list[tuple[list[int], bytes]]
    misplaced: int
    size: int
    obstacle: Obstacle | None = None


class GatherResult(NamedTuple):
    """The result of a task's gather: packets of the instances that it will fold, and its message to the others."""

    packets: Mapping[int, list[bytes]]
    message: TaskMessage


class FoldInput(NamedTuple):
    """The packets of the instances that this task folds, in order of instance, and the misplaced keys of all tasks."""

    packets: Mapping[int, list[pa.Buffer]]
    misplaced: int


def gather_direct(
    task: GatherTask, batches: Iterable[pa.RecordBatch], number: int, route: Route,
    rows: Iterable[tuple[int, bytes]] = (),
) -> GatherResult:  # fmt: skip
    """Gathers the events of task `number`; stops early at an obstacle, or with too many bytes for other tasks.

    `rows` are the packets of this task's part of the rows of queries.
    """
    try:
        return _gathered(task, batches, number, route, rows)
    except ObstacleError as error:
        return GatherResult({}, TaskMessage(None, [], 0, 0, error.obstacle))


def _gathered(
    task: GatherTask, batches: Iterable[pa.RecordBatch], number: int, route: Route, rows: Iterable[tuple[int, bytes]]
) -> GatherResult:
    read: list[pa.RecordBatch] = []
    unread, partition = iter(batches), None
    for batch in unread:
        read.append(batch)
        partition = _partition_of(task.layout, batch)
        if partition is not None:
            break
    spread = {group.id for group in task.plan.groups if group.spread_by is not None}
    own_packets: dict[int, list[bytes]] = {}
    instances_of: dict[bytes, list[int]] = {}
    size = misplaced = 0
    events = gather(task, chain(read, unread), number if partition is None else partition)
    for instance, packet in chain(events, rows):
        if partition is not None and route.homes[instance] == partition:
            own_packets.setdefault(instance, []).append(packet)
            continue
        if packet not in instances_of:
            size += len(packet)
            misplaced += _keys_of(spread, packet)
        instances_of.setdefault(packet, []).append(instance)
        if size > route.most:
            return GatherResult({}, TaskMessage(partition, [], misplaced, size))
    packets = [(instances, packet) for packet, instances in instances_of.items()]
    return GatherResult(own_packets, TaskMessage(partition, packets, misplaced, size))


def packets_to_fold(
    messages: Sequence[TaskMessage], number: int, own_packets: Mapping[int, list[bytes]], route: Route
) -> FoldInput | Obstacle:
    """The packets that task `number` folds; `messages`: the messages of all tasks, in their order.

    All tasks decide alike: either every task folds, or every task returns `Obstacle`.
    """
    met = next((message.obstacle for message in messages if message.obstacle is not None), None)
    if met is not None:
        return met
    partitions = [message.partition for message in messages if message.partition is not None]
    misplaced = sum(message.misplaced for message in messages)
    largest = max(message.size for message in messages)
    if largest > route.most:
        keys = f", {misplaced:,} keys or more lie in another partition than their hash says" if misplaced else ""
        limit = f"which is more than {route.most:,}"
        return Obstacle(f"a task had {largest:,} bytes for instances of others, {limit}{keys}")
    if len({*partitions}) < len(partitions):
        return Obstacle("two tasks read one partition of the topic")
    readers = {message.partition: task for task, message in enumerate(messages) if message.partition is not None}
    own = [i for i, home in enumerate(route.homes) if readers.get(home, i % len(messages)) == number]
    packets = {instance: [pa.py_buffer(packet) for packet in own_packets.get(instance, ())] for instance in own}
    for message in messages:
        for instances, packet in message.packets:
            for instance in instances:
                if instance in packets:
                    packets[instance].append(pa.py_buffer(packet))
    return FoldInput(packets, misplaced)


def message_files(number: int, job: str, tasks: int) -> list[str]:
    """The message files of the tasks of a job, beside the deltas of record `number`; pruning deletes leftover files."""
    return [f"delta/{number:020d}/{task}-message-{job}" for task in range(tasks)]


def send_message(files: Files, file: str, message: TaskMessage) -> None:
    """Writes the message of a task for the other tasks of the job."""
    files.write_message(file, msgspec.msgpack.encode(message))


def read_messages(files: Files, names: Sequence[str], gathered_seconds: float = 0.0) -> list[TaskMessage] | Obstacle:
    """Waits for the messages of all tasks, and returns them in the order of the tasks.

    `gathered_seconds`: how long the caller's own gather took, which extends the wait. Spark ends all tasks of a barrier
    stage when one fails. So the wait times out only if files do not reach another host in time.
    """
    patience = PATIENCE + PATIENCE_PER_SECOND * gathered_seconds
    messages: dict[str, TaskMessage] = {}
    deadline, interval = monotonic() + patience, _FIRST_LOOK
    while True:
        missing = [name for name in names if name not in messages]
        for name, data in zip(missing, files.read_messages(missing), strict=True):
            if data is not None:
                messages[name] = msgspec.msgpack.decode(data, type=TaskMessage)
        if len(messages) == len(names):
            return [messages[name] for name in names]
        if monotonic() > deadline:
            count = len(names) - len(messages)
            return Obstacle(f"{count} of {len(names)} tasks sent no message for {patience:.0f} seconds")
        sleep(interval)
        interval = min(1.5 * interval, _LONGEST_LOOK)


def _keys_of(groups: set[str], packet: bytes) -> int:
    """The number of keys in a packet that belong to groups keyed by the topic's key."""
    return max((part.keys for part in header_of(packet).groups if part.group in groups), default=0)


def _partition_of(layout: ReadLayout, batch: pa.RecordBatch) -> int | None:
    """The topic partition of the first event of a batch; None if the batch has no event."""
    positions = np.asarray(batch.column(0))
    events = np.flatnonzero(positions >= 0)
    if not len(events):
        return None
    position = int(positions[events[0]])
    stream = layout.streams[position]
    place = next(place for place, one in enumerate(stream.columns) if one.name == stream.partition)
    column = batch.column(column_name(position, place) if layout.texts else stream.columns[place].position)
    name: str = column[int(events[0])].as_py()
    return int(name.rpartition("-")[2])
