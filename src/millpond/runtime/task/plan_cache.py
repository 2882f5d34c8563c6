"""Plan cache: a plan is encoded once for the tasks of all epochs and decoded once by each reused worker.

The plan of a thousand queries is most of a task's size. Decoded plans are cached by their bytes, together with
derived values (ids of measures, filters of groups). A new worker has to decode the plan, but is otherwise equal.
Values of parameters and of the clock travel apart from the plan, and are put into it in the worker.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Generic, NamedTuple, TypeVar

import msgspec
import pyarrow as pa

from millpond.model.expressions import Literal
from millpond.plan.groups.build import build_plan
from millpond.plan.groups.plan import Plan
from millpond.plan.options.live_parameters import with_parameters
from millpond.runtime.task.task_values import FoldTask, GatherTask

_NO_PLAN = build_plan(())
_encoder, _decoder = msgspec.msgpack.Encoder(), msgspec.msgpack.Decoder(Plan)


Task = TypeVar("Task", GatherTask, FoldTask)


@dataclass(frozen=True)
class PackedTask(Generic[Task]):
    """A task without its plan, and the plan as compressed bytes; `size`: its bytes before compression."""

    task: Task
    size: int
    plan: bytes


class _EncodedPlan(NamedTuple):
    plan: Plan
    size: int
    data: bytes


_newest = _EncodedPlan(_NO_PLAN, 0, b"")
"""The plan encoded last; both tasks of all epochs have the same plan until a change."""


def pack_task(task: Task) -> PackedTask[Task]:
    """The serializable form of a task."""
    global _newest
    newest = _newest
    if newest.plan is not task.plan or not newest.size:
        encoded = _encoder.encode(task.plan)
        newest = _newest = _EncodedPlan(task.plan, len(encoded), pa.compress(encoded, "lz4", asbytes=True))
    return PackedTask(msgspec.structs.replace(task, plan=_NO_PLAN), newest.size, newest.data)


def unpack_task(packed: PackedTask[Task]) -> Task:
    """Restores a task in a worker, with the values of its parameters in the plan."""
    values = tuple(sorted(packed.task.parameters.items()))
    return msgspec.structs.replace(packed.task, plan=_plan_with_values(packed.size, packed.plan, values))


@lru_cache(2)
def _plan_with_values(size: int, data: bytes, values: tuple[tuple[str, Literal], ...]) -> Plan:
    return with_parameters(_plan_of(size, data), dict(values))


@lru_cache(2)
def _plan_of(size: int, data: bytes) -> Plan:
    return _decoder.decode(pa.decompress(data, size, "lz4", asbytes=True))
