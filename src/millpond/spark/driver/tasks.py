"""Defines the functions that Spark's Python workers run, with Arrow batches in and out; `runtime` does the work."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import reduce
from time import monotonic
from typing import NamedTuple, TypeAlias

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import BarrierTaskContext, TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import BinaryType, IntegerType, StructField, StructType

from millpond.clock import now_us
from millpond.errors import CorruptError, MillpondError
from millpond.faults import reached
from millpond.log.records import Receipt
from millpond.model.expressions import Foreign
from millpond.model.join import Join
from millpond.model.query import Query
from millpond.model.selection import foreign_above, input_type
from millpond.plan.groups.plan import Plan
from millpond.runtime.fold.fold import fold, requested
from millpond.runtime.fold.one_task import GatherInput, fold_in_one_task
from millpond.runtime.gather.gather import gather_source
from millpond.runtime.inputs.file_parts import FileRows, FileTask
from millpond.runtime.inputs.read_files import read_delivered, read_files
from millpond.runtime.inputs.replay import gather_share, gather_stored, stored_parts
from millpond.runtime.inputs.without_shuffle import (
    FoldInput,
    Route,
    gather_direct,
    message_files,
    packets_to_fold,
    read_messages,
    send_message,
)
from millpond.runtime.rows.foreign_values import QUERY, REQUEST, EvaluatedValues, foreign_values
from millpond.runtime.rows.window_rows import result_type
from millpond.runtime.task.counters import BYTES_MOVED, in_receipt
from millpond.runtime.task.file_sync import OpenFiles
from millpond.runtime.task.numa import on_node_of
from millpond.runtime.task.obstacle import (
    Obstacle,
    ObstacleError,
    decode_obstacle,
    encode_obstacle,
    obstacle_in,
    packets_or_obstacle,
)
from millpond.runtime.task.plan_cache import pack_task, unpack_task
from millpond.runtime.task.task_values import FoldTask, GatherTask
from millpond.spans import Spans
from millpond.spark.session.arrow_rows import ArrowRows
from millpond.spark.session.worker import VersionChecked, worker_task

DIRECT, MISPLACED = in_receipt("direct"), in_receipt("misplaced")
"""Names of a direct epoch's counts: 1 for the epoch itself, and the number of misplaced keys."""

_PACKET = "packet"

NOTHING_READ = Obstacle("nothing was read")
"""The result if no partition had a record: nothing was gathered or folded."""

EVALUATED_ABOVE = "Spark evaluates expressions over results"
"""Why an epoch cannot be direct if the plan has such expressions."""

Evaluate: TypeAlias = Callable[[DataFrame, Sequence[Foreign]], ArrowRows]
"""Returns rows with the values of expressions in place of their inputs."""

PACKETS = StructType([StructField("instance", IntegerType()), StructField(_PACKET, BinaryType())])
DELTAS = StructType([StructField("receipt", BinaryType()), StructField("body", BinaryType())])


class _Gather(VersionChecked):
    """Turns the events of one source partition into packets."""

    def __init__(self, task: GatherTask) -> None:
        self._packed = pack_task(task)

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with worker_task():
            task = unpack_task(self._packed)
            packets = gather_source(task, self._events(batches), _context().partitionId())
            for instance, packet in packets_or_obstacle(packets, task.instances):
                yield _rows(instance, packet)

    def _events(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return batches


class _GatherFiles(_Gather):
    """Reads files, and turns their events into packets; the input rows of a task are the numbers of its parts."""

    def __init__(self, task: GatherTask, files: FileTask) -> None:
        super().__init__(task)
        self._files = files

    def _events(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return read_files(self._files, [part for batch in batches for part in batch.column(0).to_pylist()])


class _GatherDelivered(_GatherFiles):
    """The same for files of which Spark delivers the content; the input rows are their paths and contents."""

    def _events(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return read_delivered(self._files, batches)


class _GatherOthers(_Gather):
    """Turns the events of a frame without the sources of some files into packets."""

    def __init__(self, task: GatherTask, files: FileTask) -> None:
        super().__init__(task)
        self._left_out = files.sources

    def _events(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return _without(batches, self._left_out)


def _without(batches: Iterable[pa.RecordBatch], sources: Sequence[FileRows]) -> Iterator[pa.RecordBatch]:
    """Batches of a frame that has no rows of some sources.

    Raises:
        ObstacleError: the frame has such rows. So no event is read twice, whatever Spark's plan was.
    """
    for batch in batches:
        for rows in sources:
            if pc.index(batch.column(0), rows.stream).as_py() >= 0:
                raise ObstacleError(Obstacle("Spark's rows of other streams contain rows of this one", rows.source))
        yield batch


_ROW_BYTES = 1 << 14


def _rows(instance: int, packet: bytes) -> pa.RecordBatch:
    """A packet as one row, followed by empty rows in proportion to its size.

    The empty rows bound the bytes of a batch, because Spark may limit batches by rows only
    (`spark.session.batch_limits`).
    """
    more = len(packet) // _ROW_BYTES
    columns = [pa.array([instance] * (1 + more), pa.int32()), pa.array([packet, *[None] * more], pa.binary())]
    return pa.RecordBatch.from_arrays(columns, names=["instance", "packet"])


class _GatherStored(VersionChecked):
    """Turns rows of queries and retained events into packets; the input rows of a task are the numbers of its parts."""

    def __init__(self, task: GatherTask, open_files: OpenFiles) -> None:
        self._packed, self._open_files = pack_task(task), open_files

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with worker_task():
            files, task = self._open_files(), unpack_task(self._packed)
            for part in (part for batch in batches for part in batch.column(0).to_pylist()):
                for instance, packet in gather_stored(task, part, files):
                    yield _rows(instance, packet)


class _Fold(VersionChecked):
    """Folds the packets of one instance into its receipt and delta."""

    def __init__(self, task: FoldTask, open_files: OpenFiles) -> None:
        self._packed, self._open_files = pack_task(task), open_files

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with worker_task():
            began_us = now_us()
            packets = [packet.as_buffer() for batch in batches for packet in batch.column(1).drop_null()]
            delta = self._folded(packets, began_us)
        yield delta

    def _folded(self, packets: Sequence[pa.Buffer], began_us: int) -> pa.RecordBatch:
        """The receipt and delta of the task's instance; or an obstacle, without a receipt.

        `began_us`: when the task began to wait for the packets.
        """
        spans = Spans(f"fold {_context().partitionId()}")
        spans.add("wait for packets", began_us)
        obstacle = obstacle_in(packets)
        if obstacle is not None:
            return _deltas([(b"", encode_obstacle(obstacle))])
        context, task = _context(), unpack_task(self._packed)
        # The application-wide id is used, because attempt numbers restart when the same driver reruns a batch.
        attempt = f"{task.writer}-{context.taskAttemptId()}"
        instance = context.partitionId()
        with on_node_of(instance):
            receipt, body = fold(task, instance, packets, attempt, self._open_files())
        receipt = msgspec.structs.replace(receipt, spans=(*receipt.spans, *spans.take()))
        return _deltas([(msgspec.json.encode(receipt), body)])


class Requested(NamedTuple):
    """An expression that Spark evaluates for results, and the SQL types of its inputs."""

    value: Foreign
    inputs: tuple[str, ...]

    @property
    def ddl(self) -> str:
        """The column of its inputs."""
        fields = ", ".join(f"c{place}: {kind}" for place, kind in enumerate(self.inputs or ("boolean",)))
        return f"{self.value.name} struct<{fields}>"

    @property
    def arrow(self) -> pa.DataType:
        """The type of the column of its inputs."""
        return pa.struct([(f"c{place}", result_type(kind)) for place, kind in enumerate(self.inputs or ("boolean",))])


def expressions_above(plan: Plan) -> tuple[Requested, ...]:
    """The distinct expressions over results that only Spark evaluates."""
    queries: list[Query | Join] = [of.query for group in plan.groups for of in group.queries]
    queries += [of.join for of in plan.joins.plans]
    found = {
        value.name: Requested(value, tuple(input_type(query, name) for name in value.columns))
        for query in queries for value in foreign_above(query)
    }  # fmt: skip
    return tuple(found[name] for name in sorted(found))


class _Request(VersionChecked):
    """Passes the packets of an instance on, followed by the inputs of the expressions that Spark must evaluate."""

    def __init__(self, task: FoldTask, open_files: OpenFiles, expressions: Sequence[Requested]) -> None:
        self._packed, self._open_files, self._expressions = pack_task(task), open_files, tuple(expressions)

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with worker_task():
            packets: list[pa.Buffer] = []
            for batch in batches:
                packets += [packet.as_buffer() for packet in batch.column(1).drop_null()]
                yield self._batch(batch.num_rows, {_PACKET: batch.column(1)})
            if obstacle_in(packets) is not None:
                return
            task, instance = unpack_task(self._packed), _context().partitionId()
            with on_node_of(instance):
                requests = requested(task, instance, packets, self._open_files())
            for query, number, inputs in requests.batches:
                rows = len(next(iter(inputs.values())))
                names = {QUERY: pa.array([query] * rows), REQUEST: pa.array([number] * rows, pa.int32())}
                yield self._batch(rows, names | {one.name: column for one, column in inputs.items()})

    def _batch(self, rows: int, columns: Mapping[str, pa.Array]) -> pa.RecordBatch:
        kinds = {_PACKET: pa.binary(), QUERY: pa.string(), REQUEST: pa.int32()}
        kinds |= {one.value.name: one.arrow for one in self._expressions}
        arrays = [columns[name] if name in columns else pa.nulls(rows, kind) for name, kind in kinds.items()]
        return pa.RecordBatch.from_arrays(arrays, names=list(kinds))


class _FoldEvaluated(_Fold):
    """Folds the packets of an instance with the values that Spark has evaluated."""

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with worker_task():
            began_us, packets, evaluated = now_us(), list[pa.Buffer](), list[pa.RecordBatch]()
            for batch in batches:
                packets += [packet.as_buffer() for packet in batch.column(0).drop_null()]
                evaluated.append(batch.filter(batch.column(1).is_valid()).drop_columns([_PACKET]))
            with foreign_values(EvaluatedValues(evaluated)):
                delta = self._folded(packets, began_us)
        yield delta


class _Direct(VersionChecked):
    """Turns the events of one source partition into the receipts of the instances that own its keys."""

    def __init__(self, gathering: GatherTask, folding: FoldTask, route: Route, open_files: OpenFiles) -> None:
        self._gathering, self._folding = pack_task(gathering), pack_task(folding)
        self._route, self._open_files = route, open_files

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with worker_task():
            context = BarrierTaskContext.get()
            number, tasks = context.partitionId(), len(context.getTaskInfos())
            task, files, began = unpack_task(self._folding), self._open_files(), monotonic()
            gathering = unpack_task(self._gathering)
            rows = gather_share(gathering, number, tasks, files)
            gathered = gather_direct(gathering, batches, number, self._route, rows)
            seconds = monotonic() - began
            names = message_files(task.number, self._route.job, tasks)
            reached("direct.gathered")
            send_message(files, names[number], gathered.message)
            reached("direct.sent")
            messages = read_messages(files, names, seconds)
            if isinstance(messages, Obstacle):
                fold_input: FoldInput | Obstacle = messages
            else:
                fold_input = packets_to_fold(messages, number, gathered.packets, self._route)
            if isinstance(fold_input, Obstacle):
                yield _deltas([(b"", encode_obstacle(fold_input))])
                return
            attempt = context.taskAttemptId()
            deltas = []
            for instance, packets in fold_input.packets.items():
                with on_node_of(instance):
                    receipt, body = fold(task, instance, packets, f"{task.writer}-{attempt}", files)
                receipt.counts[BYTES_MOVED] -= sum(map(len, gathered.packets.get(instance, ())))
                if instance == 0:
                    receipt.counts.update({DIRECT: 1, MISPLACED: fold_input.misplaced})
                deltas.append((msgspec.json.encode(receipt), body))
        if deltas:
            yield _deltas(deltas)


class _OneTask(VersionChecked):
    """Turns all events of a small epoch into the receipts and deltas of all instances.

    `reads`: the input rows are events; otherwise they have no meaning.
    """

    def __init__(
        self, gathering: GatherTask, folding: FoldTask, files: FileTask | None, reads: bool, open_files: OpenFiles
    ) -> None:
        self._gathering, self._folding = pack_task(gathering), pack_task(folding)
        self._files, self._reads, self._open_files = files, reads, open_files

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with worker_task():
            folding = unpack_task(self._folding)
            attempt = f"{folding.writer}-{_context().taskAttemptId()}"
            found = fold_in_one_task(self._inputs(batches), folding, attempt, self._open_files())
            for _ in batches:  # Spark ends a worker that has not read all of its input
                pass
            if isinstance(found, Obstacle):
                deltas = [(b"", encode_obstacle(found))]
            else:
                deltas = [(msgspec.json.encode(receipt), body) for receipt, body in found]
        yield _deltas(deltas)

    def _inputs(self, batches: Iterator[pa.RecordBatch]) -> list[GatherInput]:
        task, files = unpack_task(self._gathering), self._files
        events = batches if self._reads else iter(())
        if files is None:
            return [GatherInput(task, events)]
        inputs = [GatherInput(task.without_texts, read_files(files, range(len(files.parts))))]
        return [GatherInput(task, _without(events, files.sources)), *inputs] if self._reads else inputs


def _deltas(rows: list[tuple[bytes, bytes]]) -> pa.RecordBatch:
    columns = [pa.array(column, pa.binary()) for column in zip(*rows, strict=True)]
    return pa.RecordBatch.from_arrays(columns, names=["receipt", "body"])


def _context() -> TaskContext:
    context = TaskContext.get()
    if context is None:
        raise CorruptError("A task runs outside Spark.", "Use millpond.testing.local_pond instead.")
    return context


def packets_of(
    spark: SparkSession, rows: ArrowRows | None, files: FileTask | None, contents: Sequence[DataFrame],
    task: GatherTask, open_files: OpenFiles,
) -> ArrowRows:  # fmt: skip
    """The packets of the events that are read, and of what is read from the pond's own files by at most one task per
    instance.

    `rows`: the events that Spark reads. `files`: what the tasks read into Arrow; the rows do not contain it.
    `contents`: frames of the paths and contents of its files that are delivered.
    """
    frames: list[ArrowRows] = []
    if rows is not None:
        frames.append(rows.map(_Gather(task) if files is None else _GatherOthers(task, files), PACKETS))
    if files is not None and files.parts:
        numbers = ArrowRows.numbers(spark, len(files.parts), len(files.parts))
        frames.append(numbers.map(_GatherFiles(task.without_texts, files), PACKETS))
    if files is not None:
        delivered = _GatherDelivered(task.without_texts, files)
        frames += (ArrowRows.of(content).map(delivered, PACKETS) for content in contents)
    parts = stored_parts(task)
    if parts or not frames:
        numbers = ArrowRows.numbers(spark, parts, max(1, min(parts, task.instances)))
        frames.append(numbers.map(_GatherStored(task, open_files), PACKETS))
    return reduce(ArrowRows.union, frames)


def deltas_of(
    packets: ArrowRows, task: FoldTask, open_files: OpenFiles, hosts: Sequence[str], evaluate: Evaluate
) -> list[tuple[Receipt, bytes]] | Obstacle:  # fmt: skip
    """Run the epoch's only job: shuffle packets to their instances, fold them, and collect receipts and deltas.

    The result is an obstacle if a gather has met one; then no instance has folded.

    If the plan has expressions over results that only Spark evaluates, each instance first requests their values, and
    folds when `evaluate` has computed them in the same stage. `hosts`: the preferred host of each instance, see
    `TaskHosts`.

    Raises:
        CorruptError: an instance returned no receipt, or more than one.
    """
    moved = packets.shuffled(task.instances).on(hosts)
    above = expressions_above(task.plan)
    if not above:
        return _received(moved.map(_Fold(task, open_files), DELTAS).collect(), task)
    requested_columns = ", ".join(one.ddl for one in above)
    columns = StructType.fromDDL(f"{_PACKET} binary, {QUERY} string, {REQUEST} int, {requested_columns}")
    assert isinstance(columns, StructType)
    inputs = moved.map(_Request(task, open_files, above), columns)
    values = evaluate(inputs.frame(), [one.value for one in above])
    return _received(values.map(_FoldEvaluated(task, open_files), DELTAS).collect(), task)


def one_task_deltas_of(
    spark: SparkSession, rows: ArrowRows | None, files: FileTask | None, gathering: GatherTask, task: FoldTask,
    open_files: OpenFiles,
) -> list[tuple[Receipt, bytes]] | Obstacle:  # fmt: skip
    """Run the job of a small epoch, which has one task, and return receipts and deltas; see `packets_of`.

    The result is `NOTHING_READ` if the rows have no partition, or an obstacle if a reader has met one.

    Raises:
        CorruptError: as `deltas_of`.
    """
    function = _OneTask(gathering, task, files, rows is not None, open_files)
    results = (ArrowRows.numbers(spark, 1, 1) if rows is None else rows.single()).map(function, DELTAS).collect()
    return _received(results, task) if results else NOTHING_READ


def direct_deltas_of(
    rows: ArrowRows, gathering: GatherTask, task: FoldTask, open_files: OpenFiles, route: Route
) -> list[tuple[Receipt, bytes]] | Obstacle:
    """Run a direct epoch's job and collect receipts and deltas; or return why the epoch could not be direct.

    Raises:
        CorruptError: as `deltas_of`.
    """
    try:
        results = rows.map(_Direct(gathering, task, route, open_files), DELTAS, barrier=True).collect()
    finally:
        with suppress(MillpondError):  # pruning deletes what is left
            open_files().remove_messages(message_files(task.number, route.job, route.tasks))
    if not results:
        return NOTHING_READ
    return _received(results, task)


def _received(results: list[tuple[bytes, ...]], task: FoldTask) -> list[tuple[Receipt, bytes]] | Obstacle:
    obstacle = next((body for receipt, body in results if not receipt), None)
    if obstacle is not None:
        return decode_obstacle(obstacle)
    deltas = [(msgspec.json.decode(receipt, type=Receipt), body) for receipt, body in results]
    if sorted(receipt.instance for receipt, _ in deltas) != list(range(task.instances)):
        raise CorruptError("An epoch's job did not return one receipt per instance.", "Run the batch again.")
    return deltas
