"""Collects the results of a `ChangingPond` on a case (rows, counts and quarantine of every query) for a judge."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa

from kit.inputs.cases import STREAM
from kit.simulator.changing_pond import ChangingPond
from millpond.followers.record_rows import RowsReader
from millpond.followers.sinks.in_process import MemorySink
from millpond.kernels.columns import arrow_type
from millpond.log.follower import Follower
from millpond.model.endpoints import Sink
from millpond.model.selection import AnyQuery
from millpond.model.stream import Stream
from millpond.state.ports.file_store import FileStore
from millpond.testing.compare import rows_of
from millpond.testing.local_pond import Ledger, read_section

Rows = Sequence[Mapping[str, Any]]


class Answers(NamedTuple):
    """By query: its rows, the fate of its events, the reason for its quarantine, and the rows that HAVING withheld."""

    rows: dict[str, list[dict[str, Any]]]
    counts: dict[str, dict[str, int]]
    quarantined: dict[str, str]
    withheld: dict[str, int]


def table_of(rows: Rows, stream: Stream = STREAM) -> pa.Table:
    """Events as an Arrow table with the stream's columns; timestamps are int microseconds."""
    columns = {}
    for field in stream.columns:
        kind, values = arrow_type(field.type), [row.get(field.name) for row in rows]
        timed = field.type.startswith("timestamp")
        columns[field.name] = pa.array(values, pa.int64()).view(kind) if timed else pa.array(values, kind)
    return pa.table(columns)


class Run:
    """A local pond over `STREAM`, or `stream` and `others`; rows are kept in memory unless `keep_rows` is false."""

    def __init__(
        self, folder: Path, queries: Sequence[AnyQuery], instances: int = 1, buckets: int = 64,
        followers: Sequence[Follower] = (), *, keep_rows: bool = True, stream: Stream = STREAM,
        others: Sequence[Stream] = (), owners: tuple[int, ...] | None = None, token: str = "local",
        file_store: FileStore | None = None,
    ) -> None:  # fmt: skip
        sink = Sink("memory" if keep_rows else "noop")
        remembered = [msgspec.structs.replace(query, sink=sink) for query in queries]
        reader = RowsReader(lambda _n, receipt, section: read_section(folder, receipt, section))
        kept = remembered if keep_rows else []
        self.sinks = {query.name: MemorySink(query.name, reader) for query in kept}
        self.ledger = Ledger()
        late = RowsReader(lambda _n, receipt, section: read_section(folder, receipt, section), "late")
        asking = [query for query in kept if query.late_sink is not None]
        self.late_sinks = {query.name: MemorySink(query.name, late, late=True) for query in asking}
        everybody: list[Follower] = [*self.sinks.values(), *self.late_sinks.values(), self.ledger, *followers]
        self._stream, self._streams = stream, {one.name: one for one in (stream, *others)}
        self.pond = ChangingPond(
            folder,
            [*self._streams.values()],
            remembered,
            instances,
            buckets,
            everybody,
            token,
            owners,
            file_store=file_store,
        )

    def epoch(self, partitions: Sequence[Rows]) -> None:
        """One epoch with the events of each source partition."""
        self.epoch_of({self._stream.name: partitions})

    def epoch_of(self, events: Mapping[str, Sequence[Rows]]) -> None:
        """One epoch of several streams, with the events of each source partition."""
        self.pond.epoch(
            {name: [table_of(rows, self._streams[name]) for rows in parts] for name, parts in events.items()}
        )

    def answers(self) -> Answers:
        """The results until now."""
        others = ("rows", "late_rows", "withheld", "repeated")
        fates = {
            query: {name: value for name, value in found.items() if name not in others}
            for query, found in self.ledger.counts.items()
        }
        rows = {name: rows_of(sink.table()) for name, sink in self.sinks.items()}
        withheld = {query: found.get("withheld", 0) for query, found in self.ledger.counts.items()}
        return Answers(rows, fates, dict(self.pond.manifest.quarantined), withheld)


Partition = Callable[[Rows], Sequence[Rows]]
"""Distributes the events of a batch over source partitions."""


def dealt(seed: int, most: int = 3) -> Partition:
    """Distributes events at random over one to `most` source partitions, some of them empty."""
    dice = random.Random(seed)

    def deal(rows: Rows) -> Sequence[Rows]:
        parts: list[list[Mapping[str, Any]]] = [[] for _ in range(dice.randint(1, most))]
        for row in rows:
            dice.choice(parts).append(row)
        return parts

    return deal


def whole(rows: Rows) -> Sequence[Rows]:
    """One source partition."""
    return [rows]


def answers(
    folder: Path, queries: Sequence[AnyQuery], epochs: Sequence[Rows], instances: int = 1, buckets: int = 64,
    deal: Partition = whole, drained: bool = True,
) -> Answers:  # fmt: skip
    """The results of a new pond in `folder` after these epochs."""
    run = Run(folder, queries, instances, buckets)
    for rows in epochs:
        run.epoch(deal(rows))
    if drained:
        run.pond.drain()
    return run.answers()


def run_with_moves(
    folder: Path, queries: Sequence[AnyQuery], epochs: Sequence[Rows], dice: random.Random, seed: int, often: float
) -> Run:
    """The run of some epochs, the second half by another pond.

    Before an epoch, buckets get other owners with the probability `often`.
    """
    run, deal = Run(folder, queries, 3, 16), dealt(seed)
    for i, batch in enumerate(epochs):
        if i == len(epochs) // 2:
            run = Run(folder, queries, 3, 16, token="next", owners=run.pond.setting.owners)
        if dice.random() < often:
            run.pond.move(tuple(dice.randrange(3) for _ in range(16)))
        run.epoch(deal(batch))
    return run
