"""The inputs that the driver passes to the two tasks of an epoch: plain values, the same for every attempt."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from millpond.model.expressions import Literal
from millpond.model.windows import NEVER_LATE_US
from millpond.plan.chains.parameter_feeds import Fed
from millpond.plan.groups.joins import SideLog
from millpond.plan.groups.plan import GroupPlan, KeptEvents, Plan
from millpond.plan.options.late_rows import LateAsk
from millpond.runtime.task.column_layout import ReadColumn, ReadLayout

WHOLE_POND = "*"
"""Where counts stand that are of no one query: `events` and `bytes_read` (Arrow), `bytes_moved` (packets),
`slices_read` (slices and tiles that closing windows were put together from), `gather_us` and `fold_us` (time that
the workers of both took in Python, all tasks together, waiting for input left out)."""

GROUP_US = "group_us"
"""Where the time stands that a group takes of `gather_us` and `fold_us`, by the group's id."""


class Watermark(msgspec.Struct, frozen=True):
    """How far a stream's event time has come: the largest time seen before this epoch, and a floor set by a drain."""

    max_time_us: int | None = None
    floor_us: int | None = None

    def at(self, delay_us: int) -> int | None:
        """Events at or below this are late for `delay_us`; windows that end at or below it are closed; None: none."""
        if delay_us >= NEVER_LATE_US:
            return None
        marks = [] if self.max_time_us is None else [self.max_time_us - delay_us]
        if self.floor_us is not None:
            marks.append(self.floor_us)
        return max(marks) if marks else None

    def advanced(self, max_time_us: int | None) -> Watermark:
        """The watermark after events up to `max_time_us`; it never goes back."""
        if max_time_us is None or (self.max_time_us is not None and max_time_us <= self.max_time_us):
            return self
        return Watermark(max_time_us, self.floor_us)


class TimeLine(msgspec.Struct, frozen=True):
    """Where event time of a stream stands when an epoch begins.

    `mark.max_time_us` is the watermark base of the whole stream; `partitions` the largest time of each source
    partition of a stream with an order, `expected` those that must have spoken, `idle` those not waited for.
    `reaches_us`: of a stream made of the rows of a query, the base after this epoch, which is known before it.
    """

    mark: Watermark = Watermark()
    ordered: bool = False
    partitions: dict[str, int] = {}
    expected: tuple[str, ...] = ()
    idle: frozenset[str] = frozenset()
    max_ahead_us: int | None = None
    reaches_us: int | None = None


class GatherTask(msgspec.Struct, frozen=True):
    """Everything a gather needs besides its events; `owners[bucket]` is the bucket's instance.

    `now_us`: the driver's clock when the epoch began; None: no event is too far ahead. `late`: who wants its late
    events, by stream. `chained`: rows of queries that are events of this epoch. `parameters`: the constants of those in
    filters and arguments. `recalled`: retained events that are read again.
    """

    plan: Plan
    layout: ReadLayout
    lines: dict[str, TimeLine]
    owners: tuple[int, ...]
    instances: int
    now_us: int | None = None
    quarantined: frozenset[str] = frozenset()
    late: dict[str, tuple[LateAsk, ...]] = {}
    chained: tuple[ChainedRows, ...] = ()
    parameters: dict[str, Literal] = {}
    recalled: tuple[RecalledEvents, ...] = ()


class Position(NamedTuple):
    """A place among cells: before it are slices that start before, and of those that start then, or up to `span_us`
    later, smaller slots.
    """

    start_us: int
    slot: int
    span_us: int = 0


UNTIL = "until_us", "until_slot", "until_span_us"
"""What a portion's record tells of the position before which all is merged."""


class SectionPlace(msgspec.Struct, frozen=True):
    """Where a section is: `size` bytes at `offset` of a file in the pond's folder, or of the body of a record.

    `delays_us`: those of the group when a segment was written, which its lateness classes count; `first_us`, `last_us`:
    none of it is earlier, all of it is (None: nobody knows); `columns`: those of retained events, as JSON. `instead`,
    `until`: of a portion of a merge the sections that it replaces, and before what all is merged
    (`runtime.fold.merge_segments`). `slots`: the first that a segment names, and the one after the last (None: nobody
    knows); `gone`: of these those that had left when it was written, so that it has no cell of them.
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


class ChainedRows(msgspec.Struct, frozen=True):
    """Rows that one instance committed for a query, to be read as events of `stream`, at `position` of the layout."""

    stream: str
    position: int
    instance: int
    places: tuple[SectionPlace, ...]


class RecalledEvents(msgspec.Struct, frozen=True):
    """Events from `from_us` on that one instance retained of `stream`, or that a backfill has read again, to be taken
    by some `groups` that are new; `columns`: those that may be in the sections, by name, wherever they stand.
    """

    stream: str
    groups: tuple[str, ...]
    from_us: int
    places: tuple[SectionPlace, ...]
    columns: tuple[ReadColumn, ...]


class GroupState(msgspec.Struct, frozen=True):
    """What an instance remembers of one group: live keys in the order of their numbers, segments in log order.

    `tiles` are segments too, but only repeat what those of slices hold; so are `revisions`, which count how often a row
    was corrected, by (window, key); `events` is the event log, `tallies` are what is counted by bins; `left` are slots
    of keys whose buckets have gone to other instances; `portions` of merges that are not at their end are not read.
    """

    keys: tuple[SectionPlace, ...] = ()
    segments: tuple[SectionPlace, ...] = ()
    tiles: tuple[SectionPlace, ...] = ()
    events: tuple[SectionPlace, ...] = ()
    revisions: tuple[SectionPlace, ...] = ()
    tallies: tuple[SectionPlace, ...] = ()
    left: tuple[SectionPlace, ...] = ()
    portions: tuple[SectionPlace, ...] = ()

    def apart(self, place: SectionPlace) -> str:
        """What the segments say of themselves that are kept apart from those of slices: `tiles`, `revisions`."""
        return "tiles" if place in self.tiles else "revisions" if place in self.revisions else ""

    @property
    def places(self) -> tuple[SectionPlace, ...]:
        """Everything that is remembered."""
        read = *self.keys, *self.segments, *self.tiles, *self.events, *self.revisions, *self.tallies, *self.left
        return (*read, *self.portions)

    @property
    def generation(self) -> int:
        """The generation of all live keys; segments and tiles are of this one or of the one before."""
        return self.keys[0].generation if self.keys else 0


class FoldTask(msgspec.Struct, frozen=True):
    """Everything a fold needs besides its packets; `feeds`: queries whose rows others read.

    `owners[bucket]` is the bucket's instance; `map` numbers them, see `placement.moves`. `sources`: for an instance
    that owns other buckets than in the epoch before, the instances whose state holds them. `replaced`: for versions
    that were replaced, the query whose rows theirs are. `instances`: how many there are now, and `before` in the epoch
    before. `fed`: parameters that rows of this epoch give values to. `backfilled`: groups that begin with events from
    before, so that they tell windows that have closed since. `moving`: some state is on its way to another instance, in
    this epoch or a later one. `merges_wait`: for an epoch that is not behind.
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
    late: dict[str, tuple[LateAsk, ...]] = {}
    feeds: frozenset[str] = frozenset()
    map: int = 0
    sources: dict[int, tuple[int, ...]] = {}
    replaced: dict[str, str] = {}
    instances: int = 1
    before: int = 1
    fed: tuple[Fed, ...] = ()
    backfilled: frozenset[str] = frozenset()
    moving: bool = False
    merges_wait: bool = False

    @property
    def buckets(self) -> int:
        """How many buckets the pond has."""
        return len(self.owners)

    def files(self, instance: int | None = None) -> set[str]:
        """Names of the files that `instance` needs, or any instance."""
        states = self.state.values() if instance is None else [self.state.get(instance, {})]
        return {place.file for groups in states for group in groups.values() for place in group.places}

    def of(self, instance: int, group: GroupPlan | SideLog | KeptEvents) -> GroupState:
        """What `instance` remembers of `group`, of a side of joins, or of what a stream retains."""
        return self.state.get(instance, {}).get(group.id, GroupState())
