"""The inputs that the driver passes to the two tasks of an epoch: plain values, the same for every attempt."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import msgspec

from millpond.model.expressions import Literal
from millpond.model.windows import NEVER_LATE_US
from millpond.plan.groups.joins import SideLog
from millpond.plan.groups.plan import GroupPlan, KeptEvents, Plan
from millpond.plan.upstream.late_sinks import LateSink
from millpond.plan.upstream.parameter_feeds import Feed
from millpond.runtime.task.column_layout import ReadColumn, ReadLayout


class Watermark(msgspec.Struct, frozen=True):
    """How far a stream has advanced in event time: its watermark base (see `runtime.gather.lateness`), which is the
    watermark for a delay of 0, and a floor set by a drain."""

    max_time_us: int | None = None
    floor_us: int | None = None

    def at(self, delay_us: int) -> int | None:
        """The watermark for a delay: events up to it are late, windows that end by then are closed; None: none."""
        if delay_us >= NEVER_LATE_US:
            return None
        marks = [] if self.max_time_us is None else [self.max_time_us - delay_us]
        if self.floor_us is not None:
            marks.append(self.floor_us)
        return max(marks) if marks else None

    def advanced(self, max_time_us: int | None) -> Watermark:
        """The watermark after events up to `max_time_us`; it never decreases."""
        if max_time_us is None or (self.max_time_us is not None and max_time_us <= self.max_time_us):
            return self
        return Watermark(max_time_us, self.floor_us)


class TimeLine(msgspec.Struct, frozen=True):
    """The event time of a stream when an epoch begins.

    `mark.max_time_us` is the watermark base of the whole stream. For a stream with an order, `partitions` is the
    largest time of each source partition, `expected` the partitions that must have had events before the watermark can
    advance, and `idle` those that it does not wait for. `reaches_us`: for a stream made of query rows, the base after
    this epoch, which is known in advance. `follows`: only `reaches_us` advances the base, not the times of events.
    """

    mark: Watermark = Watermark()
    ordered: bool = False
    partitions: dict[str, int] = {}
    expected: tuple[str, ...] = ()
    idle: frozenset[str] = frozenset()
    max_ahead_us: int | None = None
    reaches_us: int | None = None
    follows: bool = False


class GatherTask(msgspec.Struct, frozen=True):
    """Everything a gather needs besides its events; `owners[bucket]` is the bucket's instance.

    `now_us`: the driver's clock when the epoch began; None: events are not checked for being too far ahead. `late`:
    the late sinks, by stream. `chained`: rows of queries that are events of this epoch. `parameters`: the
    values of live parameters in filters and arguments. `recalled`: stored events that are replayed.
    """

    plan: Plan
    layout: ReadLayout
    lines: dict[str, TimeLine]
    owners: tuple[int, ...]
    instances: int
    now_us: int | None = None
    quarantined: frozenset[str] = frozenset()
    late: dict[str, tuple[LateSink, ...]] = {}
    chained: tuple[ChainedRows, ...] = ()
    parameters: dict[str, Literal] = {}
    recalled: tuple[RecalledEvents, ...] = ()

    @property
    def without_texts(self) -> GatherTask:
        """The same for batches in which the columns of each stream are at their positions, as no record is a text."""
        if not self.layout.texts:
            return self
        return msgspec.structs.replace(self, layout=replace(self.layout, texts=()))


class Position(NamedTuple):
    """A position in the order of cells, for merges in portions.

    Cells are before it if their slice starts before `start_us`, or if it starts within `span_us` from there and their
    slot is less than `slot`.
    """

    start_us: int
    slot: int
    span_us: int = 0


UNTIL = "until_us", "until_slot", "until_span_us"
"""The names, in a portion's info, of the position before which all cells are merged."""


class SectionPlace(msgspec.Struct, frozen=True):
    """The location of a section: `size` bytes at `offset` of a file in the pond's folder, or of the body of a record.

    `delays_us`: the delays of the group when a segment was written, to which its late classes refer. `first_us`,
    `last_us`: the half-open interval of its times (None: unknown). `columns`: those of retained events, as JSON.
    `instead`, `until`: for a portion of a merge, the sections that it replaces, and the position before which all cells
    are merged (`runtime.fold.merge_segments`). `slots`: the half-open interval of slots in a segment (None: unknown).
    `gone`: how many of these slots had departed when it was written, so that it has no cells of them. `counted`: of
    events, whether tallies have counted all events that they need.
    """

    id: str
    file: str
    inline: bool
    offset: int
    size: int
    rows: int = 0
    level: int = 0
    generation: int = 0
    delays_us: tuple[int, ...] = ()
    last_us: int | None = None
    columns: str = ""
    instead: tuple[str, ...] = ()
    until: Position = Position(0, 0)
    gone: int = 0
    first_us: int | None = None
    slots: tuple[int, int] | None = None
    counted: bool = False


class ChainedRows(msgspec.Struct, frozen=True):
    """Rows that one instance committed for a query, to be read as events of `stream`, at `position` of the layout."""

    stream: str
    position: int
    instance: int
    places: tuple[SectionPlace, ...]


class RecalledEvents(msgspec.Struct, frozen=True):
    """Stored events of `stream` from `from_us` on, which the new `groups` replay.

    One instance retained them, or a backfill has read them again. `columns`: the columns that the sections may have;
    they are found by name, and their positions have no meaning.
    """

    stream: str
    groups: tuple[str, ...]
    from_us: int
    places: tuple[SectionPlace, ...]
    columns: tuple[ReadColumn, ...]


class GroupState(msgspec.Struct, frozen=True):
    """The state of one group on an instance: live keys in the order of their slots, segments in log order.

    `tiles` are segments that combine the cells of several slices and only repeat them. `revisions` are segments that
    count how often a row was corrected, by (window, key). `events` is the event log, `tallies` are counts of values.
    `left` are slots of keys whose buckets have moved to other instances. `portions` belong to unfinished merges and are
    not read.
    """

    keys: tuple[SectionPlace, ...] = ()
    segments: tuple[SectionPlace, ...] = ()
    tiles: tuple[SectionPlace, ...] = ()
    events: tuple[SectionPlace, ...] = ()
    revisions: tuple[SectionPlace, ...] = ()
    tallies: tuple[SectionPlace, ...] = ()
    left: tuple[SectionPlace, ...] = ()
    portions: tuple[SectionPlace, ...] = ()

    def segment_kind(self, place: SectionPlace) -> str:
        """The kind of a segment that is not of slices: `tiles` or `revisions`; "" for segments of slices."""
        return "tiles" if place in self.tiles else "revisions" if place in self.revisions else ""

    @property
    def places(self) -> tuple[SectionPlace, ...]:
        """The locations of all sections."""
        read = *self.keys, *self.segments, *self.tiles, *self.events, *self.revisions, *self.tallies, *self.left
        return (*read, *self.portions)

    @property
    def key_count(self) -> int:
        """The number of live keys, and of their slots."""
        return sum(place.rows for place in self.keys)

    @property
    def generation(self) -> int:
        """The generation of all live keys; segments and tiles belong to this or to the previous generation."""
        return self.keys[0].generation if self.keys else 0


class FoldTask(msgspec.Struct, frozen=True):
    """Everything a fold needs besides its packets; `upstream_queries`: queries whose rows others read.

    `owners[bucket]` is the bucket's instance; `map` is the number of this bucket map, see `placement.moves`. `sources`:
    for an instance whose buckets changed since the previous epoch, the instances whose state contains them. `replaced`:
    for replaced versions, the query to which their rows belong. `instances`: the number of instances now, and `before`
    in the previous epoch. `feeds`: parameters that rows of this epoch set. `backfilled`: groups that start from
    backfilled events, and therefore also emit windows that have closed before. `moving`: state is moved to other
    instances in this epoch or a later one. `merges_wait`: merges are postponed until an epoch that is not behind.
    `looked_up`: the streams whose rows of a keyed table the fold looks up, and `parameters` the values of live
    parameters in filters over these rows. `instant_us`: of values of the clock; 0: there are none.
    """

    pond: str
    cache: str
    number: int
    plan: Plan
    lines: dict[str, TimeLine]
    drain_floor_us: dict[str, int]
    state: dict[int, dict[str, GroupState]]
    owners: tuple[int, ...]
    writer: str
    drained: bool = False
    quarantined: frozenset[str] = frozenset()
    late: dict[str, tuple[LateSink, ...]] = {}
    upstream_queries: frozenset[str] = frozenset()
    map: int = 0
    sources: dict[int, tuple[int, ...]] = {}
    replaced: dict[str, str] = {}
    instances: int = 1
    before: int = 1
    feeds: tuple[Feed, ...] = ()
    backfilled: frozenset[str] = frozenset()
    moving: bool = False
    merges_wait: bool = False
    looked_up: ReadLayout = ReadLayout(())
    parameters: dict[str, Literal] = {}
    instant_us: int = 0

    @property
    def buckets(self) -> int:
        """The number of buckets of the pond."""
        return len(self.owners)

    def files(self, instance: int | None = None) -> set[str]:
        """Names of the files that `instance` needs, also for state that moves to it, or (None) any instance needs."""
        needed = self.state if instance is None else {instance, *self.sources.get(instance, ())}
        states = [self.state.get(one, {}) for one in needed]
        return {place.file for groups in states for group in groups.values() for place in group.places}

    def of(self, instance: int, group: GroupPlan | SideLog | KeptEvents) -> GroupState:
        """The state of a group, of a side of joins, or of the retained events of a stream on `instance`."""
        return self.state.get(instance, {}).get(group.id, GroupState())
