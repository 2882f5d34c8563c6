"""What simulated drivers share: folders in memory, a source, Spark's checkpoint, sinks, the deltas' disk.

Nothing here knows about faults; `simulation` breaks these parts from outside, between two steps.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from random import Random

import msgspec

from kit.simulator.faulty_folder import FaultyFolder
from millpond.errors import StoreError
from millpond.log.cursor import Cursor, check_applied, cursor_at
from millpond.log.manifest import LiveSection, Manifest, Manifests
from millpond.log.port import Log, numbered_name
from millpond.log.protocol import TICK
from millpond.log.records import Entry, EpochRecord, Offsets, Receipt, Section, decode

Row = tuple[str, int, int, int, int]
"""Stream, source partition, position, number of events in its bucket before, and number of changes in force."""

_rows: msgspec.json.Decoder[list[Row]] = msgspec.json.Decoder(list[Row])
_offsets: msgspec.json.Decoder[dict[str, int]] = msgspec.json.Decoder(dict[str, int])

GROUP = "group"

BUCKETS = 5

FAULT_RATE = 0.02
"""The probability that a request to a folder fails, in a world where they fail."""


class Violation(AssertionError):
    """An invariant of the log does not hold; the message says which."""


def demand(law: bool, otherwise: str) -> None:
    """Raise Violation unless the invariant holds."""
    if not law:
        raise Violation(otherwise)


@lru_cache(maxsize=4096)
def entry_of(data: bytes) -> Entry:
    """Decode a record; the checks of a run read each record many times."""
    return decode(data)


class MemoryFolder:
    """A `port.Folder` in a dict."""

    def __init__(self, where: str) -> None:
        self.where = where
        self.files: dict[str, bytes] = {}

    def create(self, name: str, data: bytes) -> bool:
        """Create the file unless its name exists; see `port.Folder`."""
        if name in self.files:
            return False
        self.files[name] = data
        return True

    def replace(self, name: str, data: bytes) -> None:
        """Write the file over any older one; see `port.Folder`."""
        self.files[name] = data

    def read(self, name: str) -> bytes | None:
        """Return the file, or None; see `port.Folder`."""
        return self.files.get(name)

    def exists(self, name: str) -> bool:
        """Return whether the file exists; see `port.Folder`."""
        return name in self.files

    def names(self, after: str = "") -> list[str]:
        """Return the names after `after`; see `port.Folder`."""
        return [name for name in self.files if name > after]

    def remove(self, name: str) -> None:
        """Remove the file if it exists; see `port.Folder`."""
        self.files.pop(name, None)


class Source:
    """Streams of source partitions; an event is only its position, so lengths are enough."""

    def __init__(self) -> None:
        self.lengths: dict[str, list[int]] = {"tx": [0, 0], "clicks": [0]}

    def grow(self, random: Random) -> None:
        """Append a few events to one partition."""
        lengths = self.lengths[random.choice(("tx", "tx", "clicks"))]
        lengths[random.randrange(len(lengths))] += random.randint(1, 4)

    def offsets(self, before: Offsets, random: Random | None) -> Offsets:
        """Return ends for the next batch: random ones up to the newest event; without `random`, the newest event.

        A stream that never had an event is missing, as in Spark's own offset log.
        """
        ends: Offsets = {}
        for stream, lengths in self.lengths.items():
            start = positions(before.get(stream), len(lengths))
            end = [random.randint(a, b) if random else b for a, b in zip(start, lengths, strict=True)]
            if any(end):
                ends[stream] = offset_text(end)
        ends[TICK] = str(int(before.get(TICK, "0")) + 1)
        return ends


def offset_text(ends: list[int]) -> str:
    """Return the offset of a stream as Spark would write it: partition -> next position."""
    return json.dumps({str(partition): end for partition, end in enumerate(ends)})


def positions(offset: str | None, partitions: int) -> list[int]:
    """Return the next position of every partition; all 0 if the stream has no offset yet."""
    if offset is None:
        return [0] * partitions
    return list(_offsets.decode(offset).values())


class ConcurrentUpdate(Exception):
    """Spark found that another query uses its checkpoint, or that it was deleted; the query ends."""


@dataclass
class Checkpoint:
    """Spark's checkpoint folder: ends per batch, and which batches it has committed."""

    spark_query: str
    ends: dict[int, Offsets] = field(default_factory=dict)
    committed: set[int] = field(default_factory=set)

    def copy(self) -> Checkpoint:
        """Return a copy, as a backup would make it."""
        return Checkpoint(self.spark_query, dict(self.ends), set(self.committed))

    def next_batch(self) -> tuple[int, Offsets]:
        """Return the next batch and its start; it is the last batch again if Spark has not committed it."""
        last = max(self.ends, default=-1)
        batch = last if last >= 0 and last not in self.committed else last + 1
        return batch, self.ends.get(batch - 1, {})


class Sink:
    """A follower whose cursor and rows change in one atomic step."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.rows: list[Row] = []
        self.stored = Cursor()
        self._sizes: list[int] = []
        self.deltas: DeltaDisk | None = None

    @property
    def applied(self) -> int:
        """The number of the last applied record."""
        return self.stored.n

    def cursor(self) -> Cursor:
        """Return the number and mark of the last applied record."""
        return self.stored

    def lose(self) -> None:
        """Lose everything, as a flushed store does."""
        self.rows, self.stored, self._sizes = [], Cursor(), []

    def rewind(self, to: Cursor) -> None:
        """Remove the rows of records after `to`."""
        self._sizes = self._sizes[: to.n + 1]
        self.rows, self.stored = self.rows[: self._sizes[-1] if self._sizes else 0], to

    def apply(self, n: int, record: Entry, manifest: Manifest) -> None:
        """Apply the record, unless it is already applied.

        StoreError: an earlier record is missing. AheadError: another record with its number was applied.
        """
        check_applied(self.name, self.stored, record)
        if n <= self.applied:
            return
        if n > self.applied + 1:
            raise StoreError(f"The sink {self.name} holds record {self.applied}, not {n - 1}.", "Replay.")
        self.show(n, record)

    def show(self, n: int, record: Entry) -> None:
        """Add the record's rows and set the cursor, without checks."""
        assert self.deltas is not None
        self.rows += self.deltas.rows_of(record)
        self.stored = cursor_at(record)
        self._sizes = [*self._sizes[:n], len(self.rows)]


class DeltaDisk:
    """The delta files of all attempts; a later write to the same name replaces the bytes."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}

    def rows_of(self, entry: Entry) -> list[Row]:
        """Return the result rows of a record, only from attempts with a receipt in it."""
        if not isinstance(entry.record, EpochRecord):
            return []
        found: list[Row] = []
        for receipt in entry.record.receipts:
            delta = self.delta_of(entry, receipt)
            for section in receipt.sections:
                if section.kind == "rows":
                    found += read_rows(delta, section)
        return found

    def delta_of(self, entry: Entry, receipt: Receipt) -> bytes:
        """Return the delta of a receipt; Violation if its file is not the committed one."""
        if receipt.file is None:
            return bytes(entry.inline(receipt))
        return self._checked(receipt.file, receipt.digest)

    def section(self, live: LiveSection, log: Log) -> list[Row]:
        """Return the rows of a live section, read as a worker reads them: by location only."""
        if live.file is not None:
            data = self._checked(live.file, live.delta_digest)
        else:
            record = log.read(live.n)
            assert record is not None
            body = entry_of(record).body
            assert body is not None
            data = bytes(body.read(0, live.offset + live.size))
        rows = _rows.decode(data[live.offset : live.offset + live.size])
        demand(len(rows) == live.rows, f"section {live.id} holds {len(rows)} rows, not {live.rows}")
        return rows

    def _checked(self, name: str, digest: str) -> bytes:
        data = self.files.get(name, b"")
        demand(hashlib.sha256(data).hexdigest() == digest, f"the committed delta {name} has changed or is lost")
        return data


def read_rows(delta: bytes, section: Section) -> list[Row]:
    """Return the rows in one section of a delta."""
    return _rows.decode(delta[section.offset : section.offset + section.size])


def bucket_of(partition: int, position: int) -> int:
    """Return the bucket that an event is in."""
    return (position * 7 + partition) % BUCKETS


@dataclass
class Delayed:
    """An effect that will still happen: a request in the network, or a write of a stopped task."""

    due_tick: int
    what: str
    happen: Callable[[], object]


class World:
    """Everything that outlives a driver.

    Drivers and publishers use `log` and `manifests`, whose requests fail in half of the worlds. Checks use `true_log`
    and `true_manifests`: the same files without faults.
    """

    def __init__(self, random: Random, folder: type[FaultyFolder], fault_random: Random) -> None:
        self.random = random
        self.instances = random.randint(1, 3)
        self.log_folder = MemoryFolder("memory:log")
        self.manifest_folder = MemoryFolder("memory:manifest")
        self.true_log = Log(self.log_folder)
        self.true_manifests = Manifests(self.manifest_folder)
        rate = fault_random.choice((0.0, FAULT_RATE))
        self.log_requests = folder(self.log_folder, fault_random, rate, self.later)
        self.manifest_requests = folder(self.manifest_folder, fault_random, rate, self.later)
        self.log = Log(self.log_requests)
        self.manifests = Manifests(self.manifest_requests, keep=3)
        self.source = Source()
        self.deltas = DeltaDisk()
        self.sinks: list[Sink] = []
        self.delayed: list[Delayed] = []
        self.tick = 0
        self.healing = False
        self.checkpoints_made = 0
        self.checkpoint = self.new_checkpoint({})
        self.backups = [self.checkpoint.copy()]
        self.checkpoint_was_harmed = False
        self.requests: list[str] = []
        """The names of changes that clients request, of whichever driver they reach, until one replies."""
        self.replied: list[str] = []
        self._requests_made = 0
        self._cut_until: dict[str, int] = {}
        self._true_rows: list[list[Row]] = []

    def new_checkpoint(self, ends: Offsets) -> Checkpoint:
        """Return a checkpoint with a new query id that continues after `ends`, if given."""
        self.checkpoints_made += 1
        name = f"query-{self.checkpoints_made}"
        return Checkpoint(name, {0: {**ends, TICK: "0"}}, {0}) if ends else Checkpoint(name)

    def later(self, what: str, happen: Callable[[], object]) -> None:
        """Schedule an effect some steps from now."""
        self.delayed.append(Delayed(self.tick + self.random.randint(1, 60), what, happen))

    def request(self) -> None:
        """Let a client request a change."""
        self._requests_made += 1
        self.requests.append(f"request-{self._requests_made}")

    def reply(self, name: str) -> None:
        """Tell the client that its change was made, so that it does not repeat the request."""
        if name in self.requests:
            self.requests.remove(name)
            self.replied.append(name)

    def cut(self, token: str) -> None:
        """Cut a driver's host from the log for some time."""
        self._cut_until[token] = self.tick + self.random.randint(20, 150)

    def is_cut(self, token: str) -> bool:
        """Whether the log does not answer the driver's host."""
        return not self.healing and self._cut_until.get(token, 0) > self.tick

    def lose_records(self, first: int) -> None:
        """Lose the newest records of the log, from `first` on, and the delayed appends to it."""
        for n in range(first, self.head() + 1):
            self.log_folder.remove(numbered_name(n))
        del self._true_rows[first:]
        self.replied = []  # these changes may be lost
        self.delayed = [late for late in self.delayed if not late.what.startswith("create of")]

    def head(self) -> int:
        """Return the number of the last record, as found in the folder."""
        n = len(self._true_rows) - 1
        while (data := self.true_log.read(n + 1)) is not None:
            n += 1
            self._true_rows.append(self.deltas.rows_of(entry_of(data)))
        return n

    def check_sink(self, sink: Sink) -> None:
        """Check that the sink has the rows of records 0..cursor, each once, in order, and nothing else."""
        demand(sink.applied <= self.head(), f"{sink.name} shows record {sink.applied}, which is not true")
        shown = [row for rows in self._true_rows[: sink.applied + 1] for row in rows]
        demand(sink.rows == shown, f"{sink.name} at {sink.applied} shows {len(sink.rows)} rows, not {len(shown)}")
